from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sanderling.run.exchange import Exchange
from sanderling.run.shared_memory import Block, Unshared

FOUR = {"a": 16, "b": 16}, {"y": 16, "z": 16}  # bytes of 4 float32 each


class Other:
    """What a worker does with blocks and messages, in this process."""

    def __init__(self) -> None:
        self.blocks: dict[str, Block] = {}
        self.attached: list[str] = []

    def attach(self, told: dict[str, Any]) -> None:
        self.blocks[told["block"]] = Block.attach(told["path"], told["size_bytes"])
        self.attached.append(told["block"])

    def sees(self, told: list[dict[str, Any]]) -> dict[str, np.ndarray]:
        return {item["name"]: self.blocks[item["block"]].array(item) for item in told}


class Attached:
    """An exchange with that other side."""

    def __init__(self, other: Other) -> None:
        self.inner, self.other = Exchange(), other
        self.take, self.results = self.inner.take, self.inner.results

    def place(self, feeds: dict, outputs: dict | None) -> tuple[dict[str, Any], int]:
        return self.inner.place(feeds, outputs, self.other.attach)


@pytest.fixture
def other() -> Other:
    return Other()


@pytest.fixture
def exchange(other) -> Attached:
    return Attached(other)


def lent(exchange: Attached, names: str) -> list[np.ndarray]:
    arena = exchange.inner.lend(*FOUR, exchange.other.attach)
    places = {**arena.layout.inputs, **arena.layout.outputs}
    return [arena.view(places[name], "float32", (4,)) for name in names]


def test_lent_buffers_are_not_copied(exchange, other):
    a, b, y, z = lent(exchange, "abyz")
    a[:], b[:] = 1, 2
    header, copied = exchange.place({"a": a, "b": b}, {"y": y, "z": z})
    seen = other.sees(header["inputs"])
    assert (seen["a"].tolist(), seen["b"].tolist()) == ([1] * 4, [2] * 4)
    other.sees(header["outputs"])["z"][:] = 5
    assert (copied, exchange.take({"y": y, "z": z})) == (0, 0)
    assert z.tolist() == [5] * 4
    assert other.attached == ["lent"]


def test_other_arrays_are_copied_once_each_way(exchange, other):
    header, copied = exchange.place(
        {"a": np.arange(4, dtype="f4"), "b": np.arange(8, dtype="f4")[::-2]}, outputs := {"y": np.zeros(4, "f4")}
    )
    seen = other.sees(header["inputs"])
    assert (seen["a"].tolist(), seen["b"].tolist()) == ([0, 1, 2, 3], [7, 5, 3, 1])
    other.sees(header["outputs"])["y"][:] = 5
    assert (copied, exchange.take(outputs)) == (32, 16)
    assert outputs["y"].tolist() == [5] * 4


def test_call_with_other_arrays_leaves_lent_buffers_alone(exchange, other):
    a, b, y, z = lent(exchange, "abyz")
    for array in (a, b, y, z):
        array[:] = 3
    outputs = {"y": np.zeros(4, "f4"), "z": np.zeros(4, "f4")}
    header, _ = exchange.place({"a": np.ones(4, "f4"), "b": np.ones(4, "f4")}, outputs)
    for array in other.sees(header["outputs"]).values():
        array[:] = 9
    exchange.take(outputs)
    assert all(array.tolist() == [3] * 4 for array in (a, b, y, z))
    large = np.ones(4096, "f4")
    exchange.place({"a": large, "b": large}, {"y": large.copy()})
    assert exchange.place({"a": a, "b": b}, {"y": y, "z": z})[1] == 0


def test_inputs_in_each_others_buffers_arrive_right(exchange, other):
    a, b = lent(exchange, "ab")
    a[:], b[:] = 1, 2
    header, copied = exchange.place({"a": b, "b": a[::-1]}, None)
    seen = other.sees(header["inputs"])
    assert (seen["a"].tolist(), seen["b"].tolist(), copied) == ([2] * 4, [1] * 4, 32)
    assert (a.tolist(), b.tolist()) == ([1] * 4, [2] * 4)


def test_results_that_go_to_each_others_buffers_arrive_right(exchange, other):
    y, z = lent(exchange, "yz")
    header, _ = exchange.place({}, outputs := {"y": z, "z": y})
    seen = other.sees(header["outputs"])
    seen["y"][:], seen["z"][:] = 1, 2
    assert exchange.take(outputs) == 32
    assert (z.tolist(), y.tolist()) == ([1] * 4, [2] * 4)


def test_room_grows_with_what_comes_and_is_kept(exchange, other):
    for length in (4, 16, 4000, 4, 4096, 4097):
        header, _ = exchange.place({"a": np.full(length, length, "f4")}, None)
        assert other.sees(header["inputs"])["a"].tolist() == [length] * length
    assert other.attached == ["copies"] * 3


def test_results_find_room_once_their_size_is_known(exchange, other):
    exchange.place({"a": np.ones(4, "f4")}, None)
    found = exchange.results({"outputs": []}, {"y": np.ones(100, "f4")})
    assert found["y"].shape == (100,)
    exchange.place({"a": np.ones(4, "f4")}, None)
    assert len(other.attached) == 2
    told = [{"name": "y", "dtype": "<f4", "shape": [100], "offset": 64, "block": "copies"}]
    other.sees(told)["y"][:] = 7
    results = exchange.results({"outputs": told}, {})
    other.sees(told)["y"][:] = 8
    assert (results["y"] == 7).all()


@pytest.mark.parametrize("offset", [-64, 1 << 40, None])
def test_answer_that_points_outside_is_refused(exchange, offset):
    told = [{"name": "y", "dtype": "<f4", "shape": [100], "offset": offset, "block": "copies"}]
    with pytest.raises(ValueError, match="there is none"):
        exchange.results({"outputs": told}, {})
    exchange.place({"a": np.ones(4, "f4")}, None)
    with pytest.raises(ValueError, match="does not lie in a block"):
        exchange.results({"outputs": told}, {})


def test_refused_block_is_not_used():
    def refuse(*_: object) -> None:
        raise Unshared("not here")

    exchange = Exchange()
    for _ in range(2):
        with pytest.raises(Unshared, match="not here"):
            exchange.place({"a": np.ones(4, "f4")}, None, refuse)
        with pytest.raises(Unshared, match="not here"):
            exchange.lend(*FOUR, refuse)

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sanderling.model.cost import GraphCost, NodeCost
from sanderling.workshop.quantize.blocks import Block
from sanderling.workshop.quantize.path import Step, find_path
from sanderling.workshop.quantize.sensitivity import Sensitivity, TensorNoise

SPAN = (0.0, 1.0)


def block(name: str, inputs: tuple[str, ...], output: str, *, heavy: bool = True) -> Block:
    kind, weight = ("Conv", f"{name}_weight") if heavy else ("Add", "")
    return Block(name, kind, "", inputs, (), weight, (output,))


def noise(whole: float, **readers: float) -> TensorNoise:
    return TensorNoise(whole, readers, SPAN, "minmax")


def cost_of(**macs: int) -> GraphCost:
    return GraphCost(tuple(NodeCost(name, "Conv", count, 0, 1) for name, count in macs.items()), 0, {}, ())


CHAIN = [block("a", ("x",), "t"), block("b", ("t",), "u"), block("c", ("u",), "y")]
CHAIN_TENSORS = {
    "x": noise(1e-4, a=1e-4),
    "t": noise(1e-4, b=1e-4),
    "u": noise(1e-4, c=1e-4),
    "y": noise(1e-4),
}
EVEN = {"a": 100, "b": 100, "c": 100}


def path_of(tensors: dict[str, TensorNoise], weights: dict[str, float], macs: dict[str, int]) -> list[Step]:
    return find_path(CHAIN, Sensitivity(tensors, weights, 8), cost_of(**macs))


def test_block_with_the_noisiest_weight_goes_back_to_float_first():
    steps = path_of(CHAIN_TENSORS, {"a": 1e-5, "b": 0.5, "c": 1e-5}, EVEN)
    assert steps[1].float_blocks == {"b"}


def test_cheap_block_goes_before_a_dear_one_with_the_same_noise():
    steps = path_of(CHAIN_TENSORS, {"a": 0.1, "b": 0.1, "c": 0.0}, {"a": 100, "b": 9000, "c": 100})
    assert steps[1].float_blocks == {"a"}


def test_maker_and_reader_of_a_noisy_tensor_go_together():
    """Neither alone takes the noise away: the maker stores it in eight bits, or the reader rounds it."""
    steps = path_of(CHAIN_TENSORS | {"t": noise(0.5, b=0.5)}, dict.fromkeys(EVEN, 1e-6), EVEN)
    assert steps[1].float_blocks == {"a", "b"}
    assert steps[1].noise < 0.01


def test_first_step_has_all_the_noise_and_all_the_computation():
    steps = path_of(CHAIN_TENSORS, {"a": 0.1, "b": 0.2, "c": 0.3}, EVEN)
    assert steps[0].float_blocks == frozenset()
    assert steps[0].noise == pytest.approx(0.6 + 4e-4)
    assert steps[0].macs_int8_share == 1.0


def test_nodes_that_were_float_before_count_as_float():
    assert path_of(CHAIN_TENSORS, {}, EVEN | {"head": 300})[0].macs_int8_share == pytest.approx(0.5)


def test_graph_without_blocks_has_one_step():
    (step,) = find_path([], Sensitivity({}, {}, 0), cost_of(head=5))
    assert step == Step(frozenset(), 0.0, 0.0)


SHARES = st.floats(0, 1)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[Block], Sensitivity, GraphCost]:
    """Blocks over random earlier tensors, with any noises and costs."""
    blocks, tensors = [], ["x"]
    for index in range(draw(st.integers(1, 10))):
        heavy = draw(st.booleans())
        count = 1 if heavy else draw(st.integers(1, 3))
        inputs = tuple(draw(st.lists(st.sampled_from(tensors), min_size=count, max_size=count)))
        blocks.append(block(f"b{index}", inputs, f"t{index}", heavy=heavy))
        tensors.append(f"t{index}")
    noises = {
        name: noise(draw(SHARES), **{one.name: draw(SHARES) for one in blocks if name in one.inputs})
        for name in tensors
    }
    weights = {one.name: draw(SHARES) for one in blocks if one.weight}
    macs = {one.name: draw(st.integers(0, 1000)) for one in blocks}
    return blocks, Sensitivity(noises, weights, 8), cost_of(**macs, head=draw(st.integers(0, 1000)))


@settings(max_examples=150, deadline=None)
@given(graphs())
def test_path_leads_from_all_int8_to_all_float_by_nested_steps(graph):
    blocks, sensitivity, cost = graph
    steps = find_path(blocks, sensitivity, cost)
    assert steps[0].float_blocks == frozenset()
    assert steps[-1].float_blocks == {one.name for one in blocks}
    assert steps[-1].noise == 0
    assert steps[-1].macs_int8_share == 0
    assert len(steps) <= len(blocks) + 1
    for before, after in pairwise(steps):
        assert before.float_blocks < after.float_blocks
        assert after.noise <= before.noise + 1e-9
        assert after.macs_int8_share <= before.macs_int8_share
    assert steps == find_path(blocks, sensitivity, cost)

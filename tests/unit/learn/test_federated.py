import sys
from dataclasses import replace

import numpy as np
import pytest

from sanderling.core.errors import DataError, OptionError, UnavailableError
from sanderling.learn.federated import FederatedOptions, LocalTraining, join, options_of
from tests.learning_tasks import SHAPES, dataset


@pytest.fixture
def device(task, tmp_path, recorder):
    """Make devices, each with data of its own."""
    made = []

    def make(seed, count=60):
        np.savez(tmp_path / f"{seed}.npz", **dataset(count, seed=seed))
        options = FederatedOptions("", str(task), str(tmp_path / f"{seed}.npz"), batch=16, learning_rate=0.05, epochs=2)
        made.append(LocalTraining(options, recorder))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_rounds_with_the_mean_of_all_devices_learn(device):
    devices = [device(seed) for seed in (1, 2, 3)]
    arrays = devices[0].parameters()
    first = devices[0].evaluate(arrays)[0]

    for _ in range(4):
        answers = [each.fit(arrays) for each in devices]
        total = sum(count for _, count, _ in answers)
        arrays = [
            sum(count * own[index] for own, count, _ in answers).astype(np.float32) / np.float32(total)
            for index in range(len(arrays))
        ]

    loss, samples, told = devices[0].evaluate(arrays)
    assert loss < 0.6 * first
    assert samples == 60
    assert told["accuracy"] > 0.8
    assert devices[0].rounds.fits == 4


def test_each_round_has_an_order_and_an_optimizer_of_its_own(device):
    one = device(1)
    arrays = one.parameters()

    first, second = one.fit(arrays)[0], one.fit(arrays)[0]

    assert one.trainer.updates == 8
    assert not all(map(np.array_equal, first, second))
    assert all(np.allclose(mine, yours, atol=0.2) for mine, yours in zip(first, second, strict=True))


def test_parameters_come_in_the_order_of_the_task(device):
    assert [array.shape for array in device(1).parameters()] == list(SHAPES.values())


def test_parameters_of_another_task_are_refused(device):
    one = device(1)

    with pytest.raises(DataError, match="sent 1 arrays, the task has 2 parameters"):
        one.fit(one.parameters()[:1])


def test_configuration_of_a_node_is_read():
    found = options_of({"task": "t.sdl", "data": "d", "batch": 8, "partition-id": 3})

    assert (found.task, found.data, found.batch) == ("t.sdl", "d", 8)
    with pytest.raises(OptionError, match="has no 'data'"):
        options_of({"task": "t.sdl"})


def test_missing_flower_is_told_with_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr", None)
    monkeypatch.setattr("sanderling.learn.federated.find_spec", lambda _: None)

    with pytest.raises(UnavailableError, match="sanderling devices --install flower"):
        join(FederatedOptions("127.0.0.1:1", "t.sdl", "d"))


def test_settings_of_the_optimizer_are_read_and_wrong_certificates_refused(task, tmp_path):
    np.savez(tmp_path / "d.npz", **dataset(20))
    options = FederatedOptions("127.0.0.1:1", str(task), str(tmp_path / "d.npz"), optimizer="adamw:weight_decay=0.5")

    training = LocalTraining(options)
    try:
        assert training.trainer.settings()["weight_decay"] == 0.5
    finally:
        training.close()
    with pytest.raises(OptionError, match=r"none\.pem is no file"):
        join(replace(options, root_certificates=str(tmp_path / "none.pem")))

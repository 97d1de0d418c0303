import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from sanderling.core.errors import NotMetError, OutputError, WeightsError
from sanderling.learn import checkpoint as module
from sanderling.learn.checkpoint import best_path, read_checkpoint, remove_leftovers
from tests.learning_tasks import SHAPES, dataset, make_task


@pytest.fixture
def saved(new_trainer, tmp_path):
    trainer = new_trainer()
    trainer.step(dataset(16))
    trainer.save(tmp_path / "ck.safetensors")
    return trainer, tmp_path / "ck.safetensors"


def test_checkpoint_is_plain_safetensors_with_named_tensors(saved):
    trainer, path = saved

    tensors = load_file(path)

    assert tensors.keys() == {f"{prefix}.{name}" for prefix in ("param", "m", "v") for name in SHAPES}
    assert all(np.array_equal(tensors[f"param.{name}"], array) for name, array in trainer.parameters.items())


def test_checkpoint_is_read_as_it_was_written(saved):
    trainer, path = saved

    found = read_checkpoint(path, trainer.spec)

    assert found.progress.updates == 1
    assert found.progress.optimizer == "adamw"
    assert found.sums == {}
    assert all(np.array_equal(found.states["m"][name], array) for name, array in trainer.state.states["m"].items())


def test_file_and_folder_are_flushed_before_and_after_the_rename(saved, monkeypatch):
    trainer, path = saved
    seen = []
    flush = os.fsync

    def watched(number):
        seen.append((str(Path(f"/proc/self/fd/{number}").readlink()), path.stat().st_ino))
        flush(number)

    monkeypatch.setattr(module.os, "fsync", watched)
    old = path.stat().st_ino
    trainer.save(path)

    (file, before), (folder, after) = seen
    assert file.endswith("/ck.safetensors")
    assert file != str(path)
    assert folder == str(path.parent)
    assert before == old != after


def test_checkpoint_of_another_task_is_refused(saved, tmp_path, new_trainer):
    _, path = saved
    (tmp_path / "other").mkdir()
    other = new_trainer(make_task(tmp_path / "other", seed=4))

    with pytest.raises(
        WeightsError, match=r"is a checkpoint of another task \(.*give the task that it was trained with"
    ):
        other.load(path)


def test_checkpoint_of_another_optimizer_is_refused(saved, new_trainer):
    with pytest.raises(WeightsError, match="made with optimizer adamw, this trainer has sgd"):
        new_trainer(optimizer="sgd").load(saved[1])


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_file_that_was_cut_off_is_refused(saved, share):
    trainer, path = saved
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])

    with pytest.raises(WeightsError, match="is no readable safetensors file"):
        trainer.load(path)


def test_other_files_are_refused(saved, tmp_path):
    trainer, path = saved
    plain = tmp_path / "plain.safetensors"
    save_file(load_file(path), plain)
    with pytest.raises(WeightsError, match="is no checkpoint of a trainer"):
        trainer.load(plain)
    with pytest.raises(WeightsError, match="does not exist"):
        trainer.load(tmp_path / "none.safetensors")


def test_checkpoint_without_a_parameter_is_refused(saved):
    from safetensors import safe_open

    trainer, path = saved
    with safe_open(path, framework="numpy") as opened:
        metadata = opened.metadata()
    tensors = load_file(path)
    del tensors["m.fc.bias"]
    save_file(tensors, path, metadata)

    with pytest.raises(WeightsError, match=r"do not agree on 'm\.fc\.bias'"):
        trainer.load(path)


def test_parameters_that_are_not_finite_are_never_saved(saved):
    trainer, path = saved
    before = path.read_bytes()
    trainer.state.parameters["fc.bias"][0] = np.nan

    with pytest.raises(NotMetError, match=r"'fc\.bias' is not finite"):
        trainer.save(path)

    assert path.read_bytes() == before


def test_full_disk_keeps_the_older_checkpoint(saved, monkeypatch):
    """The library's own words for a full disk, which are no OSError."""
    import safetensors
    import safetensors.numpy

    trainer, path = saved
    before = path.read_bytes()

    def full(*_):
        raise safetensors.SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(safetensors.numpy, "save_file", full)
    with pytest.raises(OutputError, match=r"cannot write .*ck.safetensors: No space left on device; nothing was kept"):
        trainer.save(path)

    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir() if each.name.startswith(".")] == []


def test_what_killed_writers_left_is_removed(tmp_path):
    (tmp_path / ".ck.safetensors.abc").mkdir()
    (tmp_path / ".ck.safetensors.abc" / "ck.safetensors").write_bytes(b"half")
    (tmp_path / ".other.abc").mkdir()

    assert remove_leftovers(tmp_path / "ck.safetensors") == 1
    assert (tmp_path / ".other.abc").is_dir()
    assert not (tmp_path / ".ck.safetensors.abc").exists()


def test_best_parameters_lie_beside_the_checkpoint(tmp_path):
    assert best_path(tmp_path / "ck.safetensors") == tmp_path / "ck.best.safetensors"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damaged_checkpoint_is_refused_or_read_as_it_was(saved, data):
    """Any bytes changed anywhere: one clear error, or parameters of the right names, shapes and dtype."""
    trainer, path = saved
    whole = path.read_bytes()
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    broken = path.with_name("broken.safetensors")
    broken.write_bytes(bytes(damaged[: data.draw(st.integers(0, len(whole)))]))

    try:
        found = read_checkpoint(broken, trainer.spec)
    except WeightsError:
        return
    assert {name: array.shape for name, array in found.parameters.items()} == SHAPES

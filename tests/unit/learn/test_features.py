from dataclasses import replace

import numpy as np
import pytest

from sanderling.core.errors import OutputError
from sanderling.learn import features
from sanderling.learn.data import from_arrays
from sanderling.learn.features import cached_features
from sanderling.learn.fitting import FitOptions
from sanderling.learn.running import RunOptions, run
from sanderling.model.preprocessing import Preprocessing
from tests.learning_tasks import dataset, make_task, weights


@pytest.fixture
def trainer(new_trainer):
    return new_trainer(on_features=True)


def test_features_are_what_the_frozen_part_gives(trainer, recorder):
    data = from_arrays(trainer.spec, dataset(70))

    found = cached_features(trainer.task, data, recorder)

    expected = np.maximum(data.samples.inputs["x"] @ weights()[0], 0)
    assert np.allclose(found.features["hidden"], expected, atol=1e-5)
    batch = found.batch(np.array([5, 1]))
    assert np.allclose(batch["hidden"], expected[[5, 1]], atol=1e-5)
    assert batch["label"].tolist() == [2, 1]


def test_features_are_computed_once_for_the_same_data(trainer, recorder, monkeypatch):
    computed = []
    compute = features._compute
    monkeypatch.setattr(features, "_compute", lambda *given: computed.append(1) or compute(*given))
    data, other = (from_arrays(trainer.spec, dataset(40, seed=seed)) for seed in (1, 2))

    for each in (data, data, other, data):
        cached_features(trainer.task, each, recorder)

    assert len(computed) == 2
    assert [event.kind for event in recorder.events].count("features-reused") == 2


def test_features_of_other_preprocessing_are_computed_anew(trainer):
    """Pictures are hashed as they were read; what is made of them is the task's."""
    data = from_arrays(trainer.spec, dataset(4))
    kinds = (
        None,
        *(Preprocessing(height=8, width=8, resize="stretch", mean=(mean, mean, mean)) for mean in (0.0, 0.5)),
    )
    keys = {
        features._key(
            trainer.task, trainer.spec.features, replace(data, samples=replace(data.samples, preprocessing=p))
        )
        for p in kinds
    }
    assert len(keys) == 3


def test_training_on_features_is_training(new_trainer, trainer):
    plain = new_trainer()
    data = from_arrays(plain.spec, dataset(50))

    for each in (plain, trainer):
        each.fit(data, epochs=3, batch=10)

    for name, array in plain.parameters.items():
        assert np.allclose(array, trainer.parameters[name], rtol=1e-4, atol=1e-5)
    assert trainer.evaluate({"hidden": np.ones((4, 5), np.float32), "label": np.arange(4) % 3}).samples == 4


def test_fixed_batch_is_filled_up_and_cut(tmp_path, new_trainer, recorder):
    trainer = new_trainer(make_task(tmp_path, batch=16), on_features=True)
    data = from_arrays(trainer.spec, dataset(50))

    found = cached_features(trainer.task, data, recorder)

    assert np.allclose(found.features["hidden"], np.maximum(data.samples.inputs["x"] @ weights()[0], 0), atol=1e-5)


def test_failure_leaves_nothing_in_the_cache(trainer, recorder, cache, monkeypatch):
    data = from_arrays(trainer.spec, dataset(70))

    def full(*_):
        raise OSError(28, "No space left on device", str(cache))

    monkeypatch.setattr(features.os, "fsync", full)
    with pytest.raises(OutputError, match="No space left on device"):
        cached_features(trainer.task, data, recorder)

    assert list((cache / "features").iterdir()) == []


@pytest.mark.parametrize(
    ("asked", "epochs", "used"),
    [(None, 1, False), (None, 2, True), (False, 5, False), (True, 1, True)],
)
def test_features_are_used_where_they_pay_or_are_asked_for(task, tmp_path, recorder, asked, epochs, used):
    np.savez(tmp_path / "data.npz", **dataset(30))

    run(task, tmp_path / "data.npz", RunOptions(features=asked), FitOptions(epochs=epochs), recorder)

    assert ("features-cached" in [event.kind for event in recorder.events]) is used

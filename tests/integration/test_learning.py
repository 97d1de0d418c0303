"""A task from PyTorch to a trained package, through the public functions."""

import numpy as np
import pytest

import sanderling
from sanderling.core.errors import ModelError, NotMetError, OptionError, WeightsError
from sanderling.learn import Trainer
from sanderling.model.package import Package
from sanderling.workshop.learning import proof

INPUT = {"inputs": ["x=1,3,4"], "loss": "cross_entropy"}


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    path = tmp_path_factory.mktemp("task") / "mlp.sdl"
    sanderling.learn_prepare("tests.learning_modules:mlp", path, trainable="lora:r=2,head", **INPUT)
    return path


@pytest.fixture(scope="module")
def checkpoint(task):
    generator = np.random.default_rng(0)
    path = task.with_name("trained.safetensors")
    batch = {"x": generator.standard_normal((16, 3, 4), np.float32), "label": generator.integers(0, 5, 16)}
    with Trainer(task, learning_rate=1e-2) as trainer:
        losses = [trainer.step(batch) for _ in range(20)]
        trainer.save(path)
        scores = trainer.evaluate(batch)
    assert losses[-1] < 0.8 * losses[0]
    return path, batch, scores


def test_a_task_infers_and_is_verified_with_its_golden_gradients(task):
    assert "golden gradients" in {check.name for check in sanderling.verify(task).checks}
    assert sanderling.verify(task).passed
    with sanderling.load(task) as session:
        assert session.run(np.zeros((1, 3, 4), np.float32))
    assert sanderling.inspect(task).learning.trainable == "lora:r=2,head"


def test_what_was_learned_is_in_the_package_that_apply_builds(task, checkpoint, tmp_path):
    path, batch, scores = checkpoint
    applied = sanderling.learn_apply(task, path, tmp_path / "adapted.sdl", precision="fp32", repeats=3)
    assert applied.step == 20
    assert applied.folded == ("1",)
    with sanderling.load(tmp_path / "adapted.sdl") as session:
        answers = [next(iter(session.run(x[None]).values()))[0].argmax() for x in batch["x"]]
    assert np.isclose(np.mean(answers == batch["label"]), scores.accuracy)
    assert sanderling.verify(tmp_path / "adapted.sdl").passed


def test_a_checkpoint_of_another_task_is_refused(checkpoint, tmp_path):
    other = tmp_path / "other.sdl"
    sanderling.learn_prepare("tests.learning_modules:mlp", other, trainable="head", **INPUT)
    with pytest.raises(WeightsError, match="another task"):
        sanderling.learn_apply(other, checkpoint[0], tmp_path / "adapted.sdl")
    assert not (tmp_path / "adapted.sdl").exists()


def test_operator_without_a_backward_rule_is_named_at_prepare_and_nothing_is_written(tmp_path):
    with pytest.raises(ModelError, match="no gradient is known here for Selu"):
        sanderling.learn_prepare("tests.learning_modules:selu", tmp_path / "task.sdl", trainable="full", **INPUT)
    assert not list(tmp_path.iterdir())
    sanderling.learn_prepare("tests.learning_modules:selu", tmp_path / "task.sdl", trainable="head", **INPUT)
    assert Package.open(tmp_path / "task.sdl").manifest.learning.features is not None


def test_wrong_gradients_are_no_task(tmp_path, monkeypatch):
    true = proof.true_gradients

    def wrong(*arguments):
        found = true(*arguments)
        return found | {"grad.4.bias": 1.001 * found["grad.4.bias"]}

    monkeypatch.setattr(proof, "true_gradients", wrong)
    with pytest.raises(NotMetError, match=r"gradients are not PyTorch's: 'acc.out.4.bias' differs by 1.0e-03"):
        sanderling.learn_prepare("tests.learning_modules:mlp", tmp_path / "task.sdl", **INPUT)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"inputs": ["label=1,3,4"]}, "names that begin with label"),
        ({"inputs": []}, "a task needs --input"),
        ({"trainable": "lora:r=0"}, "rank must be at least 1"),
        ({"loss": "contrastive", "inputs": ["x=1,3,4"], "batch": 0}, "--batch 0 is out of range"),
    ],
)
def test_wrong_options_are_refused(tmp_path, options, told):
    with pytest.raises(OptionError, match=told):
        sanderling.learn_prepare("tests.learning_modules:mlp", tmp_path / "task.sdl", **{**INPUT, **options})
    assert not list(tmp_path.iterdir())


def test_a_task_may_be_a_zip_with_a_fixed_batch(tmp_path):
    path = tmp_path / "task.sdl.zip"
    result = sanderling.learn_prepare("tests.learning_modules:mlp", path, batch=4, trainable="full", **INPUT)
    assert result.manifest.learning.label.shape == (4,)
    assert result.manifest.learning.private.batch == 4
    with Trainer(path) as trainer:
        assert trainer.step({"x": np.ones((4, 3, 4), np.float32), "label": np.arange(4)}) > 0

from dataclasses import replace

import numpy as np
import pytest

from sanderling.core.errors import (
    DataError,
    EngineError,
    NotMetError,
    OptionError,
    PackageError,
    TensorError,
    WeightsError,
)
from sanderling.learn.checkpoint import Checkpoint, write_checkpoint
from sanderling.learn.data import from_arrays
from sanderling.learn.evaluation import count_right
from sanderling.model.learning import LossSpec
from sanderling.model.package import Package
from tests.learning_tasks import SHAPES, Nodes, dataset, gradients, make_task
from tests.models import make_model, tensor


def rows(data, begin, end):
    return {name: array[begin:end] for name, array in data.items()}


def adamw(parameters, sums, weight, moments, step, *, rate, decay=0.01):
    """One update of AdamW by its paper (Loshchilov and Hutter, 2019), in float64."""
    made = {}
    for name, value in parameters.items():
        gradient = sums[name] / weight
        m = moments["m"][name] = 0.9 * moments["m"][name] + 0.1 * gradient
        v = moments["v"][name] = 0.999 * moments["v"][name] + 0.001 * gradient**2
        way = (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
        made[name] = value - rate * (way + decay * value)
    return made


def test_steps_are_those_of_the_formula(new_trainer):
    trainer, data = new_trainer(), dataset(40)
    parameters = {name: array.astype(np.float64) for name, array in trainer.parameters.items()}
    moments = {kind: {name: np.zeros(shape) for name, shape in SHAPES.items()} for kind in "mv"}

    for step, begin in enumerate(range(0, 40, 10), start=1):
        batch = rows(data, begin, begin + 10)
        loss, weight, sums = gradients(parameters, batch["x"], batch["label"])
        assert trainer.step(batch) == pytest.approx(loss, rel=1e-5)
        parameters = adamw(parameters, sums, weight, moments, step, rate=0.05)

    for name, array in trainer.parameters.items():
        assert np.allclose(array, parameters[name], rtol=1e-4, atol=1e-5)
    assert trainer.updates == 4


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("sizes", [(16, 16, 16, 16), (30, 1, 32, 1)], ids=["equal", "unequal"])
def test_accumulation_equals_the_big_batch(new_trainer, optimizer, sizes):
    data = dataset(64)
    whole, parts = (new_trainer(optimizer=optimizer, accumulate=count) for count in (1, 4))

    whole.step(data)
    begin = 0
    for size in sizes:
        assert parts.updates == 0
        parts.step(rows(data, begin, begin + size))
        begin += size

    assert parts.updates == whole.updates == 1
    for name, array in whole.parameters.items():
        assert np.allclose(array, parts.parameters[name], rtol=1e-5, atol=1e-6)
    assert parts.last_norm == pytest.approx(whole.last_norm, rel=1e-5)


def test_clipping_bounds_what_an_update_moves(new_trainer):
    free, clipped = (new_trainer(optimizer="sgd", clip_norm=norm) for norm in (None, 1e-3))
    before = free.parameters

    for trainer in (free, clipped):
        trainer.step(dataset(32))

    moved = np.sqrt(sum(np.sum((clipped.parameters[name] - before[name]) ** 2) for name in SHAPES))
    assert moved == pytest.approx(0.05 * 1e-3, rel=1e-2)
    assert clipped.last_norm == pytest.approx(free.last_norm)
    assert free.last_norm > 0.1


def test_evaluation_is_loss_and_accuracy_of_the_current_parameters(new_trainer):
    trainer, data = new_trainer(), dataset(70)
    loss, _, _ = gradients(trainer.parameters, data["x"], data["label"])

    first = trainer.evaluate(data)
    for _ in range(60):
        trainer.step(data)
    last = trainer.evaluate(data)

    assert first.loss == pytest.approx(loss, rel=1e-5)
    assert first.samples == last.samples == 70
    assert last.loss < 0.5 * first.loss
    assert last.accuracy > 0.9


def test_right_answers_of_pictures_are_counted_over_classes_where_all_axes_are_as_long():
    labels = np.random.default_rng(0).integers(0, 4, (2, 4, 4))
    scores = np.moveaxis(np.eye(4, dtype=np.float32)[labels], -1, 1)
    assert count_right(LossSpec(kind="cross_entropy"), scores, labels) == (32, 32)


def test_optimizer_that_begins_anew_counts_anew(new_trainer, tmp_path):
    """With the old count, AdamW would take its empty means for settled ones, and step three times too far."""
    data = dataset(30)
    before = new_trainer()
    for _ in range(50):
        before.step(data)
    parameters = before.parameters
    held = Checkpoint(parameters, {}, {}, before._standing(None))
    write_checkpoint(tmp_path / "best.safetensors", held)
    fresh, resumed, again = (new_trainer() for _ in range(3))

    fresh.replace_parameters(parameters)
    resumed.load(tmp_path / "best.safetensors")
    for trainer in (fresh, resumed):
        trainer.step(data)
    resumed.save(tmp_path / "ck.safetensors")
    again.load(tmp_path / "ck.safetensors")
    for trainer in (fresh, resumed, again):
        trainer.step(data)

    assert resumed.updates == again.updates == 52
    for name, array in fresh.parameters.items():
        assert np.array_equal(array, resumed.parameters[name])
        assert np.array_equal(array, again.parameters[name])


def test_samples_that_are_compared_with_each_other_meet_other_classes(new_trainer, monkeypatch):
    trainer = new_trainer()
    data = dataset(192)
    order = np.argsort(data["label"], kind="stable")  # as files in folders of their classes
    read = from_arrays(trainer.spec, {name: array[order] for name, array in data.items()})
    loss = trainer.spec.loss.model_copy(update={"separable": False})
    trainer.task = replace(trainer.task, spec=trainer.spec.model_copy(update={"loss": loss}))
    seen = []
    batch = type(read).batch
    monkeypatch.setattr(type(read), "batch", lambda self, rows: seen.append(self.labels[rows]) or batch(self, rows))

    trainer.evaluate(read)
    first = seen.copy()
    trainer.evaluate(read)

    assert [set(labels) for labels in first] == [{0, 1, 2}] * 3
    assert all(np.array_equal(one, other) for one, other in zip(first, seen[3:], strict=True))


def test_saved_state_goes_on_bit_by_bit_in_the_middle_of_an_update(new_trainer, tmp_path):
    data, options = dataset(60), {"accumulate": 3, "schedule": "cosine:steps=8"}
    one = new_trainer(**options)
    for begin in range(0, 40, 10):
        one.step(rows(data, begin, begin + 10))
    one.save(tmp_path / "ck.safetensors")

    other = new_trainer(**options)
    other.load(tmp_path / "ck.safetensors")
    for trainer in (one, other):
        for begin in range(40, 60, 10):
            trainer.step(rows(data, begin, begin + 10))

    assert other.updates == one.updates == 2
    for name, array in one.parameters.items():
        assert array.tobytes() == other.parameters[name].tobytes()
    assert other.learning_rate == one.learning_rate < 0.05


def test_not_finite_loss_stops_and_leaves_the_parameters(new_trainer):
    trainer, data = new_trainer(), dataset(12)
    trainer.step(data)
    before = trainer.parameters
    data["x"][3] = np.inf

    with pytest.raises(NotMetError, match=r"the loss is (nan|inf) at update 2"):
        trainer.step(data)

    assert all(np.array_equal(before[name], array) for name, array in trainer.parameters.items())
    trainer.step(dataset(12))
    assert trainer.updates == 2


def test_gradients_that_overflow_stop_and_leave_the_parameters(new_trainer):
    trainer, data = new_trainer(optimizer="sgd"), dataset(12)
    before = trainer.parameters
    data["x"] *= np.float32(1e25)  # the loss is finite, the square of the gradient is not

    with pytest.raises(NotMetError, match=r"is (nan|inf)"):
        trainer.step(data)

    assert all(np.array_equal(before[name], array) for name, array in trainer.parameters.items())


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"label": np.array([0, 3, 1, 1])}, DataError, "label 3 is out of range: the task has 3 classes (0…2)"),
        ({"label": np.array([0, -1, 1, 1])}, DataError, "label -1 is out of range"),
        ({"label": np.ones(4, np.float32)}, DataError, "takes class numbers"),
        ({"label": np.ones((4, 1), np.int64)}, DataError, "labels have shape [4, 1]"),
        ({"label": np.ones(3, np.int64)}, OptionError, "inputs and labels have 3, 4 rows"),
        ({"x": np.ones((4, 5), np.float32)}, TensorError, "axis 1 must be 6"),
        ({"x": np.ones((4, 6))}, TensorError, "has dtype float64"),
        ({"y": np.ones(4)}, TensorError, "unknown input ['y']"),
        ({"label": None}, OptionError, "the batch has no 'label'"),
    ],
)
def test_batch_that_does_not_fit_is_refused(new_trainer, change, error, says):
    batch = {**dataset(4), **change}
    batch = {name: array for name, array in batch.items() if array is not None}

    with pytest.raises(error) as refused:
        new_trainer().step(batch)

    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"optimizer": "adam", "learning_rate": 0.1}, "no optimizer 'adam': available are adamw, sgd"),
        ({"learning_rate": 0.0}, "learning rate 0 must be above 0"),
        ({"learning_rate": float("nan")}, "must be above 0"),
        ({"accumulate": 0}, "accumulate is 0"),
        ({"clip_norm": 0.0}, "clip_norm is 0"),
        ({"settings": {"momentum": 0.9}}, "optimizer adamw has no setting 'momentum': available are beta1"),
        ({"settings": {"beta2": 1.0}}, "optimizer adamw: beta2 is 1: expected 0 to below 1"),
        ({"settings": {"eps": -1.0}}, "optimizer adamw: eps is -1: expected 0 or more"),
        ({"optimizer": "sgd", "settings": {"momentum": -3.0}}, "optimizer sgd: momentum is -3"),
        ({"engine": "tensorrt"}, "unknown engine 'tensorrt'"),
    ],
)
def test_wrong_option_is_refused(new_trainer, options, says):
    with pytest.raises(OptionError) as refused:
        new_trainer(**options)
    assert says in str(refused.value)


def test_cosine_without_a_length_is_refused_where_no_epochs_give_it_one(new_trainer):
    """Its rate would be 0 from the second update on."""
    with pytest.raises(OptionError, match="cosine:steps=N"):
        new_trainer(schedule="cosine").step(dataset(4))


def test_package_that_only_infers_is_refused(tmp_path, new_trainer):
    from sanderling.model.package import rewrite_manifest

    path = make_task(tmp_path)
    package = Package.open(path)
    rewrite_manifest(package, package.manifest.model_copy(update={"learning": None}), path)

    with pytest.raises(PackageError, match="cannot be trained: make a task with sanderling learn prepare"):
        new_trainer(path)


def test_task_of_an_older_version_is_refused(tmp_path, new_trainer, monkeypatch):
    add = Nodes()
    add("Identity", "param.fc.weight", to="param.out.fc.weight")
    shape = SHAPES["fc.weight"]
    older = make_model(
        add.nodes, [tensor("param.fc.weight", shape)], [tensor("param.out.fc.weight", shape)], add.constants
    )
    monkeypatch.setattr("tests.learning_tasks._adamw", lambda: older)

    with pytest.raises(PackageError, match=r"adamw\.onnx has no input 'param'.*prepare the task again"):
        new_trainer(make_task(tmp_path))


def test_other_parameters_replace_all_or_nothing(new_trainer):
    trainer = new_trainer()
    other = {name: array + 1 for name, array in trainer.parameters.items()}
    trainer.replace_parameters(other)
    assert all(np.array_equal(other[name], array) for name, array in trainer.parameters.items())

    for wrong in (
        {"fc.weight": other["fc.weight"]},
        {**other, "fc.bias": np.zeros(4, np.float32)},
        {**other, "fc.bias": other["fc.bias"] * np.nan},
    ):
        with pytest.raises(WeightsError):
            trainer.replace_parameters(wrong)
    assert all(np.array_equal(other[name], array) for name, array in trainer.parameters.items())


def test_closed_trainer_says_so(new_trainer):
    trainer = new_trainer()
    trainer.close()
    trainer.close()

    with pytest.raises(EngineError, match="the trainer is closed"):
        trainer.step(dataset(4))


def test_what_was_frozen_is_told(tmp_path, new_trainer, recorder):
    new_trainer(make_task(tmp_path, notes=("dropout of 0.1 is off",)))

    assert [event.reason for event in recorder.events if event.kind == "frozen"] == ["dropout of 0.1 is off"]


def test_trainer_is_found_at_the_root_of_the_package():
    import sanderling
    from sanderling.learn.trainer import Trainer

    assert sanderling.learn.Trainer is Trainer

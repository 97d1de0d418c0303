import numpy as np
import pytest

from sanderling.core.errors import DataError, NotMetError, OptionError
from sanderling.learn.checkpoint import best_path, read_checkpoint
from sanderling.learn.data import from_arrays
from sanderling.learn.gates import Open
from tests.learning_tasks import dataset, make_task

PLAN = {"epochs": 4, "batch": 7, "save_every": 1}
OPTIONS = {"accumulate": 3, "schedule": "cosine:warmup=2", "seed": 5}


class Killed(Exception):
    """Stands for the end of a process."""


class KillsAt(Open):
    """Ends training before its nth step."""

    def __init__(self, step):
        self.left = step

    def take(self, step, before_pause=None):
        if not self.left:
            raise Killed
        self.left -= 1
        super().take(step, before_pause)


@pytest.fixture
def data(new_trainer):
    return from_arrays(new_trainer().spec, dataset(50))


def same_bits(one, other):
    return all(one[name].tobytes() == other[name].tobytes() for name in one)


@pytest.mark.parametrize("step", [0, 1, 3, 4, 9, 10, 11, 20, 37])
def test_training_that_was_killed_goes_on_bit_by_bit(new_trainer, data, tmp_path, step):
    path = tmp_path / "ck.safetensors"
    whole = new_trainer(**OPTIONS)
    expected = whole.fit(data, **PLAN)

    with pytest.raises(Killed):
        new_trainer(**OPTIONS).fit(data, checkpoint=path, gate=KillsAt(step), **PLAN)
    again = new_trainer(**OPTIONS)
    result = again.fit(data, checkpoint=path, **PLAN)

    assert result.updates == expected.updates == 4 * 3
    assert same_bits(whole.parameters, again.parameters)
    for kind in ("m", "v"):
        assert same_bits(whole.state.states[kind], again.state.states[kind])


def test_pause_in_the_middle_of_an_update_saves_and_goes_on_bit_by_bit(new_trainer, data, tmp_path):
    path = tmp_path / "ck.safetensors"
    whole = new_trainer(**OPTIONS)
    whole.fit(data, **PLAN)

    for step in (2, 3, 4):  # before, at and after the micro-batch that completes an update

        class PausesAndDies(KillsAt):
            def take(self, step, before_pause=None):
                if not self.left:
                    before_pause()
                super().take(step, before_pause)

        with pytest.raises(Killed):
            new_trainer(**OPTIONS).fit(data, checkpoint=path, gate=PausesAndDies(step), **{**PLAN, "save_every": 0})
    again = new_trainer(**OPTIONS)
    again.fit(data, checkpoint=path, **PLAN)

    assert same_bits(whole.parameters, again.parameters)


def test_epoch_of_which_nothing_was_left_has_no_loss(new_trainer, data, tmp_path):
    path = tmp_path / "ck.safetensors"
    evaluation = from_arrays(new_trainer().spec, dataset(6))
    options = {"batch": 10, "save_every": 5, "checkpoint": path, "evaluation": evaluation}
    with pytest.raises(Killed):  # after the last update of the first epoch, in its evaluation
        new_trainer().fit(data, epochs=2, gate=KillsAt(10), **options)

    result = new_trainer().fit(data, epochs=2, **options)

    assert result.losses[0] is None
    assert result.losses[1] > 0
    assert len(result.evaluations) == 2


def test_finished_training_is_not_repeated_and_more_epochs_go_on(new_trainer, data, tmp_path):
    path = tmp_path / "ck.safetensors"
    new_trainer().fit(data, epochs=2, batch=10, checkpoint=path)
    before = path.read_bytes()

    same = new_trainer().fit(data, epochs=2, batch=10, checkpoint=path)
    more = new_trainer().fit(data, epochs=3, batch=10, checkpoint=path)

    assert (same.losses, same.resumed_from) == ((), 10)
    assert (len(more.losses), more.updates, more.resumed_from) == (1, 15, 10)
    assert path.read_bytes() != before


def test_epochs_see_every_sample_in_another_order(new_trainer, data, monkeypatch):
    trainer = new_trainer()
    seen = []
    names = type(data).batch
    monkeypatch.setattr(type(data), "batch", lambda self, indices: seen.append(indices) or names(self, indices))

    trainer.fit(data, epochs=2, batch=20)

    first, second = np.concatenate(seen[:3]), np.concatenate(seen[3:])
    assert sorted(first) == sorted(second) == list(range(50))
    assert first.tolist() != second.tolist()


def test_not_finite_loss_names_the_batch_and_keeps_the_last_good_checkpoint(new_trainer, data, tmp_path):
    path = tmp_path / "ck.safetensors"
    data.samples.inputs["x"][31] = np.float32(3e38)  # finite, but not what it becomes

    with pytest.raises(NotMetError) as stopped:
        new_trainer().fit(data, epochs=3, batch=5, checkpoint=path, save_every=1)

    message = str(stopped.value)
    assert "the loss is" in message
    assert "row 31" in message
    assert f"is {path}; lower the learning rate" in message
    kept = read_checkpoint(path, new_trainer().spec)
    assert f"the last good checkpoint, of update {kept.progress.updates}," in message
    assert all(np.isfinite(array).all() for array in kept.parameters.values())


def test_data_that_changed_is_refused_or_begins_anew_when_asked(new_trainer, data, tmp_path, recorder):
    path = tmp_path / "ck.safetensors"
    first = new_trainer()
    first.fit(data, epochs=2, batch=10, checkpoint=path)
    data.samples.inputs["x"][0] += 1
    changed = data.pick(np.arange(50))

    with pytest.raises(DataError, match=r"the data has changed since .* \(50 samples then, 50 now\).*--new-data"):
        new_trainer().fit(changed, epochs=3, batch=10, checkpoint=path)
    again = new_trainer()
    result = again.fit(changed, epochs=1, batch=10, checkpoint=path, new_data=True)

    assert (result.updates, result.epochs) == (5, 1)
    assert not same_bits(first.parameters, again.parameters)
    assert [event.kind for event in recorder.events].count("data-changed") == 1


def test_best_parameters_are_kept_and_training_stops_without_gain(new_trainer, data, tmp_path, recorder):
    path = tmp_path / "ck.safetensors"
    evaluation = from_arrays(new_trainer().spec, dataset(60, seed=9, noise=1.5))
    trainer = new_trainer(learning_rate=0.5)

    result = trainer.fit(data, epochs=60, batch=10, evaluation=evaluation, patience=3, checkpoint=path)

    assert result.stopped_early
    assert result.epochs < 60
    losses = [found.loss for found in result.evaluations]
    assert result.best.loss == min(losses)
    assert result.best.epoch == 1 + losses.index(min(losses)) == result.epochs - 3
    best = new_trainer()
    best.load(best_path(path))
    assert best.evaluate(evaluation).loss == pytest.approx(min(losses))
    assert "stopped-early" in [event.kind for event in recorder.events]
    assert (
        new_trainer(learning_rate=0.5)
        .fit(data, epochs=60, batch=10, evaluation=evaluation, patience=3, checkpoint=path)
        .losses
        == ()
    )


def test_best_is_looked_for_anew_on_other_data_to_evaluate(new_trainer, data, tmp_path, recorder):
    path = tmp_path / "ck.safetensors"
    easy, hard = (from_arrays(new_trainer().spec, dataset(60, seed=9, noise=noise)) for noise in (0.1, 3.0))
    first = new_trainer().fit(data, epochs=2, batch=10, evaluation=easy, checkpoint=path)

    second = new_trainer().fit(data, epochs=3, batch=10, evaluation=hard, checkpoint=path)

    assert second.best.loss == second.evaluations[0].loss > first.best.loss
    assert [event.kind for event in recorder.events].count("evaluation-changed") == 1
    assert read_checkpoint(best_path(path), new_trainer().spec).progress.updates == second.updates


def test_epoch_that_is_repeated_uses_no_gradient_twice(new_trainer, data, tmp_path):
    path = tmp_path / "ck.safetensors"

    class PausesAndDies(KillsAt):
        def take(self, step, before_pause=None):
            if not self.left:
                before_pause()
            super().take(step, before_pause)

    with pytest.raises(Killed):
        new_trainer(accumulate=3).fit(data, epochs=1, batch=7, checkpoint=path, gate=PausesAndDies(2))
    fresh, again = new_trainer(accumulate=3, seed=1), new_trainer(accumulate=3, seed=1)
    fresh.fit(data, epochs=1, batch=7)
    again.fit(data, epochs=1, batch=7, checkpoint=path)

    assert same_bits(fresh.parameters, again.parameters)


def test_held_out_samples_are_never_trained_on_and_stay_the_same(new_trainer, data, monkeypatch):
    picked = []
    pick = type(data).pick
    monkeypatch.setattr(type(data), "pick", lambda self, indices: picked.append(set(indices)) or pick(self, indices))

    for seed in (0, 1):
        new_trainer(seed=seed).fit(data, holdout=0.2, batch=10)

    assert len(picked[1]) == 10
    assert picked[0] & picked[1] == set()
    assert picked[:2] == picked[2:]


def test_settings_that_changed_are_an_event(new_trainer, data, tmp_path, recorder):
    path = tmp_path / "ck.safetensors"
    new_trainer().fit(data, epochs=1, batch=10, checkpoint=path)

    new_trainer(learning_rate=0.01, seed=3).fit(data, epochs=2, batch=10, checkpoint=path)

    event = next(event for event in recorder.events if event.kind == "settings-changed")
    assert "learning_rate, seed" in event.reason


def test_parameters_saved_by_hand_begin_all_epochs(new_trainer, data, tmp_path, recorder):
    trainer = new_trainer()
    trainer.step(dataset(10))
    trainer.save(tmp_path / "ck.safetensors")

    result = new_trainer().fit(data, epochs=1, batch=25, checkpoint=tmp_path / "ck.safetensors")

    assert (result.resumed_from, result.updates) == (1, 3)
    assert "epochs-begin" in [event.kind for event in recorder.events]


def test_graph_of_fixed_batch_takes_whole_ones(tmp_path, new_trainer, recorder):
    trainer = new_trainer(make_task(tmp_path, batch=8))
    data = from_arrays(trainer.spec, dataset(50))

    result = trainer.fit(data, epochs=2, batch=32)

    assert result.updates == 2 * 6
    assert "batch-fixed" in [event.kind for event in recorder.events]
    assert trainer.evaluate(dataset(20)).samples == 16
    with pytest.raises(DataError, match="too few to evaluate"):
        trainer.evaluate(dataset(7))


def test_fewer_samples_than_a_fixed_batch_are_refused(tmp_path, new_trainer):
    trainer = new_trainer(make_task(tmp_path, batch=64))

    with pytest.raises(DataError, match="50 samples are fewer than the 64 that the task takes at once"):
        trainer.fit(from_arrays(trainer.spec, dataset(50)))


def test_every_step_goes_through_the_gate(new_trainer, data):
    """Features, gradients, updates and evaluations: a policy can hold back each of them."""

    class Counts(Open):
        steps = 0

        def take(self, step, before_pause=None):
            self.steps += 1
            super().take(step, before_pause)

    gate = Counts()
    new_trainer(on_features=True).fit(data, epochs=2, batch=10, holdout=0.2, gate=gate)

    features = 2  # batches of 32 of 50 samples
    assert gate.steps == features + 2 * (4 + 4 + 1)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"epochs": 0}, "at least 1"),
        ({"batch": 0}, "at least 1"),
        ({"holdout": 1.0}, "holdout is 1"),
        ({"patience": 2}, "needs data to evaluate on: give --eval DATA or --holdout 0.1"),
        ({"evaluation": "unread.npz", "holdout": 0.2}, "--eval and --holdout both say"),
        ({"checkpoint": "/nowhere/ck.safetensors"}, "/nowhere is no folder"),
    ],
)
def test_wrong_option_is_refused(new_trainer, data, options, says):
    with pytest.raises(OptionError) as refused:
        new_trainer().fit(data, **options)
    assert says in str(refused.value)

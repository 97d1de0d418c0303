import numpy as np
import pytest

from sanderling.core.errors import DataError, OptionError, UnavailableError
from sanderling.learn import privacy
from sanderling.learn.data import from_arrays
from sanderling.learn.gates import Open
from sanderling.learn.privacy import PrivacyTarget, Spent, noise, parse_privacy
from tests.learning_tasks import dataset

needs_accountant = pytest.mark.usefixtures("accountant")
TARGET = "epsilon=8,delta=1e-4,clip=0.5"


@pytest.fixture
def accountant():
    pytest.importorskip("dp_accounting")


@pytest.fixture
def data(new_trainer):
    return from_arrays(new_trainer().spec, dataset(120))


def test_target_is_read():
    assert parse_privacy(TARGET) == PrivacyTarget(8.0, 1e-4, 0.5)
    assert parse_privacy("epsilon=1,delta=1e-5").clip_norm == 1.0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("epsilon=8", "has no delta"),
        ("delta=1e-5", "has no epsilon"),
        ("epsilon=0,delta=1e-5", "must be above 0"),
        ("epsilon=1,delta=1", "delta between 0 and 1"),
        ("epsilon=1,delta=1e-5,clip=-1", "must be above 0"),
        ("eps=1,delta=1e-5", "'eps=1' is unknown"),
    ],
)
def test_wrong_target_is_refused(text, says):
    with pytest.raises(OptionError) as refused:
        parse_privacy(text)
    assert says in str(refused.value)


def test_noise_is_normal_and_never_comes_again():
    first, second = (noise({"a": (200, 100)}, 2.0)["a"] for _ in range(2))

    assert first.dtype == np.float32
    assert abs(first.mean()) < 0.1  # standard error 0.014
    assert first.std() == pytest.approx(2.0, rel=0.03)
    assert abs(np.mean((first / 2.0) ** 4) - 3.0) < 0.3  # of a normal
    assert not np.array_equal(first, second)
    assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.05


def test_missing_accountant_is_told_with_the_command(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "dp_accounting", None)
    with pytest.raises(UnavailableError, match=r"pip install 'sanderling\[privacy\]'"):
        privacy.require_accountant()


@needs_accountant
def test_epsilon_grows_with_steps_and_falls_with_noise():
    few, many = (privacy.epsilon_of([Spent(0.01, 1.0, steps)], 1e-5) for steps in (100, 1000))

    assert 0 < few < many
    assert privacy.epsilon_of([Spent(0.01, 2.0, 1000)], 1e-5) < many
    assert privacy.epsilon_of([], 1e-5) == 0.0
    assert privacy.epsilon_of([Spent(0.01, 1.0, 500)] * 2, 1e-5) == pytest.approx(many, rel=1e-3)


@needs_accountant
def test_epsilon_of_one_step_without_sampling_is_that_of_the_normal_mechanism():
    """Balle and Wang (ICML 2018), theorem 8: delta at epsilon of noise sigma, by the normal distribution alone."""
    from statistics import NormalDist

    sigma, delta = 1.5, 1e-5
    epsilon = privacy.epsilon_of([Spent(1.0, sigma, 1)], delta)
    phi = NormalDist().cdf
    exact = phi(0.5 / sigma - epsilon * sigma) - np.exp(epsilon) * phi(-0.5 / sigma - epsilon * sigma)

    assert exact == pytest.approx(delta, rel=0.02)


@needs_accountant
def test_noise_is_the_least_that_keeps_the_target():
    target = PrivacyTarget(2.0, 1e-5, 1.0)

    found = privacy.noise_multiplier_for(target, probability=0.05, steps=200)

    assert privacy.epsilon_of([Spent(0.05, found, 200)], 1e-5) <= 2.0
    assert privacy.epsilon_of([Spent(0.05, found * 0.98, 200)], 1e-5) > 2.0


@needs_accountant
def test_target_that_is_spent_already_is_refused():
    with pytest.raises(OptionError, match="is spent already"):
        privacy.noise_multiplier_for(
            PrivacyTarget(1.0, 1e-5, 1.0), probability=0.05, steps=10, spent=[Spent(0.05, 0.5, 100)]
        )


@needs_accountant
def test_private_training_learns_and_stores_what_it_cost(new_trainer, data, tmp_path):
    from sanderling.learn.checkpoint import read_checkpoint

    trainer = new_trainer(private=True)
    before = trainer.evaluate(dataset(60, seed=3))

    result = trainer.fit(
        data, epochs=15, batch=20, checkpoint=tmp_path / "ck.safetensors", privacy=parse_privacy(TARGET)
    )

    assert trainer.evaluate(dataset(60, seed=3)).loss < 0.8 * before.loss
    assert result.privacy is not None
    assert 7 < result.privacy.epsilon <= 8
    stored = read_checkpoint(tmp_path / "ck.safetensors", trainer.spec).progress
    assert stored.privacy == result.privacy
    assert [entry.steps for entry in stored.privacy.spent] == [15 * 6]
    assert stored.data_sha256 is None  # a hash would let others test a guess of the data


def test_each_sample_moves_the_sum_by_its_clipping_norm_at_most(new_trainer, data):
    from sanderling.learn.graphs import GradientGraph, Gradients, Vector, scalar
    from sanderling.learn.privacy import norm_of

    trainer = new_trainer(private=True)
    graph = GradientGraph(trainer.task, private=True)
    mask = np.ones(1, np.float32)
    for index in range(10):
        alone = Gradients(Vector(trainer.spec.parameters))
        graph.add(
            trainer.state.parameters, data.batch(np.array([index])), alone, sample_mask=mask, clip_norm=scalar(0.1)
        )
        assert norm_of(alone.sums) <= 0.1 * (1 + 1e-5)
    graph.close()


@needs_accountant
def test_private_run_that_was_stopped_goes_on_within_the_target(new_trainer, data, tmp_path):
    path = tmp_path / "ck.safetensors"
    target = parse_privacy(TARGET)
    new_trainer(private=True).fit(data, epochs=2, batch=20, checkpoint=path, privacy=target)

    second = new_trainer(private=True).fit(
        data, epochs=4, batch=20, checkpoint=path, privacy=parse_privacy("epsilon=12,delta=1e-4,clip=0.5")
    )

    assert second.resumed_from == 12
    assert 8 < second.privacy.epsilon <= 12
    assert sum(entry.steps for entry in second.privacy.spent) == 24


@needs_accountant
def test_place_in_an_epoch_of_other_updates_is_not_taken_up(new_trainer, data, tmp_path):
    """It would leave fewer updates than are made to choose the noise by, and the target would be missed."""
    path, target = tmp_path / "ck.safetensors", parse_privacy("epsilon=4,delta=1e-4,clip=0.5")

    class Killed(Exception):
        pass

    class Gate(Open):
        left = 9

        def take(self, step, before_pause=None):
            if not self.left:
                raise Killed
            self.left -= 1
            super().take(step, before_pause)

    with pytest.raises(Killed):
        new_trainer(private=True).fit(
            data, epochs=1, batch=10, checkpoint=path, save_every=1, privacy=target, gate=Gate()
        )
    last = new_trainer(private=True, accumulate=2).fit(
        data, epochs=2, batch=10, checkpoint=path, privacy=parse_privacy("epsilon=6,delta=1e-4,clip=0.5")
    )

    assert sum(entry.steps for entry in last.privacy.spent) == 9 + 2 * 6
    assert last.privacy.epsilon <= 6


@needs_accountant
def test_best_parameters_say_what_they_cost(new_trainer, data, tmp_path):
    from sanderling.learn.checkpoint import read_checkpoint

    trainer, path = new_trainer(private=True), tmp_path / "ck.safetensors"
    open_data = from_arrays(trainer.spec, dataset(30, seed=8))

    trainer.fit(data, epochs=1, batch=20, checkpoint=path, evaluation=open_data, privacy=parse_privacy(TARGET))

    best = read_checkpoint(tmp_path / "ck.best.safetensors", trainer.spec).progress
    assert best.privacy.spent[0].steps == 6


@needs_accountant
def test_what_breaks_the_promise_is_refused(new_trainer, data):
    target = parse_privacy(TARGET)
    private = new_trainer(private=True)
    with pytest.raises(OptionError, match="chooses its samples itself"):
        private.step(dataset(4))
    with pytest.raises(OptionError, match="without counting it"):
        private.fit(data, holdout=0.2, privacy=target)
    with pytest.raises(OptionError, match="promises nothing for 120 samples"):
        private.fit(data, batch=20, privacy=parse_privacy("epsilon=8,delta=0.1"))
    with pytest.raises(OptionError, match="needs a smaller batch"):
        private.fit(data, batch=120, privacy=target)
    with pytest.raises(OptionError, match="privacy needs a private trainer"):
        new_trainer().fit(data, privacy=target)
    with pytest.raises(OptionError, match="privacy needs a private trainer"):
        private.fit(data)


@needs_accountant
def test_checkpoints_with_and_without_privacy_do_not_mix(new_trainer, data, tmp_path):
    target, path = parse_privacy(TARGET), tmp_path / "ck.safetensors"
    new_trainer().fit(data, batch=20, checkpoint=path)
    with pytest.raises(OptionError, match="cannot be taken back: begin anew"):
        new_trainer(private=True).fit(data, batch=20, checkpoint=path, privacy=target)

    other = tmp_path / "private.safetensors"
    new_trainer(private=True).fit(data, batch=20, checkpoint=other, privacy=target)
    with pytest.raises(OptionError, match="would void it"):
        new_trainer().fit(data, batch=20, epochs=2, checkpoint=other)


@needs_accountant
def test_account_goes_with_the_trainer_whatever_is_called_in_between(new_trainer, data, tmp_path):
    """Loading, saving by hand and fitting again: nothing makes what was spent forgotten."""
    target, path = parse_privacy(TARGET), tmp_path / "by-hand.safetensors"
    first = new_trainer(private=True)
    first.fit(data, epochs=1, batch=20, privacy=target)
    first.save(path)

    larger = parse_privacy("epsilon=12,delta=1e-4,clip=0.5")
    again = first.fit(data, epochs=1, batch=20, privacy=larger).privacy
    second = new_trainer(private=True)
    second.load(path)
    after_load = second.fit(data, epochs=1, batch=20, privacy=larger).privacy

    for spent in (again, after_load):
        assert sum(entry.steps for entry in spent.spent) == 12
        assert 8 < spent.epsilon <= 12
    plain = new_trainer()
    plain.load(path)
    with pytest.raises(OptionError, match="would void it"):
        plain.step(dataset(4))
    with pytest.raises(OptionError, match="would void it"):
        plain.fit(data, batch=20)

    stepped = new_trainer()
    stepped.step(dataset(12))
    stepped.save(path)
    third = new_trainer(private=True)
    third.load(path)
    with pytest.raises(OptionError, match="cannot be taken back"):
        third.fit(data, batch=20, privacy=target)


@needs_accountant
def test_account_of_other_data_is_not_added_up(new_trainer, data, tmp_path):
    target, path = parse_privacy(TARGET), tmp_path / "ck.safetensors"
    new_trainer(private=True).fit(data, batch=20, checkpoint=path, privacy=target)

    with pytest.raises((DataError, OptionError)):
        new_trainer(private=True).fit(
            data.pick(np.arange(100)), batch=20, epochs=2, checkpoint=path, privacy=target, new_data=True
        )


def test_task_without_a_private_step_says_why(tmp_path, new_trainer):
    from sanderling.model.learning import PrivateStep
    from sanderling.model.package import Package, rewrite_manifest
    from tests.learning_tasks import make_task

    path = make_task(tmp_path)
    package = Package.open(path)
    refused = PrivateStep(refused="batch normalisation is in training mode, which mixes samples")
    learning = package.manifest.learning.model_copy(update={"private": refused})
    rewrite_manifest(package, package.manifest.model_copy(update={"learning": learning}), path)

    with pytest.raises(OptionError, match="no privacy can be promised for tiny: batch normalisation"):
        new_trainer(path, private=True)

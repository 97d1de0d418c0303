import threading

import numpy as np
import pytest

from sanderling.core.errors import EngineError, OptionError, TensorError, WeightsError
from sanderling.learn.adapters import AdapterSession
from tests.learning_tasks import SHAPES, dataset, make_task, weights


@pytest.fixture
def session(task):
    with AdapterSession(task, threads=1) as opened:
        yield opened


def scores(x, parameters):
    return np.maximum(x @ weights()[0], 0) @ parameters["fc.weight"] + parameters["fc.bias"]


def random_parameters(seed):
    generator = np.random.default_rng(seed)
    return {name: generator.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}


def test_initial_parameters_give_what_the_package_gives(session, task):
    import sanderling

    x = dataset(10)["x"]
    with sanderling.load(task) as plain:
        assert np.allclose(session.run({"x": x})["scores"], plain.run({"x": x})["scores"], atol=1e-6)


def test_adapters_take_turns_on_one_loaded_model(session, monkeypatch):
    from sanderling.run.engines.onnxruntime_ import OnnxRuntime

    monkeypatch.setattr(OnnxRuntime, "load", None)  # nothing is loaded any more
    x, sets = dataset(10)["x"], {f"user{seed}": random_parameters(seed) for seed in range(3)}
    for name, parameters in sets.items():
        session.add(name, parameters)

    for name in ("user2", "user0", "user1", "user0"):
        assert np.allclose(session.run({"x": x}, name)["scores"], scores(x, sets[name]), atol=1e-4)
    assert session.names == ("initial", "user0", "user1", "user2")


def test_adapter_is_read_from_a_checkpoint(session, new_trainer, tmp_path):
    trainer, x = new_trainer(), dataset(10)["x"]
    trainer.step(dataset(30))
    trainer.save(tmp_path / "ck.safetensors")

    session.add("trained", tmp_path / "ck.safetensors")

    assert np.allclose(session.run({"x": x}, "trained")["scores"], scores(x, trainer.parameters), atol=1e-5)


def test_later_changes_of_the_callers_arrays_change_nothing(session):
    parameters, x = random_parameters(1), dataset(4)["x"]
    session.add("mine", parameters)
    expected = session.run({"x": x}, "mine")["scores"]

    parameters["fc.bias"] += 100

    assert np.array_equal(session.run({"x": x}, "mine")["scores"], expected)


def test_threads_with_adapters_of_their_own_get_their_own_results(session):
    x, sets, wrong = dataset(10)["x"], {str(seed): random_parameters(seed) for seed in range(4)}, []
    for name, parameters in sets.items():
        session.add(name, parameters)

    def work(name):
        for _ in range(50):
            if not np.allclose(session.run({"x": x}, name)["scores"], scores(x, sets[name]), atol=1e-4):
                wrong.append(name)

    threads = [threading.Thread(target=work, args=(name,)) for name in sets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []


def test_what_does_not_fit_is_refused(session, tmp_path, new_trainer):
    good = random_parameters(0)
    for wrong in ({"fc.weight": good["fc.weight"]}, {**good, "fc.bias": np.zeros(9, np.float32)}):
        with pytest.raises(WeightsError):
            session.add("wrong", wrong)
    other = new_trainer(make_task(tmp_path, seed=4))
    other.save(tmp_path / "other.safetensors")
    with pytest.raises(WeightsError, match="of another task"):
        session.add("wrong", tmp_path / "other.safetensors")
    with pytest.raises(OptionError, match="no adapter 'wrong': available are initial"):
        session.run({"x": dataset(4)["x"]}, "wrong")
    with pytest.raises(TensorError):
        session.run({"x": np.zeros((4, 9), np.float32)})


def test_adapter_is_removed_and_the_initial_one_stays(session):
    session.add("mine", random_parameters(0))
    session.remove("mine")

    assert session.names == ("initial",)
    with pytest.raises(OptionError, match="cannot be removed"):
        session.remove("initial")
    with pytest.raises(OptionError, match="no adapter 'mine'"):
        session.remove("mine")


def test_closed_session_says_so(task):
    session = AdapterSession(task)
    session.close()
    session.close()

    with pytest.raises(EngineError, match="the session is closed"):
        session.run({"x": dataset(4)["x"]})

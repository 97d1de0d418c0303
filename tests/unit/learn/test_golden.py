import pytest

from sanderling.core.errors import NotMetError
from sanderling.learn import Trainer, golden
from tests.learning_tasks import make_task


@pytest.fixture
def checks(monkeypatch):
    """Counts comparisons."""
    made = []
    for name in ("check", "check_private"):
        run = getattr(golden, name)
        monkeypatch.setattr(golden, name, lambda *given, _run=run, _name=name: made.append(_name) or _run(*given))
    return made


def test_engine_is_compared_once_for_each_task_and_step(new_trainer, checks, tmp_path):
    for options in ({}, {"on_features": True}, {"private": True}, {"on_features": True, "private": True}):
        new_trainer(**options)
        new_trainer(**options)
    new_trainer(make_task(tmp_path, seed=3))

    assert checks == ["check", "check", "check_private", "check_private", "check"]


def test_other_version_of_the_engine_is_compared_again(new_trainer, checks, monkeypatch):
    from sanderling.run.engines.base import Availability
    from sanderling.run.engines.onnxruntime_ import OnnxRuntime

    new_trainer()
    monkeypatch.setattr(OnnxRuntime, "availability", lambda _: Availability(True, version="99.0"))
    new_trainer()

    assert checks == ["check", "check"]


def test_wrong_gradients_are_refused_each_time(tmp_path, checks):
    path = make_task(tmp_path, wrong=True)

    for _ in range(2):
        with pytest.raises(NotMetError) as refused:
            Trainer(path)
    assert "engine 'onnxruntime'" in str(refused.value)
    assert "computes wrong gradients of tiny: 'grad.fc." in str(refused.value)
    assert "is off by 0.1, 0.0001 is allowed; train with another engine" in str(refused.value)
    assert checks == ["check", "check"]


def test_comparison_is_told(new_trainer, recorder):
    new_trainer()
    new_trainer()

    assert [event.kind for event in recorder.events] == ["gradients-checked"]


def test_step_that_does_not_clip_is_refused(tmp_path):
    """A private step whose clipping does nothing gives the right sum, and no privacy."""
    import onnx
    from onnx import helper

    from sanderling.model.package import Package, file_entries, write_manifest

    path = make_task(tmp_path)
    file = path / "learning" / "dp_grad_step.onnx"
    model = onnx.load(file)
    share = next(node for node in model.graph.node if node.op_type == "Min")
    model.graph.node.insert(0, helper.make_node("Div", [share.input[1], share.input[1]], ["one"]))
    share.input[0] = "one"
    onnx.save(model, file)
    manifest = Package.open(path, check_files=False).manifest
    write_manifest(path, manifest.model_copy(update={"files": file_entries(path)}))

    with pytest.raises(NotMetError, match="'clipped norm' is off by"):
        Trainer(path, private=True)

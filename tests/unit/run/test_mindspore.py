"""What only the mindspore engine does; the contract suite holds it to the rest."""

from __future__ import annotations

import os
import signal
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from onnx import helper

from sanderling.core.errors import EngineError, ModelError, UnavailableError
from sanderling.core.progress import Silent
from sanderling.model.lowering import lower
from sanderling.run.engines import known_engine
from sanderling.run.engines.base import DeviceKind, EngineOptions, Fidelity
from sanderling.run.mindspore_lite import library
from sanderling.run.mindspore_lite.converter import convert
from sanderling.run.mindspore_lite.log import first_error
from tests.installing import install_mindspore
from tests.models import conv_classifier, make_model, random_arrays, run_directly, tensor

MINDSPORE = known_engine("mindspore")
ONE = EngineOptions(threads=1)


@pytest.fixture
def installed() -> None:
    reason = install_mindspore()
    if reason:
        pytest.skip(reason)


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SANDERLING_CACHE", str(tmp_path))
    return tmp_path


def load(model, options=ONE):
    return MINDSPORE.load(model.SerializeToString(), options)


def transposition():
    node = helper.make_node("Transpose", ["x"], ["y"], "t", perm=[1, 0])
    return make_model([node], [tensor("x", ["N", 4])], [tensor("y", [4, "N"])])


def embedding():
    """``ids`` (N, 3) int64 to ``y`` (N, 3, 4)."""
    table = np.random.default_rng(0).standard_normal((10, 4)).astype(np.float32)
    node = helper.make_node("Gather", ["table", "ids"], ["y"], "gather")
    return make_model([node], [tensor("ids", ["N", 3], "int64")], [tensor("y", ["N", 3, 4])], {"table": table})


@pytest.mark.usefixtures("empty_cache")
def test_engine_that_is_not_installed_says_how_and_what_it_takes():
    state = MINDSPORE.availability()
    assert not state.installed
    assert "sanderling devices --install mindspore (fetches 169 MB" in state.hint


def test_missing_compiler_is_told_with_how_to_get_one(empty_cache, monkeypatch):
    monkeypatch.setattr(library.shutil, "which", lambda _: None)
    assert "Debian's package g++" in MINDSPORE.availability().hint
    with pytest.raises(UnavailableError, match=r"cannot be installed: it needs a C\+\+ compiler"):
        library.Libraries().install(Silent())
    assert list(empty_cache.iterdir()) == []


@pytest.mark.usefixtures("empty_cache")
def test_machine_without_a_build_is_told(monkeypatch):
    monkeypatch.setattr(library.platform, "machine", lambda: "aarch64")
    assert MINDSPORE.availability().hint == "there is no build of it for Linux aarch64, only for Linux x86_64"
    with pytest.raises(UnavailableError, match="no build of it for Linux aarch64"):
        library.Libraries().install(Silent())


def test_wheel_that_pip_cannot_find_is_unavailable_and_leaves_nothing(empty_cache, monkeypatch):
    monkeypatch.setattr(library.shutil, "which", lambda _: "/bin/sh")
    for name, value in {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": ""}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UnavailableError, match=r"cannot fetch mindspore-lite 2\.0\.0: .*No matching distribution"):
        library.Libraries().install(Silent())
    assert list((empty_cache / "mindspore-lite").iterdir()) == []


def test_wheel_of_another_hash_is_refused_and_leaves_nothing(empty_cache, tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("wheels")
    name = "mindspore_lite-2.0.0"
    with zipfile.ZipFile(folder / f"{name}-cp37-cp37m-manylinux1_x86_64.whl", "w") as wheel:
        wheel.writestr(f"{name}.dist-info/METADATA", "Metadata-Version: 2.1\nName: mindspore-lite\nVersion: 2.0.0\n")
        wheel.writestr(f"{name}.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: cp37-cp37m-manylinux1_x86_64\n")
        wheel.writestr(f"{name}.dist-info/RECORD", "")
    monkeypatch.setattr(library.shutil, "which", lambda _: "/bin/sh")
    for name, value in {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": str(folder)}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(EngineError, match=r"has SHA-256 \w+: expected 199cd0605cc9"):
        library.Libraries().install(Silent())
    assert list((empty_cache / "mindspore-lite").iterdir()) == []


@pytest.mark.usefixtures("installed")
def test_bridge_that_does_not_compile_is_an_engine_error_and_leaves_nothing(tmp_path, monkeypatch):
    made = set(library.Libraries().folder.iterdir())
    source = tmp_path / "bridge.cc"
    source.write_text('#include "include/api/model.h"\nint f() { return missing; }\n')
    monkeypatch.setattr(library, "_SOURCE", source)
    with pytest.raises(EngineError, match=r"could not compile its bridge: .*missing"):
        library.bridge()
    assert set(library.Libraries().folder.iterdir()) == made


@pytest.mark.usefixtures("installed")
def test_bridge_is_compiled_once():
    first = library.bridge()
    made = first.stat().st_mtime_ns
    assert library.bridge() == first
    assert first.stat().st_mtime_ns == made


def test_device_is_the_processor():
    (device,) = MINDSPORE.devices()
    assert (device.device, device.kind, device.fidelity) == ("cpu", DeviceKind.CPU, Fidelity.HARDWARE)


def test_first_telling_error_of_a_log_is_the_reason():
    log = (
        "[WARNING] LITE(1,7f,python):2026-12-01-09:54:05.1 [mindspore/lite/a.cc:302] Infer] infer shape failed\n"
        "[ERROR] LITE(1,7f,python):2026-12-01-09:54:05.2 [mindspore/lite/b.cc:80] Run] Run failed\n"
        "[ERROR] LITE(1,7f,python):2026-12-01-09:54:05.3 [lite/c.cc:9] Parse] not support onnx data type Det\n"
    )
    assert first_error(log) == "not support onnx data type Det"
    assert first_error(log[: log.rindex("[ERROR]")]) == "Run failed"
    assert first_error("") == "it gave no reason"


@pytest.mark.parametrize("lean", [False, True])
@pytest.mark.usefixtures("installed")
def test_numbers_of_rows_may_come_in_any_order(lean):
    executable = load(transposition(), replace(ONE, lean=lean))
    for rows in (1, 3, 1, 7, 3, 2, 5, 1, 3):
        feeds = random_arrays({"x": (rows, 4)}, seed=rows)
        np.testing.assert_array_equal(executable.run(feeds)["y"], feeds["x"].T)
    executable.close()


@pytest.mark.usefixtures("installed")
def test_bound_close_to_0_keeps_a_division_from_failing():
    nodes = [
        helper.make_node("Clip", ["x", "least"], ["length"], "clip"),
        helper.make_node("Div", ["x", "length"], ["y"], "divide"),
    ]
    least = {"least": np.array(1e-9, np.float32)}
    executable = load(make_model(nodes, [tensor("x", ["N", 4])], [tensor("y", ["N", 4])], least))
    np.testing.assert_array_equal(executable.run({"x": np.zeros((2, 4), np.float32)})["y"], np.zeros((2, 4)))
    executable.close()


@pytest.mark.usefixtures("installed")
def test_two_dynamic_axes_are_taken():
    weights = {"w": np.random.default_rng(0).standard_normal((4, 2)).astype(np.float32)}
    node = helper.make_node("MatMul", ["x", "w"], ["y"], "matmul")
    model = make_model([node], [tensor("x", ["N", "S", 4])], [tensor("y", ["N", "S", 2])], weights)
    executable = load(model)
    for shape in ((1, 5, 4), (3, 2, 4), (2, 9, 4)):
        feeds = random_arrays({"x": shape})
        np.testing.assert_allclose(executable.run(feeds)["y"], run_directly(model, feeds)["y"], rtol=1e-5, atol=1e-6)
    executable.close()


@pytest.mark.usefixtures("installed")
def test_int64_goes_in_and_what_32_bits_cannot_hold_is_refused():
    executable = load(embedding())
    ids = np.array([[1, 9, 0], [3, 3, 2]])
    np.testing.assert_array_equal(executable.run({"ids": ids})["y"], run_directly(embedding(), {"ids": ids})["y"])
    with pytest.raises(EngineError, match="'ids' is held as int32"):
        executable.run({"ids": ids + 2**32})
    executable.close()


@pytest.mark.usefixtures("installed")
def test_graph_that_the_converter_changes_without_a_word_is_refused():
    node = helper.make_node("CumSum", ["x", "axis"], ["y"], "cumsum", reverse=1)
    weights = {"axis": np.array(1)}
    model = make_model([node], [tensor("x", ["N", 4])], [tensor("y", ["N", 4])], weights)
    with pytest.raises(ModelError, match="mindspore does not take the model: its converter changes what it computes"):
        load(model)


@pytest.mark.usefixtures("installed")
def test_operator_that_the_converter_lacks_is_named_with_its_node():
    node = helper.make_node("Softsign", ["x"], ["y"], "soft")
    model = make_model([node], [tensor("x", ["N", 4])], [tensor("y", ["N", 4])])
    with pytest.raises(ModelError, match=r"mindspore does not take the model: operator Softsign \('soft'\)"):
        load(model)


@pytest.mark.usefixtures("installed")
def test_crash_of_a_worker_is_an_engine_error_and_leaves_the_others_running():
    first, second = load(transposition()), load(transposition())
    feeds = random_arrays({"x": (2, 4)})
    os.kill(first._worker.pid, signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(EngineError, match="mindspore failed while executing: the engine's process"):
            first.run(feeds)
    np.testing.assert_array_equal(second.run(feeds)["y"], feeds["x"].T)
    first.close()
    second.close()


@pytest.mark.usefixtures("installed")
def test_closing_ends_the_worker():
    executable = load(transposition())
    pid = executable._worker.pid
    executable.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.usefixtures("installed")
def test_refused_graph_leaves_no_worker(monkeypatch):
    pids = []
    monkeypatch.setattr(
        "sanderling.run.engines.mindspore_._prove", lambda made, _: pids.append(made._worker.pid) or made.missing
    )
    with pytest.raises(AttributeError):
        load(transposition())
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


@pytest.mark.usefixtures("installed")
def test_graph_in_the_cache_is_not_converted_again(tmp_path, monkeypatch):
    options = replace(ONE, cache=tmp_path)
    load(conv_classifier(), options).close()

    def refuse(*_, **__):
        raise AssertionError("converted again")

    monkeypatch.setattr("sanderling.run.mindspore_lite.converter.convert", refuse)
    executable = load(conv_classifier(), options)
    feeds = random_arrays({"image": (2, 3, 8, 8)})
    expected = run_directly(conv_classifier(), feeds)["scores"]
    np.testing.assert_allclose(executable.run(feeds)["scores"], expected, rtol=1e-4, atol=1e-5)
    executable.close()


@pytest.mark.usefixtures("installed")
def test_converter_writes_weights_in_16_bits(tmp_path):
    lowered = lower(conv_classifier(features=256), "mindspore")
    convert(lowered, tmp_path / "single.ms")
    convert(lowered, tmp_path / "half.ms", half=True)
    single, half = ((tmp_path / name).stat().st_size for name in ("single.ms", "half.ms"))
    assert half < 0.7 * single


@pytest.mark.usefixtures("installed")
def test_converter_that_fails_leaves_no_file(tmp_path):
    node = helper.make_node("Softsign", ["x"], ["y"], "soft")
    model = make_model([node], [tensor("x", ["N", 4])], [tensor("y", ["N", 4])])
    with pytest.raises(ModelError, match="Softsign"):
        convert(lower(model, "mindspore"), tmp_path / "model.ms")
    assert list(tmp_path.iterdir()) == []

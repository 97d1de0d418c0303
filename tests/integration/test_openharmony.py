"""What `sanderling export --target openharmony` writes, used as its README says, with stand-ins for SDK and device."""

import json
import os
import shutil
import subprocess
import sys
from importlib import util
from pathlib import Path

import numpy as np
import pytest

from sanderling.workshop.targets.openharmony.runner import compiler, library
from tests.remote import fake_hdc

TIMEOUT_S = 120
KEY = "ABC123"
STAND_IN_TOOLCHAIN = """# A stand-in for the OHOS SDK's toolchain: the host's compiler, under the SDK's variables.
if(NOT OHOS_ARCH MATCHES "^(arm64-v8a|armeabi-v7a|x86_64)$")
  message(FATAL_ERROR "OHOS_ARCH is '${OHOS_ARCH}'")
endif()
set(CMAKE_SYSTEM_NAME OHOS)
"""
STAND_IN_BUILD = """# A stand-in for ONNX Runtime's tools/ci_build/build.py: keeps its arguments, and leaves a library.
import json, pathlib, sys
cflags = ["-fcf-protection"]
folder = pathlib.Path(sys.argv[sys.argv.index("--build_dir") + 1]) / "Release"
folder.mkdir(parents=True)
(folder / "libonnxruntime.so.1.32.0").write_bytes(b"library")
pathlib.Path(__file__).with_name("arguments.json").write_text(json.dumps([sys.argv[1:], cflags]))
"""


@pytest.fixture(scope="session")
def exported(built, tmp_path_factory):
    from sanderling.api import export

    return export(built.path, tmp_path_factory.mktemp("openharmony") / "out", target="openharmony", variant="int8").path


@pytest.fixture
def folder(exported, tmp_path):
    """A copy of the export, which a test may change."""
    return Path(shutil.copytree(exported, tmp_path / "exported"))


@pytest.fixture(scope="session")
def program(exported, tmp_path_factory):
    """The runner, compiled here."""
    if compiler() is None:
        pytest.skip("no C++ compiler here: apt install g++")
    made = tmp_path_factory.mktemp("program") / "sanderling-run"
    files = [str(path) for path in sorted((exported / "runner").glob("*.cc"))]
    subprocess.run(
        [compiler(), "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", *files, "-o", made, "-ldl"], check=True
    )
    return made


def run(*words, **variables):
    """Run a program to its end."""
    environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
    return subprocess.run(
        list(map(str, words)), env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


def run_model(program, folder, *words):
    return run(program, folder / "model", "--library", library(), "--repeats", 3, "--warmup", 1, *words)


def sdk_at(path, clang="16.0.6"):
    """A stand-in for the OHOS SDK's folder `native`."""
    for name in ("build/cmake", "llvm/bin"):
        (path / name).mkdir(parents=True)
    (path / "build/cmake/ohos.toolchain.cmake").write_text(STAND_IN_TOOLCHAIN)
    for name, text in (("clang", f"echo 'OHOS (dev) clang version {clang}'"), ("llvm-strip", "test -f $1")):
        (path / "llvm/bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (path / "llvm/bin" / name).chmod(0o755)
    return path


def sources_at(path, version="1.32.0"):
    """A stand-in for a clone of ONNX Runtime."""
    (path / "tools/ci_build").mkdir(parents=True)
    (path / "tools/ci_build/build.py").write_text(STAND_IN_BUILD)
    (path / "VERSION_NUMBER").write_text(f"{version}\n")
    return path


def test_export_proved_the_model_by_python_and_by_the_sample(exported):
    record = json.loads((exported / "export.json").read_bytes())
    told = [proof["what"] for proof in record["proofs"]]
    assert all(proof["passed"] for proof in record["proofs"])
    assert len(told) == (2 if compiler() else 1)
    assert "golden calls of variant 'int8'" in told[0]


def test_scripts_are_valid_shell_and_know_version_and_architecture(exported):
    for script in exported.rglob("*.sh"):
        assert run("sh", "-n", script).returncode == 0
        assert "@VERSION@" not in script.read_text()
        assert "@ARCH@" not in script.read_text()
    assert "OHOS_ARCH=arm64-v8a" in (exported / "build" / "build_onnxruntime.sh").read_text()


def test_runner_writes_what_it_found_as_json(program, exported, tmp_path):
    done = run_model(program, exported, "--out", tmp_path / "benchmark.json")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    found = json.loads((tmp_path / "benchmark.json").read_bytes())
    assert found["passed"] is True
    assert len(found["samples_ms"]) == 3
    assert all(value > 0 for value in found["samples_ms"])
    assert [output["name"] for output in found["outputs"]] == ["scores"]
    assert found["outputs"][0]["relative_error"] <= found["outputs"][0]["tolerance"]
    assert found["peak_memory_bytes"] > 1_000_000
    assert found["model"].endswith(".ort")


def test_runner_says_no_when_an_output_is_wrong(program, folder):
    for name in ("output-0.bin", "fp32-0.bin"):
        file = folder / "model" / "golden" / name
        file.write_bytes((-np.frombuffer(file.read_bytes(), np.float32)).tobytes())
    done = run_model(program, folder)
    assert done.returncode == 1
    assert json.loads(done.stdout)["passed"] is False


def test_runner_takes_other_rounding_that_is_as_close_to_fp32(program, folder):
    golden = folder / "model" / "golden"
    shutil.copy(golden / "fp32-0.bin", golden / "output-0.bin")  # further than the tolerance from what INT8 gives
    table = folder / "model" / "golden.tsv"
    *fields, _, least_db = table.read_text().rstrip("\n").rsplit("\t", 2)
    table.write_text("\t".join([*fields, "1e-9", least_db]) + "\n")
    found = json.loads(run_model(program, folder).stdout)
    assert found["passed"] is True
    assert found["outputs"][0]["relative_error"] > found["outputs"][0]["tolerance"]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda model: (model / "golden.tsv").unlink(), "golden.tsv"),
        (lambda model: (model / "golden.tsv").write_text("calls\t0\n"), "names no calls"),
        (lambda model: (model / "golden" / "input-0.bin").write_bytes(b"short"), "another size"),
        (lambda model: next(model.glob("*.ort")).write_bytes(b"no model"), "model"),
    ],
)
def test_runner_tells_broken_files_in_one_line(program, folder, damage, says):
    damage(folder / "model")
    done = run_model(program, folder)
    assert done.returncode == 2
    assert done.stderr.startswith("sanderling-run: ")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_runner_tells_a_wrong_library_or_option_in_one_line(program, exported, tmp_path):
    (tmp_path / "none.so").write_bytes(b"no library")
    for words, says in (
        (("--library", tmp_path / "none.so"), "none.so"),
        (("--library", "libm.so.6"), "is no ONNX Runtime"),
        (("--colour", "blue"), "unknown option --colour"),
        (("--repeats",), "usage"),
    ):
        done = run(program, exported / "model", *words)
        assert done.returncode == 2
        assert says in done.stderr


def test_build_of_the_runner_works_with_the_toolchain_file(exported, tmp_path):
    if shutil.which("cmake") is None or compiler() is None:
        pytest.skip("no CMake or no C++ compiler here: apt install cmake g++")
    sdk, out = sdk_at(tmp_path / "sdk"), tmp_path / "out"
    done = run("sh", exported / "build" / "build_runner.sh", out, OHOS_SDK=sdk)
    assert done.returncode == 0, done.stderr
    assert run_model(out / "bin" / "sanderling-run", exported).returncode == 0


@pytest.mark.parametrize(("form", "minimal"), [("minimal", True), ("full", False)])
def test_build_of_onnxruntime_passes_the_toolchain_and_the_operators(exported, tmp_path, form, minimal):
    if shutil.which("cmake") is None:
        pytest.skip("no CMake here: apt install cmake")
    sdk, sources, out = sdk_at(tmp_path / "sdk"), sources_at(tmp_path / "onnxruntime"), tmp_path / "out"
    ninja = tmp_path / "bin" / "ninja"
    ninja.parent.mkdir()
    ninja.write_text("#!/bin/sh\n")
    ninja.chmod(0o755)
    script, path = exported / "build" / "build_onnxruntime.sh", f"{ninja.parent}:{os.environ['PATH']}"
    done = run("sh", script, form, sources, out, OHOS_SDK=sdk, PATH=path)
    assert done.returncode == 0, done.stderr
    arguments, flags = json.loads((sources / "tools/ci_build/arguments.json").read_bytes())
    assert f"CMAKE_TOOLCHAIN_FILE={exported}/build/ohos.cmake" in arguments
    assert "OHOS_ARCH=arm64-v8a" in arguments
    assert ("--minimal_build" in arguments) is minimal
    assert (str(exported / "model" / "required_operators.config") in arguments) is minimal
    assert flags == [""], "Clang refuses -fcf-protection for Arm"
    assert (out / "lib" / "libonnxruntime.so").read_bytes() == b"library"


def test_build_of_onnxruntime_refuses_what_cannot_work(exported, tmp_path):
    script, sources = exported / "build" / "build_onnxruntime.sh", sources_at(tmp_path / "onnxruntime")
    sdk, old = sdk_at(tmp_path / "sdk"), sdk_at(tmp_path / "old", clang="15.0.4")
    for words, variables, code, says in (
        (("minimal", sources, "out"), {"OHOS_SDK": ""}, 3, "set OHOS_SDK"),
        (("minimal", sources, "out"), {"OHOS_SDK": tmp_path}, 3, "has no build/cmake/ohos.toolchain.cmake"),
        (("minimal", tmp_path, "out"), {"OHOS_SDK": sdk}, 2, "is no clone of ONNX Runtime"),
        (("minimal",), {"OHOS_SDK": sdk}, 2, "usage"),
    ):
        done = run("sh", script, *words, **variables)
        assert (done.returncode, says in done.stderr) == (code, True), done.stderr
    if shutil.which("ninja") and shutil.which("cmake"):
        done = run("sh", script, "full", sources, tmp_path / "out", OHOS_SDK=old)
        assert (done.returncode, "needs 16" in done.stderr) == (3, True), done.stderr


def test_script_runs_on_the_device_and_fetches_the_benchmark(program, exported, tmp_path):
    out = tmp_path / "built"
    (out / "bin").mkdir(parents=True)
    (out / "lib").mkdir()
    shutil.copy(program, out / "bin")
    shutil.copy(library(), out / "lib" / "libonnxruntime.so")
    variables = fake_hdc(tmp_path, KEY)
    done = run("sh", exported / "run_on_device.sh", KEY, out, 5, **variables)
    assert done.returncode == 0, done.stderr
    assert len(json.loads((out / "benchmark.json").read_bytes())["samples_ms"]) == 5
    other = run("sh", exported / "run_on_device.sh", "XYZ", out, **variables)
    assert (other.returncode, f"no device 'XYZ': {KEY}" in other.stderr) == (3, True)
    missing = run("sh", exported / "run_on_device.sh", KEY, tmp_path, **variables)
    assert (missing.returncode, "sanderling-run is missing" in missing.stderr) == (3, True)
    no_hdc = run("sh", exported / "run_on_device.sh", KEY, out, HDC="not-here")
    assert (no_hdc.returncode, "hdc is missing" in no_hdc.stderr) == (3, True)


def test_wheel_of_a_built_tree_installs_and_runs_the_model(exported, tmp_path):
    import platform

    spec = util.find_spec("onnxruntime")
    tag, system = f"cp3{sys.version_info.minor}", f"linux_{platform.machine()}"
    made = run(
        sys.executable, exported / "python" / "make_wheel.py", Path(spec.origin).parent,
        "--version", "1.32.0", "--python", tag, "--platform", system, "-o", tmp_path / "dist",
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    wheel = made.stdout.strip()
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", site, wheel]
    assert run(*pip).returncode == 0
    model = next((exported / "model").glob("*.ort"))
    program = f"import onnxruntime as o; print(o.__file__); o.InferenceSession({str(model)!r})"
    done = run(sys.executable, "-c", program, PYTHONPATH=site)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(site))


def test_wheel_of_something_else_is_refused(exported, tmp_path):
    words = ("--version", "1.32.0", "--python", "cp311", "--platform", "linux_aarch64")
    done = run(sys.executable, exported / "python" / "make_wheel.py", tmp_path, *words)
    assert (done.returncode, "has no __init__.py" in done.stderr) == (2, True)

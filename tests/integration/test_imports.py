"""What importing costs: the parts that a board needs pull in nothing that a board does not have."""

import json
import os
import shutil
import subprocess
import sys

import pytest

import sanderling

_REPORT = "import json, sys; print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
_BUILD = (
    "import sys; sys.modules['torch'] = None; import sanderling; "
    "result = sanderling.build(sys.argv[1], sys.argv[2], repeats=2); "
    "assert [variant.id for variant in result.manifest.variants] == ['fp32', 'fp16'], result.manifest.variants"
)


def python(*arguments, cwd, env=None):
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=cwd, env=env, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def imported_by(statement, cwd):
    return set(json.loads(python("-c", f"{statement}; {_REPORT}", cwd=cwd)))


@pytest.mark.parametrize("statement", ["import sanderling", "import sanderling.run", "import sanderling.api"])
def test_import_for_the_device_leaves_the_workshop_alone(statement, tmp_path):
    workshop = {"torch", "onnxscript", "PIL", "jinja2", "typer", "onnxruntime", "onnxslim"}
    if statement != "import sanderling.api":  # inspect and verify read graphs
        workshop.add("onnx")

    assert imported_by(statement, tmp_path) & workshop == set()


def test_bare_import_loads_no_third_party_package(tmp_path):
    bare = imported_by("pass", tmp_path) | sys.stdlib_module_names

    assert imported_by("import sanderling", tmp_path) - bare == {"sanderling"}


def test_command_line_shows_help_without_loading_what_commands_need(tmp_path):
    heavy = {"numpy", "onnx", "onnxruntime", "torch", "pydantic"}

    assert imported_by("import sanderling.cli.app", tmp_path) & heavy == set()


def test_public_names_are_these_and_each_exists():
    assert sanderling.__all__ == [
        "Policy",
        "Pool",
        "SanderlingError",
        "__version__",
        "bench",
        "bench_on",
        "bench_text",
        "build",
        "build_multimodal",
        "build_text",
        "check",
        "doctor",
        "export",
        "finetune_quantized",
        "inspect",
        "leaks",
        "learn",
        "learn_apply",
        "learn_prepare",
        "learn_run",
        "load",
        "read_policy",
        "tune",
        "verify",
    ]
    assert all(getattr(sanderling, name) is not None for name in sanderling.__all__)


def test_unknown_public_name_is_refused_with_those_there_are():
    with pytest.raises(AttributeError, match=r"no attribute 'bulid'.*available are .*build"):
        sanderling.bulid  # noqa: B018


def test_build_is_still_a_function_after_a_build(tmp_path, classifier):
    """Importing the subpackage of the same name would put the module in the function's place."""
    program = "import sanderling, sys; [sanderling.build(sys.argv[1], 'm.sdl', repeats=1) for _ in range(2)]"

    python("-c", program, str(classifier), cwd=tmp_path)


def test_run_is_imported_where_torch_cannot_be(tmp_path):
    python("-c", "import sys; sys.modules['torch'] = None; import sanderling.run; sanderling.run.load", cwd=tmp_path)


def test_package_is_built_from_onnx_and_run_where_torch_cannot_be_imported(tmp_path, classifier):
    python("-c", _BUILD, str(classifier), "model.sdl", cwd=tmp_path)

    with sanderling.load(tmp_path / "model.sdl") as session:
        assert session.inputs[0].name == "image"


def test_package_is_tuned_where_the_workshops_libraries_cannot_be_imported(tmp_path, built):
    program = (
        "import sys; [sys.modules.__setitem__(name, None) for name in ('torch', 'jinja2', 'onnxslim', 'onnxscript')]; "
        "import sanderling; result = sanderling.tune(sys.argv[1], seconds=0.2, engines=['onnxruntime']); "
        "print(result.plan.winner.engine)"
    )
    package = shutil.copytree(built.path, tmp_path / "model.sdl")

    assert python("-c", program, str(package), cwd=tmp_path).strip() == "onnxruntime"


def test_running_a_package_reports_nothing_to_the_engines_maker(tmp_path, built):
    """onnxruntime 1.32 sends usage data, and keeps a session file, unless ORT_DISABLE_TELEMETRY is set before."""
    (tmp_path / "temp").mkdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path / "temp")}
    environment.pop("ORT_DISABLE_TELEMETRY", None)
    program = "import sys, numpy, sanderling; sanderling.load(sys.argv[1]).run(numpy.ones((1, 3, 8, 8), 'float32'))"

    python("-c", program, str(built.path), cwd=tmp_path, env=environment)

    assert list((tmp_path / "temp").iterdir()) == []

"""`sanderling bench --on` as users start it: over a real SSH server on the loopback, and over a fake hdc."""

import shutil
import subprocess

import numpy as np
import pytest

from sanderling.model.package import EVIDENCE, REPORT, Package, file_entries, write_manifest
from sanderling.workshop.evidence import Evidence
from sanderling.workshop.targets.openharmony.runner import compiler, library
from tests.integration.conftest import COMMAND
from tests.remote import fake_hdc, free_port, ssh_server

KEY = "ABC123"


@pytest.fixture
def board(tmp_path, monkeypatch):
    """A host `board` that ssh reaches: this machine, over the loopback."""
    folder = tmp_path / "ssh"
    folder.mkdir()
    with ssh_server(folder) as command:
        monkeypatch.setenv("SANDERLING_SSH", command)
        yield "ssh:board"


@pytest.fixture
def phone(tmp_path, monkeypatch):
    """A device that the fake hdc reaches; its folder."""
    folder = tmp_path / "hdc"
    folder.mkdir()
    for name, value in fake_hdc(folder, KEY).items():
        monkeypatch.setenv(name, value)
    return folder / "device"


@pytest.fixture(scope="session")
def runner(tmp_path_factory):
    """The C++ runner for this machine, with the library of the installed ONNX Runtime."""
    from importlib import resources

    program = compiler()
    if program is None:
        pytest.skip("no C++ compiler here: apt install g++")
    folder = tmp_path_factory.mktemp("runner")
    (folder / "bin").mkdir()
    (folder / "lib").mkdir()
    template = resources.files("sanderling.workshop.targets.openharmony") / "template" / "runner"
    with resources.as_file(template) as sources:
        files = [str(path) for path in sorted(sources.glob("*.cc"))]
        made = str(folder / "bin" / "sanderling-run")
        subprocess.run([program, "-std=c++17", "-O1", *files, "-o", made, "-ldl"], check=True)
    shutil.copy(library(), folder / "lib" / "libonnxruntime.so")
    return folder


def devices_of(package):
    evidence = Evidence.model_validate_json(Package.open(package).file(EVIDENCE).read_bytes())
    return evidence.devices


def with_other_golden(package):
    """The same package, whose golden outputs are what no variant computes; its hashes hold."""
    opened = Package.open(package)
    file = opened.file(opened.manifest.golden.file)
    arrays = dict(np.load(file))
    for name in arrays:
        if not name.startswith("input/"):
            arrays[name] = -arrays[name][:, :, ::-1]
    np.savez(file, **arrays)
    write_manifest(package, opened.manifest.model_copy(update={"files": file_entries(package)}))


def test_package_is_measured_over_ssh_and_its_evidence_and_report_keep_it(sanderling_here, package, board):
    done = sanderling_here(
        "bench", package, "--on", board, "--command", COMMAND, "--repeats", 3, "--variant", "int8", "--json"
    )
    assert done.code == 0, done.stderr
    found = devices_of(package)[board]
    assert done.answer == found.model_dump(mode="json")
    assert found.way == "sanderling"
    assert all(check.passed for check in found.checks)
    assert [(each.id, each.latency_ms.repeats) for each in found.result.variants] == [("int8", 3)]
    assert f"Measured on {board}" in (package / REPORT).read_text("utf-8")


def test_zipped_package_stays_one(sanderling_here, package, phone, runner, work):
    from sanderling.model.package import write_zip

    write_zip(package, work / "model.sdl.zip")
    arguments = ("--on", f"hdc:{KEY}", "--runner", runner, "--repeats", 2, "--json")
    done = sanderling_here("bench", "model.sdl.zip", *arguments)
    assert done.code == 0, done.stderr
    assert list(devices_of(work / "model.sdl.zip")) == [f"hdc:{KEY}"]
    assert list(phone.iterdir()) == []


def test_runner_measures_over_hdc_what_the_package_says(sanderling_here, package, phone, runner):
    done = sanderling_here("bench", package, "--on", f"hdc:{KEY}", "--runner", runner, "--repeats", 4, "--threads", 1)
    assert done.code == 0, done.stderr
    found = devices_of(package)[f"hdc:{KEY}"]
    assert found.way == "runner"
    assert [each.id for each in found.result.variants] == ["fp32", "fp16", "int8"]
    assert all(each.latency_ms.repeats == 4 and each.latency_ms.p50 > 0 for each in found.result.variants)
    assert found.result.machine.versions.keys() == {"onnxruntime"}
    assert found.result.machine.cores > 0
    assert list(phone.iterdir()) == [], "something was left on the device"


def test_runner_measures_over_ssh_too(sanderling_here, package, board, runner):
    done = sanderling_here("bench", package, "--on", board, "--runner", runner, "--repeats", 2, "--variant", "fp32")
    assert done.code == 0, done.stderr
    assert devices_of(package)[board].way == "runner"


@pytest.mark.usefixtures("phone")
def test_second_device_stands_beside_the_first_and_a_second_run_replaces_its_own(
    sanderling_here, package, board, runner
):
    for on, repeats in ((f"hdc:{KEY}", 2), (board, 3), (f"hdc:{KEY}", 5)):
        arguments = ("--runner", runner, "--repeats", repeats, "--variant", "fp32")
        assert sanderling_here("bench", package, "--on", on, *arguments).code == 0
    repeats = {on: found.result.variants[0].latency_ms.repeats for on, found in devices_of(package).items()}
    assert repeats == {f"hdc:{KEY}": 5, board: 3}


def test_device_that_computes_something_else_is_not_kept(sanderling_here, package, phone, runner):
    with_other_golden(package)
    before = (package / EVIDENCE).read_bytes()
    done = sanderling_here("bench", package, "--on", f"hdc:{KEY}", "--runner", runner, "--repeats", 2)
    assert done.code == 1
    assert f"hdc:{KEY} does not compute what the package says: golden vectors of fp32" in done.error
    assert (package / EVIDENCE).read_bytes() == before
    assert list(phone.iterdir()) == []


def test_device_that_computes_something_else_is_not_kept_by_sanderling_either(sanderling_here, package, board):
    with_other_golden(package)
    done = sanderling_here("bench", package, "--on", board, "--command", COMMAND, "--repeats", 2)
    assert done.code == 1
    assert f"{board} does not compute what the package says" in done.error
    assert devices_of(package) == {}


@pytest.mark.parametrize("on", ["board", "ssh:", "usb:board", "ssh:-oProxyCommand=x", "ssh:board:x"])
def test_what_names_no_device_is_one_line(refused_here, package, on):
    refused_here("bench", package, "--on", on, says=f"--on '{on}'")


def test_options_of_this_machine_are_refused_with_a_device(refused_here, package):
    refused_here("bench", package, "--on", "ssh:board", "--lean", says="--lean and --table are of this machine")
    refused_here("bench", package, "--runner", "out", says="--runner needs --on")


@pytest.mark.usefixtures("phone")
def test_unknown_key_lists_the_connected(refused_here, package):
    refused_here("bench", package, "--on", "hdc:XYZ", says=["no device 'XYZ'", f"connected are {KEY}"], code=3)


@pytest.mark.parametrize(("variable", "on"), [("HDC", f"hdc:{KEY}"), ("SANDERLING_SSH", "ssh:board")])
def test_missing_program_says_how_to_get_it(refused_here, package, monkeypatch, variable, on):
    monkeypatch.setenv(variable, "not-here")
    refused_here("bench", package, "--on", on, says="'not-here', which is missing: it", code=3)


def test_host_that_does_not_answer_is_one_line(refused_here, package):
    on = f"ssh:127.0.0.1:{free_port()}"
    refused_here("bench", package, "--on", on, says=["ssh:127.0.0.1 cannot be reached", "refused"], code=3)


def test_host_without_sanderling_says_what_helps(refused_here, package, board):
    arguments = ("bench", package, "--on", board, "--command", "no-such-command")
    refused_here(*arguments, says=[f"{board} has no 'no-such-command'", "--runner"], code=3)


def test_command_that_answers_nothing_is_one_line(refused_here, package, board):
    says = f"sanderling on {board} gave no result"
    refused_here("bench", package, "--on", board, "--command", "echo", says=says, code=1)


def test_runner_without_its_library_says_how_it_is_built(refused_here, package, phone, tmp_path):
    says = ["libonnxruntime.so is missing", "sanderling export --target openharmony"]
    refused_here("bench", package, "--on", f"hdc:{KEY}", "--runner", tmp_path / "none", says=says, code=3)
    assert list(phone.iterdir()) == []


def test_runner_that_crashes_is_one_line(refused_here, package, phone, tmp_path, runner):
    broken = shutil.copytree(runner, tmp_path / "broken")
    (broken / "lib" / "libonnxruntime.so").write_bytes(b"no library")
    arguments = ("bench", package, "--on", f"hdc:{KEY}", "--runner", broken)
    refused_here(*arguments, says=f"the runner failed on hdc:{KEY}: sanderling-run: ", code=1)
    assert list(phone.iterdir()) == []

"""Environments, made for real by venv and pip, of a package that the tests write: no index is needed."""

from __future__ import annotations

import json
import shutil
import subprocess
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import pytest

from sanderling.core.errors import OptionError, OutputError, UnavailableError
from sanderling.core.progress import Recorder, Silent
from sanderling.run.engines import environment_of
from sanderling.run.environments import Environment, import_path, install

TINY = Environment("tiny", requirements=("sandworm==1.0",), imports=("sandworm",))
_NO_INDEX = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": "/dev/null", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def write_wheel(folder: Path, version: str, *, needs: str = "", source: str = "length_mm = 20\n") -> None:
    """A package ``sandworm`` of one module."""
    described = f"Metadata-Version: 2.1\nName: sandworm\nVersion: {version}\n" + (
        f"Requires-Dist: {needs}\n" if needs else ""
    )
    files = {
        "sandworm.py": source,
        f"sandworm-{version}.dist-info/METADATA": described,
        f"sandworm-{version}.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    recorded = f"sandworm-{version}.dist-info/RECORD"
    with zipfile.ZipFile(folder / f"sandworm-{version}-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
        wheel.writestr(recorded, "".join(f"{name},,\n" for name in (*files, recorded)))


def prepare(folder: Path, patch: pytest.MonkeyPatch) -> Path:
    """Wheels to install from, and a cache of their own."""
    wheels = folder / "wheels"
    wheels.mkdir()
    write_wheel(wheels, "1.0")
    write_wheel(wheels, "2.0")
    write_wheel(wheels, "3.0", needs="nothing-of-that-name")
    write_wheel(wheels, "4.0", source="raise ImportError('libworm.so is missing')\n")
    for name, value in {**_NO_INDEX, "PIP_FIND_LINKS": str(wheels), "SANDERLING_CACHE": str(folder / "cache")}.items():
        patch.setenv(name, value)
    return folder / "cache"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    return prepare(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """One environment for the tests that only look at it."""
    with pytest.MonkeyPatch.context() as patch:
        prepare(tmp_path_factory.mktemp("made"), patch)
        recorder = Recorder(Silent())
        python = install(TINY, recorder)
        recorder.stop()
        yield python, recorder


def told_by(python: Path, program: str, **variables: str) -> str:
    done = subprocess.run(
        [python, "-c", program], capture_output=True, text=True, env=variables, timeout=60, check=True
    )
    return done.stdout.strip()


def everything(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "environments").iterdir())


def test_environment_is_ready_with_what_was_asked_for(made):
    python, recorder = made
    assert TINY.python == python
    assert told_by(python, "import sandworm; print(sandworm.length_mm)") == "20"
    assert [name.partition(" in ")[0] for name in recorder.seconds] == [
        "make environment 'tiny'",
        "install sandworm==1.0",
        "import sandworm",
    ]
    assert recorder.events == []


def test_ready_environment_is_left_as_it_is(made):
    python, _ = made
    mark = TINY.folder / "ready.json"
    before = mark.stat()
    recorder = Recorder(Silent())
    assert install(TINY, recorder) == python
    assert (mark.stat().st_mtime_ns, mark.stat().st_ino) == (before.st_mtime_ns, before.st_ino)
    assert recorder.seconds == {}


@pytest.mark.parametrize("mark", [None, "", "{", "[]", '{"python": "cpython-27"}'])
@pytest.mark.usefixtures("cache")
def test_environment_without_its_mark_is_not_ready(mark):
    program = TINY.folder / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.write_text("half made")
    if mark is not None:
        (TINY.folder / "ready.json").write_text(mark)
    assert TINY.python is None


def test_environment_whose_interpreter_is_gone_is_not_ready(made, tmp_path, monkeypatch):
    monkeypatch.setenv("SANDERLING_CACHE", str(tmp_path))
    TINY.folder.mkdir(parents=True)
    mark = made[0].parents[1] / "ready.json"
    (TINY.folder / "ready.json").write_bytes(mark.read_bytes())
    assert TINY.python is None


def test_changed_requirements_make_it_again_and_say_so(made, cache):
    shutil.copytree(made[0].parents[1], TINY.folder, symlinks=True)
    assert TINY.python is not None
    newer = replace(TINY, requirements=("sandworm==2.0",))
    assert newer.python is None
    recorder = Recorder(Silent())
    python = install(newer, recorder)
    assert told_by(python, "from importlib import metadata; print(metadata.version('sandworm'))") == "2.0"
    assert [(event.kind, event.subject) for event in recorder.events] == [("environment-outdated", "tiny")]
    assert TINY.python is None
    assert everything(cache) == ["tiny", "tiny.lock"]


@pytest.mark.usefixtures("cache")
def test_package_is_installed_alone_where_its_own_pins_contradict():
    python = install(replace(TINY, requirements=(), alone=("sandworm==3.0",)))
    assert told_by(python, "import sandworm; print(sandworm.length_mm)") == "20"


def test_missing_package_is_unavailable_and_nothing_is_kept(cache):
    left = cache / "environments" / ".tiny.abcdef" / "tiny"  # by a process that was killed
    left.mkdir(parents=True)
    with pytest.raises(UnavailableError) as caught:
        install(replace(TINY, requirements=("sandworm==9.9",)))
    told = str(caught.value)
    assert told.startswith("environment 'tiny' could not be made: pip could not install sandworm==9.9: ")
    assert "No matching distribution found for sandworm==9.9" in told
    assert "pip reaches no index, or there is no build for Python 3." in told
    assert "\n" not in told
    assert everything(cache) == ["tiny.lock"]


def test_package_that_does_not_import_is_unavailable_and_nothing_is_kept(cache):
    with pytest.raises(UnavailableError, match=r"'import sandworm' failed in it: ImportError: libworm\.so is missing"):
        install(replace(TINY, requirements=("sandworm==4.0",)))
    assert everything(cache) == ["tiny.lock"]


def test_short_disk_is_told_before_anything_is_made(cache):
    with pytest.raises(UnavailableError, match=r"needs about 1000000000\.0 GB in .*: \d+\.\d GB is free"):
        install(replace(TINY, size_bytes=10**18))
    assert everything(cache) == ["tiny.lock"]


def test_cache_that_cannot_be_written_is_an_output_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("SANDERLING_CACHE", str(tmp_path / "file"))
    with pytest.raises(OutputError, match=r"cannot write to .*environments"):
        install(TINY)
    with pytest.raises(OutputError, match="cannot make link"):
        import_path()


@pytest.mark.usefixtures("cache")
def test_two_that_ask_at_once_get_one_environment():
    barrier = Barrier(2)

    def ask(recorder: Recorder) -> Path:
        barrier.wait()
        return install(TINY, recorder)

    recorders = [Recorder(Silent()), Recorder(Silent())]
    with ThreadPoolExecutor(2) as pool:
        assert set(pool.map(ask, recorders)) == {TINY.python}
    makers = [recorder for recorder in recorders if any(name.startswith("make") for name in recorder.seconds)]
    assert len(makers) == 1


def test_only_sanderling_is_reachable_in_it(made):
    program = (
        "import importlib.util, json, sanderling.core.errors; "
        "print(json.dumps([importlib.util.find_spec(name) is None for name in ('numpy', 'onnx', 'pytest')]))"
    )
    assert json.loads(told_by(made[0], program, PYTHONPATH=str(import_path()))) == [True, True, True]
    assert [path.name for path in import_path().iterdir()] == ["sanderling"]


def test_known_environments_are_found_by_their_engine():
    assert environment_of("rknn").name == "rknn"
    with pytest.raises(
        OptionError, match=r"engine 'onnxruntime' needs no environment of its own, .*are mindspore, rknn"
    ):
        environment_of("onnxruntime")
    with pytest.raises(OptionError, match=r"unknown engine 'abacus': .*are mindspore, rknn"):
        environment_of("abacus")

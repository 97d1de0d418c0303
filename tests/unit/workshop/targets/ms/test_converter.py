"""Which converter is taken, and what becomes of its failures. The programs here are fakes: small scripts."""

from __future__ import annotations

import stat
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sanderling.core.errors import EngineError, ModelError, UnavailableError
from sanderling.run.mindspore_lite import library
from sanderling.workshop.targets.ms.converter import find_converter, tools
from sanderling.workshop.targets.ms.reader import read

FILE = Path(__file__).parents[4] / "data" / "classifier-int8.ms"
LOGGED = (
    "[ERROR] LITE(1,7f,converter_lite):2026-12-01-16:00:00.1 [mindspore/lite/x.cc:1] Parse] not support onnx op Foo"
)


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Puts a fake `converter_lite` on PATH, which runs the lines given; `flags` are its arguments by name."""
    folder = tmp_path / "fakes"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def write(lines: str):
        program = folder / "converter_lite"
        start = "import os, shutil, signal, sys, time\nflags = dict(one[2:].split('=', 1) for one in sys.argv[1:])\n"
        program.write_text(f"#!{sys.executable}\n{start}{lines}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        return find_converter()

    return write


@pytest.fixture
def source(tmp_path) -> Path:
    (tmp_path / "model.onnx").write_bytes(b"graph")
    return tmp_path / "model.onnx"


def written(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name not in ("fakes", "model.onnx", "model.tflite"))


def test_program_on_path_comes_before_the_libraries(fake):
    assert fake("pass").label == "converter_lite (on PATH)"


def test_libraries_are_taken_where_no_program_is_on_path(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(library, "state", lambda: library.State(True))
    found = find_converter()
    assert found.program is None
    assert found.label == "the converter in PyPI's mindspore-lite 2.0.0, called through Sanderling's bridge"


def test_no_converter_says_how_to_get_one(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SANDERLING_CACHE", str(tmp_path))
    with pytest.raises(UnavailableError, match=r"converter_lite is not on PATH, and .* devices --install mindspore"):
        find_converter()
    assert not any(tool.found for tool in tools()[:2])
    assert all(tool.hint for tool in tools() if not tool.found)


@pytest.mark.parametrize(
    ("half", "suffix", "flags"),
    [
        (False, ".onnx", {"fmk": "ONNX", "inputDataFormat": "NCHW", "fp16": "off"}),
        (True, ".onnx", {"fmk": "ONNX", "inputDataFormat": "NCHW", "fp16": "on"}),
        (False, ".tflite", {"fmk": "TFLITE", "inputDataFormat": "NHWC", "fp16": "off"}),
    ],
)
def test_program_is_told_format_layout_and_precision(fake, source, tmp_path, half, suffix, flags):
    told = tmp_path / "told"
    converter = fake(
        f"open({str(told)!r}, 'w').write(repr(flags))\nshutil.copy({str(FILE)!r}, flags['outputFile'] + '.ms')"
    )
    given = source.rename(source.with_suffix(suffix))
    converter.convert(given, tmp_path / "out.ms", half=half)
    assert (tmp_path / "out.ms").read_bytes() == FILE.read_bytes()
    assert read(tmp_path / "out.ms").nodes
    assert flags.items() <= eval(told.read_text()).items()


def test_refusal_of_the_program_is_told_in_its_own_words(fake, source, tmp_path):
    converter = fake(f"print({LOGGED!r}, file=sys.stderr)\nsys.exit(1)")
    with pytest.raises(ModelError, match="converter_lite refuses it: not support onnx op Foo"):
        converter.convert(source, tmp_path / "out.ms")
    assert written(tmp_path) == []


def test_program_that_writes_nothing_is_no_success(fake, source, tmp_path):
    converter = fake(f"print({LOGGED!r}, file=sys.stderr)")
    with pytest.raises(ModelError, match="converter_lite wrote nothing: not support onnx op Foo"):
        converter.convert(source, tmp_path / "out.ms")
    assert written(tmp_path) == []


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGSEGV)", "sys.exit(139)"])
def test_program_that_crashes_is_told(fake, source, tmp_path, end):
    converter = fake(f"print({LOGGED!r}, file=sys.stderr, flush=True)\n{end}")
    with pytest.raises(EngineError, match="converter_lite crashed: not support onnx op Foo"):
        converter.convert(source, tmp_path / "out.ms")
    assert written(tmp_path) == []


def test_program_that_hangs_is_ended(fake, source, tmp_path):
    converter = replace(fake("time.sleep(60)"), timeout_s=0.5)
    with pytest.raises(EngineError, match=r"converter_lite gave no answer for 0\.5 s and was ended"):
        converter.convert(source, tmp_path / "out.ms")
    assert written(tmp_path) == []

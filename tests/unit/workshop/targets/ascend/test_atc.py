"""The command line of `atc`: as it is written, what it refuses, and what is made of what a fake `atc` does."""

import os
import re
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from sanderling.core.errors import EngineError, ModelError, OptionError
from sanderling.workshop.targets.ascend.atc import Command, check, convert, find_program
from tests import fake_atc

FIXED = Command(
    soc_version="Ascend310P3",
    model="model.onnx",
    output="model",
    input_shape={"input": (1, 3, 224, 224)},
    precision_mode_v2="fp16",
)
BATCHES = replace(FIXED, input_shape={"input": (-1, 3, 224, 224)}, dynamic_batch_size=(1, 2, 4, 8))
SIZES = replace(FIXED, input_shape={"input": (1, 3, -1, -1)}, dynamic_image_size=((224, 224), (320, 256)))
DIMS = replace(
    FIXED,
    input_format="ND",
    input_shape={"ids": (-1, -1), "mask": (-1, -1)},
    dynamic_dims=((1, 64, 1, 64), (1, 128, 1, 128)),
)


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """A fake atc on PATH, and the folder with a model that it would read; call it to say what the fake does."""
    (tmp_path / "bin").mkdir()
    fake_atc.install(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "model.onnx").write_bytes(b"onnx")

    def does(wish) -> Path:
        monkeypatch.setenv("FAKE_ATC", wish)
        return tmp_path / "work"

    return does


def test_command_is_written_as_atc_reads_it():
    command = replace(BATCHES, insert_op_conf="aipp.cfg", op_precision_mode="precision.ini", keep_dtype="keep.cfg")
    assert command.arguments() == [
        "atc",
        "--framework=5",
        "--model=model.onnx",
        "--output=model",
        "--soc_version=Ascend310P3",
        "--input_format=NCHW",
        "--input_shape=input:-1,3,224,224",
        "--dynamic_batch_size=1,2,4,8",
        "--precision_mode_v2=fp16",
        "--op_precision_mode=precision.ini",
        "--keep_dtype=keep.cfg",
        "--insert_op_conf=aipp.cfg",
        "--log=error",
    ]


def test_profiles_are_parted_by_semicolons_that_a_shell_leaves_alone():
    assert "'--dynamic_image_size=224,224;320,256'" in SIZES.line()
    assert "'--input_shape=ids:-1,-1;mask:-1,-1'" in DIMS.line()


def test_omg_is_told_what_it_knows():
    command = replace(DIMS, program="omg", soc_version="", precision_mode_v2="")
    assert command.arguments() == [
        "omg",
        "--framework=5",
        "--model=model.onnx",
        "--output=model",
        "--input_shape=ids:-1,-1;mask:-1,-1",
        "--dynamic_dims=1,64,1,64;1,128,1,128",
    ]


@pytest.mark.parametrize("command", [FIXED, BATCHES, SIZES, DIMS, replace(SIZES, insert_op_conf="aipp.cfg")])
def test_good_commands_pass(command):
    check(command)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (replace(BATCHES, dynamic_image_size=((2, 2), (3, 3))), "E10009"),
        (replace(FIXED, input_shape={"input": (0, 3, 8, 8)}), "E10011"),
        (replace(FIXED, input_shape={"input": (-1, 3, 8, 8)}), "E10011"),
        (replace(BATCHES, input_shape={"input": (1, 3, 8, 8)}), "E10031"),
        (replace(BATCHES, input_shape={"input": (-1, 3, -1, 8)}), "E10018"),
        (replace(BATCHES, dynamic_batch_size=(4,)), "E10035"),
        (replace(BATCHES, dynamic_batch_size=tuple(range(1, 102))), "E10036"),
        (replace(BATCHES, dynamic_batch_size=(1, 0)), "E10038"),
        (replace(BATCHES, dynamic_batch_size=(2, 2)), "E10039"),
        (replace(SIZES, input_shape={"input": (1, 3, 8, 8)}), "E10019"),
        (replace(SIZES, input_shape={"input": (-1, 3, -1, -1)}), "E10019"),
        (replace(SIZES, dynamic_image_size=((2, 2), (3,))), "E10037"),
        (replace(DIMS, input_shape={"ids": (1, 64), "mask": (1, 64)}), "E10040"),
        (replace(DIMS, input_shape={"ids": (1, -1), "mask": (1, -1)}), "E10003"),
        (replace(DIMS, insert_op_conf="aipp.cfg"), "E10001"),
        (replace(FIXED, precision_mode="force_fp32"), "E10056"),
        (replace(FIXED, precision_mode_v2="fp8"), "E10001"),
        (replace(FIXED, precision_mode_v2="", precision_mode="half"), "E10001"),
        (replace(FIXED, modify_mixlist="mixlist.json"), "E10001"),
    ],
)
def test_what_atc_would_refuse_is_refused_with_its_number(command, code):
    with pytest.raises(OptionError, match=f"^atc {code}: "):
        check(command)


@pytest.mark.parametrize("command", [BATCHES, SIZES, DIMS])
def test_int8_takes_no_profiles(command):
    check(replace(FIXED, in_integers=True))
    with pytest.raises(OptionError, match=r"in INT8 \(AscendQuant\) takes no --dynamic_\w+: use batch=1,4,8"):
        check(replace(command, in_integers=True))


def test_mixed_precision_takes_its_list():
    check(replace(FIXED, precision_mode_v2="mixed_float16", modify_mixlist="mixlist.json"))


def test_result_lies_where_the_command_says(fake):
    folder = fake("ok")
    convert(FIXED, folder)
    assert "a fake atc" in (folder / "model.om").read_text()
    assert find_program("atc") is not None


@pytest.mark.parametrize(
    ("wish", "error", "told"),
    [
        ("E16002", ModelError, r"atc E16002: No ONNX parser is registered for optype \[Gelu\]; sanderling check"),
        ("E10011", OptionError, r"atc E10011: Value \[input:0,3\] for parameter --input_shape is invalid"),
        ("E19999", EngineError, r"atc E19999: Unknown error occurred"),
        ("strange", EngineError, r"atc ended with code 1: Segment library is missing"),
        ("nothing", EngineError, r"atc ended well and wrote no model\.om"),
        ("crash", EngineError, rf"atc crashed \(signal {signal.SIGABRT.value}\): free\(\): invalid pointer"),
    ],
)
def test_failure_becomes_an_error_of_ours(fake, wish, error, told):
    with pytest.raises(error, match=f"^{told}"):
        convert(FIXED, fake(wish))


def test_flag_that_this_atc_lacks_is_named(fake, monkeypatch):
    monkeypatch.setattr(Command, "arguments", lambda _: ["atc", "--framework=5", "--quantum_mode=on"])
    with pytest.raises(EngineError, match=r"this atc has no --quantum_mode: install a newer CANN toolkit"):
        convert(FIXED, fake("ok"))


def test_missing_file_is_told_as_atc_tells_it(fake):
    folder = fake("ok")
    with pytest.raises(OptionError, match=r"atc E10410: File aipp\.cfg does not exist"):
        convert(replace(FIXED, insert_op_conf="aipp.cfg"), folder)


def test_hanging_atc_is_ended_with_all_that_it_started(fake):
    folder = fake("hang")
    with pytest.raises(EngineError, match=re.escape("atc took longer than 6 s and was ended: atc --framework=5")):
        convert(FIXED, folder, timeout_s=6)
    child = int((folder / "child.pid").read_text())
    for _ in range(50):
        if not running(child):
            return
        time.sleep(0.1)
    os.kill(child, signal.SIGKILL)
    pytest.fail("the child of the fake atc still runs")


def running(pid):
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(state.strip()) and not state.strip().startswith("Z")


def test_atc_that_is_not_there_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_program("atc") is None
    with pytest.raises(EngineError, match=r"atc could not be run: No such file"):
        convert(FIXED, tmp_path)

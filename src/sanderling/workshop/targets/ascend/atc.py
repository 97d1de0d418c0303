"""`atc`'s command line: what excludes itself is refused before, with the number of the error that `atc` has for it.

Kirin chips of phones have an older tool, `omg`, which takes a few of the same flags.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sanderling.core.errors import EngineError, OptionError, first_line
from sanderling.run.commands import run_command
from sanderling.workshop.targets.ascend.errors import excluded, failure, numbered

PROGRAM = "atc"
KIRIN = "omg"
HINTS = {
    PROGRAM: "install the CANN toolkit for Ascend and source its set_env.sh",
    KIRIN: "add tools_omg of HarmonyOS's CANN Kit to it",
}
ONNX = 5  # of --framework
DYNAMIC = -1
PRECISION_MODES = (
    "force_fp16",
    "force_fp32",
    "cube_fp16in_fp32out",
    "allow_mix_precision",
    "allow_mix_precision_fp16",
    "allow_mix_precision_bf16",
    "allow_fp32_to_fp16",
    "allow_fp32_to_bf16",
    "must_keep_origin_dtype",
)
PRECISION_MODES_V2 = (
    "fp16",
    "origin",
    "cube_fp16in_fp32out",
    "mixed_float16",
    "mixed_bfloat16",
    "cube_hif8",
    "mixed_hif8",
)
KEEPING = ("must_keep_origin_dtype", "origin")
MIXED = tuple(mode for mode in (*PRECISION_MODES, *PRECISION_MODES_V2) if "mix" in mode)
_LEAST_PROFILES, _MOST_PROFILES = 2, 100
_CONVERT_S = 1800

Profiles = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Command:
    """One run of `atc` on an ONNX file.

    Attributes:
        soc_version: of the chip that the result runs on; empty for `omg`, whose files run on all of its chips.
        model: file name, relative to where `atc` runs.
        output: file name of the result without ``.om``.
        input_shape: by input; -1 where profiles say the size.
        input_format: ``NCHW`` or ``ND``.
        precision_mode: one of ``PRECISION_MODES``, or empty.
        precision_mode_v2: one of ``PRECISION_MODES_V2``, or empty.
        dynamic_batch_size: sizes of the first axis.
        dynamic_image_size: heights and widths.
        dynamic_dims: sizes of all axes that are -1, in the inputs' order.
        insert_op_conf: file with settings of AIPP.
        op_precision_mode: file with nodes and their precision.
        modify_mixlist: file with types of operators for mixed precision.
        keep_dtype: file with nodes that keep their type.
        in_integers: the model has AscendQuant nodes.
        program: ``PROGRAM`` or ``KIRIN``.
    """

    soc_version: str
    model: str
    output: str
    input_shape: Mapping[str, tuple[int, ...]]
    input_format: str = "NCHW"
    precision_mode: str = ""
    precision_mode_v2: str = ""
    dynamic_batch_size: tuple[int, ...] = ()
    dynamic_image_size: Profiles = ()
    dynamic_dims: Profiles = ()
    insert_op_conf: str = ""
    op_precision_mode: str = ""
    modify_mixlist: str = ""
    keep_dtype: str = ""
    in_integers: bool = False
    program: str = PROGRAM

    @property
    def result(self) -> str:
        """The file that `atc` writes."""
        return f"{self.output}.om"

    def arguments(self) -> list[str]:
        """Program and flags."""
        flags = {
            "framework": str(ONNX),
            "model": self.model,
            "output": self.output,
            "soc_version": self.soc_version,
            "input_format": self.input_format if self.program == PROGRAM else "",
            "input_shape": ";".join(f"{name}:{_joined(shape)}" for name, shape in self.input_shape.items()),
            "dynamic_batch_size": _joined(self.dynamic_batch_size),
            "dynamic_image_size": ";".join(map(_joined, self.dynamic_image_size)),
            "dynamic_dims": ";".join(map(_joined, self.dynamic_dims)),
            "precision_mode": self.precision_mode,
            "precision_mode_v2": self.precision_mode_v2,
            "op_precision_mode": self.op_precision_mode,
            "modify_mixlist": self.modify_mixlist,
            "keep_dtype": self.keep_dtype,
            "insert_op_conf": self.insert_op_conf,
            "log": "error" if self.program == PROGRAM else "",
        }
        return [self.program, *(f"--{name}={value}" for name, value in flags.items() if value)]

    def line(self) -> str:
        """The command as a shell takes it."""
        return shlex.join(self.arguments())


def check(command: Command) -> None:
    """Refuse what `atc` would refuse, and what it would only notice after minutes.

    Raises:
        OptionError: the message holds the number of `atc`'s error where it has one.
    """
    _check_precision(command)
    profiles = {
        "dynamic_batch_size": tuple((size,) for size in command.dynamic_batch_size),
        "dynamic_image_size": command.dynamic_image_size,
        "dynamic_dims": command.dynamic_dims,
    }
    used = [name for name, values in profiles.items() if values]
    if len(used) > 1:
        raise excluded("E10009", instead=f"got {' and '.join(used)}: choose one")
    if not used:
        _check_fixed(command)
        return
    if command.in_integers:
        raise OptionError(
            f"a model in INT8 (AscendQuant) takes no --{used[0]}: use batch=1,4,8, which makes a file for each size, "
            "or another variant"
        )
    _check_profiles(used[0], profiles[used[0]])
    _check_axes(command, used[0])


def convert(command: Command, folder: Path, *, timeout_s: float = _CONVERT_S) -> None:
    """Run the command in ``folder``, where its files are.

    Raises:
        ModelError: the program does not take the graph.
        OptionError: it does not take the command.
        EngineError: it could not be run, crashed, took too long, or wrote nothing.
    """
    name = command.program
    try:
        done = run_command(command.arguments(), timeout_s=timeout_s, folder=folder)
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"{name} took longer than {timeout_s:g} s and was ended: {command.line()}") from error
    except OSError as error:
        raise EngineError(f"{name} could not be run: {error.strerror or first_line(error)}") from error
    printed = done.stdout + done.stderr
    if done.returncode < 0:
        told = first_line(EngineError(done.stderr)) if done.stderr.strip() else "it printed nothing"
        raise EngineError(f"{name} crashed (signal {-done.returncode}): {told}")
    if done.returncode:
        raise failure(name, printed, done.returncode)
    if not (folder / command.result).is_file():
        raise EngineError(f"{name} ended well and wrote no {command.result}: {first_line(EngineError(printed))}")


def find_program(name: str) -> str | None:
    """Where `atc` or `omg` is, if it is on PATH."""
    return shutil.which(name)


def _check_precision(command: Command) -> None:
    v1, v2 = command.precision_mode, command.precision_mode_v2
    if v1 and v2:
        raise excluded("E10056", "precision_mode", "precision_mode_v2", instead="give one of them")
    for name, value, known in (
        ("precision_mode", v1, PRECISION_MODES),
        ("precision_mode_v2", v2, PRECISION_MODES_V2),
    ):
        if value and value not in known:
            reason = f"Valid values are: {', '.join(known)}"
            raise OptionError(numbered("E10001", value, name, reason))
    if command.modify_mixlist and (v1 or v2) not in MIXED:
        reason = f"a list for mixed precision needs one of {', '.join(MIXED)}"
        raise OptionError(numbered("E10001", command.modify_mixlist, "--modify_mixlist", reason))


def _check_fixed(command: Command) -> None:
    for name, shape in command.input_shape.items():
        wrong = [size for size in shape if size <= 0]
        if wrong:
            raise excluded("E10011", f"{name}:{_joined(shape)}", wrong[0], instead="give sizes from 1 on, or profiles")


def _check_profiles(name: str, profiles: Profiles) -> None:
    """Their number, their sizes, and that no two are the same."""
    if len(profiles) < _LEAST_PROFILES:
        raise excluded("E10035", len(profiles), _LEAST_PROFILES, instead="fix the size with batch= or axes= instead")
    if len(profiles) > _MOST_PROFILES:
        raise excluded("E10036", len(profiles), _MOST_PROFILES, instead="give fewer")
    lengths = [len(profile) for profile in profiles]
    other = next((length for length in lengths if length != lengths[0]), None)
    if other is not None:
        raise excluded("E10037", lengths[0], other, instead="give each the same number of sizes")
    small = next((size for profile in profiles for size in profile if size <= 0), None)
    if small is not None:
        raise excluded("E10038", small, instead=f"change --{name}")
    if len(set(profiles)) < len(profiles):
        raise excluded("E10039", instead=f"give each profile of --{name} once")


def _check_axes(command: Command, name: str) -> None:
    """That the axes which the profiles are for are -1, and no others."""
    shapes = command.input_shape
    free = {key: [axis for axis, size in enumerate(shape) if size == DYNAMIC] for key, shape in shapes.items()}
    count = sum(map(len, free.values()))
    if not count:
        code = {"dynamic_batch_size": "E10031", "dynamic_image_size": "E10019", "dynamic_dims": "E10040"}[name]
        raise excluded(code, instead="the model has a fixed size there: build it with --dynamic")
    if name == "dynamic_batch_size":
        for key, axes in free.items():
            if axes and axes != [0]:
                raise excluded("E10018", DYNAMIC, key, instead="fix the other axes with axes=NAME=SIZE, or use dims=")
        return
    if name == "dynamic_image_size":
        if any(axes and (axes != [2, 3] or len(shapes[key]) != 4) for key, axes in free.items()):
            raise excluded("E10019", instead="fix the other axes with batch= or axes=NAME=SIZE, or use dims=")
        return
    if command.insert_op_conf:
        reason = "The dynamic dims function does not support AIPP"
        raise excluded("E10001", command.insert_op_conf, "--insert_op_conf", reason, instead="leave source= out")
    length = len(command.dynamic_dims[0])
    if count != length:
        reason = f"the model has {count} dynamic axes, and each profile has {length} sizes"
        raise OptionError(numbered("E10003", ";".join(map(_joined, command.dynamic_dims)), name, reason))


def _joined(sizes: Sequence[int]) -> str:
    return ",".join(map(str, sizes))

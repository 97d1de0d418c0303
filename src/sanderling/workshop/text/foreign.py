"""Variants for other engines than ONNX Runtime: the GGUF file itself for llama.cpp, and OpenVINO's graph made from it.

OpenVINO's graph is written by openvino-genai, which reads GGUF. Its integers hold Q8_0 exactly, but Q4_1 and its like
only rounded once more, so it is given all weights in Q8_0.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from sanderling.core.errors import EngineError, ModelError, OptionError, UnavailableError, first_line
from sanderling.core.precision import Precision
from sanderling.run.commands import run_command
from sanderling.run.text.engines import ONNX_ENGINES, text_engine
from sanderling.workshop.text.source import TextSource

ENGINES: Mapping[str, tuple[str, ...]] = {"gguf": ("llama_cpp",), "openvino": ("openvino",)}
FILES: Mapping[str, tuple[str, str | None]] = {
    "gguf": ("model.gguf", None),
    "openvino": ("openvino_model.xml", "openvino_model.bin"),
}
OPENVINO_ARCHITECTURES = ("llama", "qwen2", "qwen3")  # of GGUF files, that openvino-genai reads
_FLOAT_FILES = {0: Precision.FP32, 1: Precision.FP16, 7: Precision.INT8_WEIGHTS}  # general.file_type
_TIMEOUT_S = 1800
_Q8_0_FILE = 7


def engines_of(identifier: str) -> tuple[str, ...]:
    """Engines that take a variant of that id."""
    return ENGINES.get(identifier, ONNX_ENGINES)


def check_foreign(precisions: tuple[str, ...], source: TextSource) -> None:
    """Refuse variants that cannot be made or measured here, before anything long begins.

    Raises:
        OptionError: the source is no GGUF file.
        ModelError: its architecture is none that openvino-genai reads.
        UnavailableError: an engine is missing.
    """
    for name in precisions:
        if name not in ENGINES:
            continue
        if source.format != "gguf":
            raise OptionError(f"variant '{name}' is made from a GGUF file: {source.name} is a folder; leave it out")
        text_engine(ENGINES[name][0])
    if "openvino" in precisions:
        if importlib.util.find_spec("openvino_genai") is None:
            raise UnavailableError("variant 'openvino' needs openvino-genai: pip install 'sanderling[text-openvino]'")
        architecture = str(_fields(source.path)["general.architecture"])
        if architecture not in OPENVINO_ARCHITECTURES:
            known = ", ".join(OPENVINO_ARCHITECTURES)
            raise ModelError(f"{source.name} is of the architecture {architecture}: OpenVINO's reader knows {known}")


def write_foreign(name: str, source: TextSource, folder: Path, scratch: Path) -> None:
    """Write the model of a variant into its folder.

    Raises:
        EngineError: the converter failed, or took more than half an hour.
    """
    if name == "gguf":
        shutil.copyfile(source.path, folder / FILES[name][0])
        return
    scratch.mkdir()
    requantized = scratch / "model.gguf"
    _write_q8_0(source.path, requantized)
    command = [sys.executable, "-m", __name__, str(requantized)]
    try:
        done = run_command(command, timeout_s=_TIMEOUT_S, variables=dict(os.environ))
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"{source.name}: the conversion for OpenVINO took more than {_TIMEOUT_S} s") from error
    for file in FILES[name]:
        made = scratch / str(file)
        if not made.is_file():
            told = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            raise EngineError(f"{source.name}: openvino-genai wrote no {file}: {told}")
        shutil.move(made, folder / made.name)
    shutil.rmtree(scratch)


def foreign_precision(name: str, source: TextSource) -> Precision:
    """How such a variant stores its weights."""
    if name == "openvino":
        return Precision.INT8_WEIGHTS
    kind = _fields(source.path).get("general.file_type")
    return _FLOAT_FILES.get(kind if isinstance(kind, int) else -1, Precision.INT4_WEIGHTS)


def _fields(path: Path) -> dict[str, object]:
    from gguf import GGUFReader

    fields = GGUFReader(path).fields
    wanted = ("general.architecture", "general.file_type")
    return {name: fields[name].contents() for name in wanted if name in fields}


def _write_q8_0(source: Path, target: Path) -> None:
    """Write a GGUF file again with every table in Q8_0: blocks of 32 of 8 bits with one scale."""
    import numpy as np
    from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
    from gguf.quants import dequantize, quantize

    reader = GGUFReader(source)
    writer = GGUFWriter(target, str(reader.fields["general.architecture"].contents()))
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, sub_type=inner)
    writer.add_uint32("general.file_type", _Q8_0_FILE)
    form = GGMLQuantizationType.Q8_0
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if values.ndim < 2:
            writer.add_tensor(tensor.name, values)
        else:
            writer.add_tensor(tensor.name, quantize(values, form), raw_dtype=form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _save(path: str) -> None:
    """Let openvino-genai write its graph beside a GGUF file; in a process of its own, for its memory."""
    import openvino_genai

    openvino_genai.LLMPipeline(path, "CPU", enable_save_ov_model=True)


if __name__ == "__main__":
    try:
        _save(sys.argv[1])
    except RuntimeError as error:
        sys.exit(first_line(error))

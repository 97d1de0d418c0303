"""What a user asks of a build and of a training."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from sanderling.core.errors import OptionError
from sanderling.core.precision import Precision
from sanderling.core.tensor import TensorSpec, parse_shape
from sanderling.model.manifest import Budget, Metric
from sanderling.workshop.quantize.weight_only import DEFAULT_GROUP_SIZE, GROUP_SIZES

_DTYPE = re.compile(r":(?P<dtype>[a-z]+[0-9]*)$")
_DTYPES = ("float32", "float16", "float64", "int64", "int32", "int8", "uint8", "bool")
_METRICS = get_args(Metric)


class InputOption(TensorSpec):
    """An input as the user gave it; without a dtype it is float32 for PyTorch, and the graph's own for ONNX."""

    dtype_given: bool = False


@dataclass(frozen=True)
class BuildOptions:
    """Options of a build; paths are not checked until they are used.

    Attributes:
        source: ``FILE.onnx``, ``FILE.pt2``, ``package.module:factory``, or a pickled module.
        output: ``NAME.sdl`` (a folder) or ``NAME.sdl.zip``.
        weights: checkpoint for a factory, ``.safetensors``, ``.pt`` or ``.pth``.
        reference: ONNX file of the float model that a quantised source was made from.
        factory_arguments: keyword arguments of the factory.
        inputs: shape and dtype of each input; needed for PyTorch, overrides dynamic axes of ONNX.
        dynamic_batch: make the first axis of every input dynamic.
        opset: of the export.
        calibration: folder of pictures or ``.npz``; INT8 needs it.
        evaluation: folder, CSV or ``.npz``; part of the calibration data is held out without it.
        budget: what accuracy may cost.
        calibration_limit: most calibration samples used; a seeded choice when there are more.
        precisions: variants to make; FP32 always is. None makes all that the data allows and that suit the model.
        group_size: weights that share a scale in the variants of which only the weights are in few bits.
        float_embeddings: leave embedding tables in float there.
        mixed_from: package with a search for mixed precision, a point of which is taken instead of a new search.
        layers_float: that point, by its number of blocks in float.
        preprocess: preset, ``sound:RATE``, JSON or file.
        labels: text file with one class a line, or ``imagenet``.
        detection: family of detectors, JSON or file; None where the outputs' shapes show it.
        trust_pickle: load a pickled module, which runs code from the file.
        task: ``embeddings`` for a model of sentences; None for any other.
        tokenizer: ``tokenizer.json`` of such a model.
        threads: of each measured call; 0 means all usable cores.
        repeats: timed calls of each variant.
        seed: of everything random.
    """

    source: str
    output: Path
    weights: Path | None = None
    reference: Path | None = None
    factory_arguments: dict[str, Any] = field(default_factory=dict)
    inputs: tuple[InputOption, ...] = ()
    dynamic_batch: bool = False
    opset: int = 18
    calibration: Path | None = None
    evaluation: Path | None = None
    budget: Budget | None = None
    calibration_limit: int = 512
    precisions: tuple[Precision, ...] | None = None
    group_size: int = DEFAULT_GROUP_SIZE
    float_embeddings: bool = False
    mixed_from: Path | None = None
    layers_float: int | None = None
    preprocess: str | None = None
    labels: str | None = None
    detection: str | None = None
    trust_pickle: bool = False
    task: str | None = None
    tokenizer: Path | None = None
    threads: int = 0
    repeats: int = 100
    seed: int = 0


@dataclass(frozen=True)
class TrainingOptions:
    """What a user asks of quantisation-aware training.

    Attributes:
        epochs: passes over the training data.
        learning_rate: highest one of AdamW; it falls to 0 along a cosine.
        batch: samples a step.
        distillation: share of the loss that asks for the float model's outputs instead of the labels, 0 to 1.
        samples: most training samples of an epoch, others in each; 0 means all.
    """

    epochs: int = 2
    learning_rate: float = 1e-4
    batch: int = 128
    distillation: float = 0.9
    samples: int = 10_000


def parse_input(text: str) -> InputOption:
    """Read ``NAME=1,3,224,224`` or ``NAME=1,16:int64``.

    Raises:
        OptionError: the text has another form, or the dtype is unknown.
    """
    given = _DTYPE.search(text.strip())
    name, shape = parse_shape(text[: text.rindex(":")] if given else text)
    dtype = given["dtype"] if given else "float32"
    if dtype not in _DTYPES:
        raise OptionError(f"--input '{text}' has dtype '{dtype}': available are {', '.join(_DTYPES)}")
    return InputOption(name=name, dtype=dtype, shape=shape, dtype_given=given is not None)


def parse_budget(text: str) -> Budget:
    """Read ``top1=0.8``, ``map=1`` or ``agreement=2`` (percentage points), or ``cosine=0.001``.

    Raises:
        OptionError: the metric is unknown or the limit is no number of at least 0.
    """
    metric, _, limit = text.partition("=")
    if metric not in _METRICS:
        raise OptionError(f"--budget '{text}' names no metric: expected one of {', '.join(_METRICS)}, as in top1=0.8")
    try:
        value = float(limit)
    except ValueError:
        value = math.nan
    if not value >= 0 or math.isinf(value):
        raise OptionError(f"--budget '{text}' has the limit '{limit}': expected a number of at least 0, as in top1=0.8")
    return Budget.model_validate({"metric": metric, "limit": value})


def check_group_size(size: int) -> int:
    """Return a group size that the kernels have.

    Raises:
        OptionError: any other.
    """
    if size not in GROUP_SIZES:
        raise OptionError(f"--group-size {size} has no kernel: available are {', '.join(map(str, GROUP_SIZES))}")
    return size


def parse_dynamic(names: list[str]) -> bool:
    """Read the axes that ``--dynamic`` names; only the batch can be dynamic.

    Raises:
        OptionError: another axis.
    """
    for name in names:
        if name != "batch":
            raise OptionError(f"--dynamic '{name}' is not supported: only 'batch', the first axis, can be dynamic")
    return bool(names)

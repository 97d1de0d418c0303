"""Look at a model before anything is done to it: what it takes, what it costs, what looks wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import onnx
from pydantic import BaseModel, ConfigDict

from sanderling.core.errors import EngineError, ModelError, OptionError
from sanderling.core.tensor import TensorSpec
from sanderling.measure.text_inspection import read_text_graph
from sanderling.model.cost import GraphCost, graph_cost
from sanderling.model.graph import (
    all_nodes,
    element_count,
    initializer_array,
    input_specs,
    lifted,
    opset_of,
    output_specs,
    read_graph,
    set_shape,
    used_names,
    weight_bytes,
)
from sanderling.model.learning import LearningSpec
from sanderling.model.package import MANIFEST, Package
from sanderling.model.text import TextSpec
from sanderling.run.engines import DEFAULT_ENGINE, engine
from sanderling.run.engines.base import EngineOptions, Optimization
from sanderling.run.session import check_one_graph

_HEAVIEST = 10
_NAMED = 5


class Finding(BaseModel):
    """Something that looks wrong, or that the user should know."""

    model_config = ConfigDict(frozen=True)

    kind: str
    subject: str
    detail: str


class HeavyNode(BaseModel):
    """One of the costliest nodes."""

    model_config = ConfigDict(frozen=True)

    name: str
    op_type: str
    macs: int
    weight_bytes: int


class Inspection(BaseModel):
    """What is known of a model without running it.

    Attributes:
        macs: multiply–accumulates of one run, every dynamic axis taken as 1.
        peak_activation_bytes: most bytes of inputs and intermediate tensors alive at once; None of a language model,
            where they depend on the prompt.
        compute_density: MACs per byte of weights and outputs moved.
        learning: what a task can train; None of any other model.
        text: what a language model reads and writes; its costs are those of its products with weights, for one token.
    """

    model_config = ConfigDict(frozen=True)

    model: str
    opset: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    operators: dict[str, int]
    parameters: int
    macs: int
    weight_bytes: int
    peak_activation_bytes: int | None
    compute_density: float
    heaviest: tuple[HeavyNode, ...]
    findings: tuple[Finding, ...]
    text: TextSpec | None = None
    learning: LearningSpec | None = None


def inspect(path: str | Path, *, shapes: Mapping[str, Sequence[int]] | None = None) -> Inspection:
    """Inspect an ONNX file, or the chosen variant of a package.

    Args:
        path: the file or package.
        shapes: of inputs by name, for costs at other sizes than 1 along dynamic axes.

    Raises:
        OptionError: a shape for an unknown input, or of another rank.
        ModelError: the file cannot be read.
        PackageError: the package is broken.
    """
    file, learning = Path(path), None
    if (file / MANIFEST).is_file() or file.name.endswith((".sdl", ".sdl.zip")):
        package = Package.open(file)
        if package.manifest.multimodal is not None:
            check_one_graph(package)
        file = package.file(package.variant().file)
        if package.manifest.text is not None:
            return _of_language_model(package, file)
        learning = package.manifest.learning
    model = lifted(read_graph(file))
    _fix(model, shapes or {})
    cost = graph_cost(model)
    initializers = model.graph.initializer
    heavy = sorted(cost.nodes, key=lambda node: -node.macs)[:_HEAVIEST]
    return Inspection(
        model=file.name,
        opset=opset_of(model),
        inputs=input_specs(model),
        outputs=output_specs(model),
        operators=dict(Counter(node.op_type for node in all_nodes(model.graph)).most_common()),
        parameters=sum(element_count(tensor) for tensor in initializers),
        macs=cost.macs,
        weight_bytes=sum(weight_bytes(tensor) for tensor in initializers),
        peak_activation_bytes=cost.peak_activation_bytes,
        compute_density=cost.compute_density,
        heaviest=tuple(
            HeavyNode(name=node.name, op_type=node.op_type, macs=node.macs, weight_bytes=node.weight_bytes)
            for node in heavy
            if node.macs
        ),
        findings=tuple(_findings(model, cost, file)),
        learning=learning,
    )


def _of_language_model(package: Package, file: Path) -> Inspection:
    """The chosen variant's graph, or that of the first one in ONNX where it is for another engine."""
    if file.suffix != ".onnx":
        files = [package.file(variant.file) for variant in package.manifest.variants]
        file = next((each for each in files if each.suffix == ".onnx"), file)
    found = read_text_graph(file)
    macs, read = sum(node.macs for node in found.products), sum(node.weight_bytes for node in found.products)
    heavy = sorted(found.products, key=lambda node: -node.macs)[:_HEAVIEST]
    return Inspection(
        model=file.name,
        opset=found.opset,
        inputs=package.manifest.inputs,
        outputs=package.manifest.outputs,
        operators=found.operators,
        parameters=found.parameters,
        macs=macs,
        weight_bytes=found.weight_bytes,
        peak_activation_bytes=None,
        compute_density=macs / read if read else 0.0,
        heaviest=tuple(HeavyNode(**asdict(node)) for node in heavy),
        findings=(),
        text=package.manifest.text,
    )


def _fix(model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]]) -> None:
    ranks = {spec.name: len(spec.shape) for spec in input_specs(model)}
    for name, shape in shapes.items():
        if ranks.get(name) != len(shape):
            known = "; ".join(map(str, input_specs(model)))
            raise OptionError(f"--input '{name}={','.join(map(str, shape))}' does not fit: inputs are {known}")
        set_shape(next(value for value in model.graph.input if value.name == name), tuple(shape))


def _findings(model: onnx.ModelProto, cost: GraphCost, file: Path) -> list[Finding]:
    found = []
    for axis, size in cost.assumed.items():
        detail = f"taken as {size} here; fix it with --input, or build with --dynamic batch if it is the batch"
        found.append(Finding(kind="dynamic-axis", subject=axis, detail=detail))
    used = used_names(model.graph)
    for tensor in model.graph.initializer:
        if tensor.name not in used:
            detail = f"{weight_bytes(tensor):,} bytes that no node reads; a build drops them"
            found.append(Finding(kind="unused-initializer", subject=tensor.name, detail=detail))
        found += _bad_values(tensor)
    if cost.unknown:
        more = [f"and {len(cost.unknown) - _NAMED} more"] if cost.unknown[_NAMED:] else []
        subject = ", ".join([*cost.unknown[:_NAMED], *more])
        found.append(Finding(kind="cost-unknown", subject=subject, detail="their MACs are not in the sum"))
    return found + _without_kernel(file)


def _bad_values(tensor: onnx.TensorProto) -> list[Finding]:
    if tensor.data_type not in (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE):
        return []
    array = initializer_array(tensor)
    bad = array.size - int(np.isfinite(array).sum())
    if not bad:
        return []
    if array.size == 1 and np.isinf(array).all():
        return []  # the constant of a mask
    detail = f"{bad} of {array.size} values are NaN or infinite; export the model again from good weights"
    return [Finding(kind="bad-weights", subject=tensor.name, detail=detail)]


def _without_kernel(file: Path) -> list[Finding]:
    try:
        engine().load(file, EngineOptions(threads=1, optimization=Optimization.NONE)).close()
    except (ModelError, EngineError) as error:
        return [Finding(kind="not-executable", subject=DEFAULT_ENGINE, detail=str(error))]
    return []

"""What a graph shows without being run: contradictions, what nobody reads, and weights that cannot be right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx

from sanderling.core.errors import first_line
from sanderling.core.tensor import Array
from sanderling.measure.doctor.findings import Finding, advice, fault, named_first, warning
from sanderling.model.graph import all_nodes, initializer_array, input_specs, used_names, weight_bytes

_HEAVY = ("Conv", "ConvTranspose", "MatMul", "Gemm")
_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE)
_LEAST_ELEMENTS = 16
_FEW_TENSORS = 5
_SCALE_WARNING, _SCALE_FAULT = 30.0, 100.0
_PEAK_FAULT = 1e4
_DENORMAL_SHARE = 0.01
_DEAD_CHANNEL = 1e-6


@dataclass(frozen=True)
class Weight:
    """A heavy node's weights.

    Attributes:
        values: float64, one row an output channel.
        fan_in: products that make one output.
    """

    tensor: str
    node: str
    values: Array
    fan_in: int

    @property
    def scale(self) -> float:
        """Root mean square times √fan-in: how much the node amplifies; near 1 at random initialisation."""
        return float(np.sqrt(np.square(self.values).mean() * self.fan_in))


def check_structure(model: onnx.ModelProto) -> list[Finding]:
    """Shapes that contradict each other, nodes and inputs that nobody reads, weights that no node reads."""
    found = []
    try:
        if model.ByteSize() < onnx.checker.MAXIMUM_PROTOBUF:
            onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError as error:
        remedy = "export the model again; an engine may still run it, another may not"
        found.append(warning("shapes-contradict", "the graph", first_line(error), remedy))
    used = used_names(model.graph)
    unread = [node.name or node.op_type for node in model.graph.node if not used & set(node.output)]
    if unread:
        remedy = "a build removes them"
        found.append(
            advice("unused-node", named_first(unread), "no node reads their outputs", remedy, nodes=len(unread))
        )
    for spec in input_specs(model):
        if spec.name not in used:
            remedy = "look whether the export lost a branch"
            found.append(warning("unused-input", spec.name, "no node reads this input", remedy))
    idle = [tensor for tensor in model.graph.initializer if tensor.name not in used]
    if idle:
        size = sum(map(weight_bytes, idle))
        evidence = f"{size:,} bytes that no node reads"
        subject = named_first([tensor.name for tensor in idle])
        found.append(advice("unused-weights", subject, evidence, "a build drops them", size_bytes=size))
    return found


def check_weights(model: onnx.ModelProto) -> list[Finding]:
    """NaN, infinity, zeros, constants, denormals, and tensors that stand out from the model's others."""
    found: list[Finding] = []
    broken: set[str] = set()
    for tensor in model.graph.initializer:
        if tensor.data_type in _FLOATS:
            finding = _not_finite(tensor)
            if finding is not None:
                found.append(finding)
                broken.add(tensor.name)
    weights = [weight for weight in heavy_weights(model) if weight.tensor not in broken]
    for weight in weights:
        found += _degenerate(weight)
    found += _dead_channels([weight for weight in weights if np.any(weight.values)])
    found += _denormal(weights)
    return found + _outliers([weight for weight in weights if np.any(weight.values)])


def heavy_weights(model: onnx.ModelProto) -> Iterator[Weight]:
    """Constant float weights of convolutions and matrix products, each tensor once."""
    tensors = {tensor.name: tensor for tensor in model.graph.initializer if tensor.data_type in _FLOATS}
    seen: set[str] = set()
    for node in all_nodes(model.graph):
        if node.op_type not in _HEAVY or len(node.input) < 2 or node.input[1] in seen:
            continue
        tensor = tensors.get(node.input[1])
        if tensor is None or np.prod(tensor.dims) < _LEAST_ELEMENTS or len(tensor.dims) < 2:
            continue
        seen.add(tensor.name)
        rows = _by_output_channel(node, initializer_array(tensor).astype(np.float64))
        yield Weight(tensor.name, node.name or node.op_type, rows, rows.shape[1])


def _by_output_channel(node: onnx.NodeProto, array: Array) -> Array:
    """Shape (output channels, fan-in)."""
    transposed = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
    if node.op_type == "Conv" or (node.op_type == "Gemm" and transposed):
        return array.reshape(array.shape[0], -1)
    if node.op_type == "ConvTranspose":
        return np.moveaxis(array, 1, 0).reshape(array.shape[1], -1)
    return np.moveaxis(array, -1, 0).reshape(array.shape[-1], -1) if array.ndim == 2 else _stacked(array)


def _stacked(array: Array) -> Array:
    """A stack of matrices (…, K, N) as rows of K."""
    return np.swapaxes(array, -1, -2).reshape(-1, array.shape[-2])


def _not_finite(tensor: onnx.TensorProto) -> Finding | None:
    array = initializer_array(tensor)
    bad = array.size - int(np.isfinite(array).sum())
    mask = bool(np.isinf(array).any()) and not np.isnan(array).any() and bool((array[np.isinf(array)] < 0).all())
    if not bad or (mask and np.isin(array, (0, -np.inf)).all()):
        return None  # what an attention mask adds
    evidence = f"{bad} of {array.size} values are NaN or infinite"
    return fault("weights-not-finite", tensor.name, evidence, "export the model again from good weights", values=bad)


def _degenerate(weight: Weight) -> list[Finding]:
    subject = f"{weight.tensor} ({weight.node})"
    values = weight.values
    if not np.any(values):
        evidence = f"all {values.size} weights are 0: the node's output does not depend on its input"
        return [fault("weights-zero", subject, evidence, "export again, and look at the checkpoint")]
    if values.min() == values.max():
        evidence = f"all {values.size} weights are {values.flat[0]:.3g}"
        remedy = "right for a blur or a mean; otherwise the checkpoint was not loaded"
        return [warning("weights-constant", subject, evidence, remedy)]
    return []


def _dead_channels(weights: list[Weight]) -> list[Finding]:
    dead = {}
    for weight in weights:
        strength = np.abs(weight.values).max(axis=1)
        count = int((strength < _DEAD_CHANNEL * strength.max()).sum())
        if count:
            dead[f"{weight.tensor} ({count} of {len(strength)})"] = count
    if not dead:
        return []
    evidence = f"{sum(dead.values())} output channels in {len(dead)} tensors are 0 but for rounding"
    remedy = "common after training with weight decay; if it is new, compare with the original by --against"
    subject = named_first(list(dead))
    return [advice("weights-dead-channels", subject, evidence, remedy, channels=sum(dead.values()))]


def _denormal(weights: list[Weight]) -> list[Finding]:
    smallest = np.finfo(np.float32).tiny
    shares = {w.tensor: float(((w.values != 0) & (np.abs(w.values) < smallest)).mean()) for w in weights}
    found = {name: share for name, share in shares.items() if share > _DENORMAL_SHARE}
    if not found:
        return []
    evidence = (
        f"up to {100 * max(found.values()):.1f} % of the weights are below {smallest:.1e}, where processors slow down"
    )
    remedy = "set them to 0 before the export"
    return [advice("weights-denormal", named_first(list(found)), evidence, remedy, share=max(found.values()))]


def _outliers(weights: list[Weight]) -> list[Finding]:
    """Tensors far from the others in scale, or with single values far beyond their own."""
    found = []
    typical = float(np.median([weight.scale for weight in weights])) if len(weights) >= _FEW_TENSORS else None
    for weight in weights:
        subject = f"{weight.tensor} ({weight.node})"
        size = np.abs(weight.values)
        middle = float(np.median(size[size > 0]))
        peak = float(size.max()) / middle
        if peak > _PEAK_FAULT:
            far = int((size > _PEAK_FAULT * middle).sum())
            evidence = f"{far} of {size.size} weights reach {size.max():.3g}, {peak:.1e} times the median {middle:.3g}"
            remedy = "very likely damaged: compare with the original by --against, or export again"
            found.append(fault("weights-corrupt", subject, evidence, remedy, peak=float(size.max()), median=middle))
        elif typical is not None:
            found += _far_scale(weight, subject, typical)
    return found


def _far_scale(weight: Weight, subject: str, typical: float) -> list[Finding]:
    factor = max(weight.scale / typical, typical / weight.scale)
    if factor < _SCALE_WARNING:
        return []
    evidence = (
        f"root mean square × √fan-in is {weight.scale:.3g}, {factor:.0f} times away from the {typical:.3g} of the "
        "model's other weights"
    )
    numbers = {"scale": weight.scale, "typical": typical}
    remedy = "probably damaged: compare with the original by --against, or export again"
    make = fault if factor > _SCALE_FAULT else warning
    return [make("weights-corrupt", subject, evidence, remedy, **numbers)]

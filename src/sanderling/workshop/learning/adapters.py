"""LoRA adapters: put beside layers, and folded into their weights.

Source: Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models", section 4.1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper

from sanderling.core.errors import OptionError
from sanderling.core.progress import Event, Progress
from sanderling.core.tensor import Array
from sanderling.model.learning import Adapter
from sanderling.workshop.learning.draft import Draft, attribute, integer, integers
from sanderling.workshop.learning.forward import Forward
from sanderling.workshop.learning.selection import (
    Layer,
    LoraOptions,
    before_loss,
    expression,
    head_of,
    layers_of,
    shown,
)


@dataclass(frozen=True)
class Adapted:
    """Adapters that were put into a draft, and the first values of their parameters."""

    adapters: tuple[Adapter, ...]
    initial: dict[str, Array]


def put_adapters(forward: Forward, options: LoraOptions, seed: int, progress: Progress) -> Adapted:
    """Put an adapter beside every chosen layer; the draft's values keep their names.

    The first product starts at random, the second at zero, so that the model is at first what it was.

    Raises:
        OptionError: no layer is found.
    """
    layers = _chosen(forward, options, progress)
    generator = np.random.default_rng(seed)
    adapters: list[Adapter] = []
    initial: dict[str, Array] = {}
    for layer in layers:
        adapter, a, b = _adapter(forward.draft, layer, options, generator)
        _insert(forward.draft, layer.node, adapter)
        adapters.append(adapter)
        initial |= {adapter.a: a, adapter.b: b}
    for name, array in initial.items():
        forward.draft.initializers[f"frozen.{name}"] = array
        forward.draft.shapes[f"frozen.{name}"] = array.shape
    return Adapted(tuple(adapters), initial)


def _chosen(forward: Forward, options: LoraOptions, progress: Progress) -> list[Layer]:
    everything = layers_of(forward)
    count: dict[str, int] = {}
    for node in forward.draft.nodes:  # any reader, a table's too: what is folded into the weight changes them all
        for name in node.input:
            count[name] = count.get(name, 0) + 1
    pattern = expression(options.layers) if options.layers else None
    head = {name.rpartition(".")[0] for name in head_of(forward)} if options.head else set()
    found: list[Layer] = []
    before = before_loss(forward)
    for layer in everything:
        if (pattern is not None and not pattern.search(layer.path)) or layer.path in head:
            continue
        own = f"frozen.{layer.weight}"
        reason = _unfit(forward.draft, layer, max(count[own], count[layer.node.input[1]]))
        if not before.intersection(layer.node.output):
            reason = "the loss does not depend on it"
        if reason is None:
            found.append(layer)
        else:
            progress.event(Event(kind="adapter-skipped", subject=layer.path or layer.weight, reason=reason))
    if not found:
        paths = [layer.path or layer.weight for layer in everything]
        raise OptionError(f"--trainable lora finds no layer for an adapter: layers are {shown(paths) or 'none'}")
    return found


def _unfit(draft: Draft, layer: Layer, uses: int) -> str | None:
    """Why a layer gets no adapter."""
    if uses > 1:
        return "its weight is used several times"
    if layer.node.op_type == "ConvTranspose":
        return "it is a transposed convolution"
    if layer.node.op_type == "Gemm" and integer(layer.node, "transA", 0):
        return "its input is turned"
    if layer.node.op_type == "Conv" and integer(layer.node, "group", 1) == draft.shape(layer.node.input[1])[0]:
        return "it is a depthwise convolution, whose kernels have no lower rank; train its weight by name instead"
    return None


def _adapter(
    draft: Draft, layer: Layer, options: LoraOptions, generator: np.random.Generator
) -> tuple[Adapter, Array, Array]:
    weight = draft.initializers[f"frozen.{layer.weight}"]
    groups = integer(layer.node, "group", 1) if layer.node.op_type == "Conv" else 1
    if layer.node.op_type == "Conv":
        out, inner, *kernel = weight.shape
        a_shape: tuple[int, ...] = (groups * options.rank, inner, *kernel)
        b_shape: tuple[int, ...] = (out, options.rank, *[1] * len(kernel))
    else:
        out, inner = weight.shape if _rows_are_outputs(layer) else weight.shape[::-1]
        a_shape, b_shape = (options.rank, inner), (out, options.rank)
    bound = math.sqrt(1 / math.prod(a_shape[1:]))  # Kaiming uniform with a = √5, as PyTorch starts a linear layer
    a = generator.uniform(-bound, bound, a_shape).astype(np.float32)
    stem = layer.path or layer.weight
    adapter = Adapter(
        layer=stem,
        weight=layer.weight,
        a=f"{stem}.lora_a",
        b=f"{stem}.lora_b",
        groups=groups,
        rows_are_outputs=layer.node.op_type == "Conv" or _rows_are_outputs(layer),
        rank=options.rank,
        alpha=options.alpha,
    )
    return adapter, a, np.zeros(b_shape, np.float32)


def _rows_are_outputs(layer: Layer) -> bool:
    """Whether the weight is (out, in), as PyTorch's linear layers keep it."""
    return layer.turned or (layer.node.op_type == "Gemm" and integer(layer.node, "transB", 0) == 1)


def _insert(draft: Draft, node: onnx.NodeProto, adapter: Adapter) -> None:
    """Let the node's output be the sum of its own and the adapter's."""
    place = next(index for index, other in enumerate(draft.nodes) if other is node)
    before, draft.nodes = draft.nodes, []
    x, y = node.input[0], node.output[0]
    a, b, scale = f"frozen.{adapter.a}", f"frozen.{adapter.b}", draft.number(adapter.scale)
    if node.op_type == "Conv":
        kept = {
            key: integers(node, key, []) for key in ("strides", "pads", "dilations") if attribute(node, key) is not None
        }
        low = draft.op("Conv", x, a, group=adapter.groups, **kept)
        high = draft.op("Conv", low, b, group=adapter.groups)
    else:
        low = draft.op("MatMul", x, draft.op("Transpose", a, perm=[1, 0]))
        high = draft.op("MatMul", low, draft.op("Transpose", b, perm=[1, 0]))
    own = draft.name("base")
    draft.shapes[own] = draft.shape(y)
    node.output[0] = own
    scaled = draft.op("Mul", high, scale)
    draft.nodes.append(helper.make_node("Add", [own, scaled], [y], name=f"{adapter.layer}.adapted"))
    draft.nodes = [*before[: place + 1], *draft.nodes, *before[place + 1 :]]


def fold(weights: dict[str, Array], adapters: Sequence[Adapter], parameters: Mapping[str, Array]) -> None:
    """Add every adapter's product to its weight.

    Args:
        weights: by parameter name; changed in place.
        adapters: to fold.
        parameters: by name; hold each adapter's ``a`` and ``b``.
    """
    for adapter in adapters:
        a = parameters[adapter.a].astype(np.float64).reshape(adapter.groups, adapter.rank, -1)
        b = parameters[adapter.b].astype(np.float64).reshape(adapter.groups, -1, adapter.rank)
        product = adapter.scale * (b @ a)
        weight = weights[adapter.weight]
        change = product.reshape(weight.shape) if adapter.rows_are_outputs else product[0].T
        weights[adapter.weight] = (weight.astype(np.float64) + change).astype(np.float32)

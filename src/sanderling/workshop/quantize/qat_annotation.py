"""Say to torchao what is trained in eight bits: the same choices as for INT8 without training.

torchao's own ready-made quantiser (for XNNPACK) lives among its tests, signs its activations, and rounds twice around
a ReLU6; this one rounds a convolution with its activation function once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e import (
    FusedMovingAvgObsFakeQuantize,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
)
from torchao.quantization.pt2e.quantizer import (
    QuantizationAnnotation,
    QuantizationSpec,
    Quantizer,
    SharedQuantizationSpec,
)

_ANNOTATION = "quantization_annotation"
_LEAST_SCALE = 2.0**-16
_OUTPUT_AXIS = {"conv1d": 0, "conv2d": 0, "linear": 0, "conv_transpose1d": 1, "conv_transpose2d": 1}
_FOLDED = ("conv1d", "conv2d", "conv3d")
_ACTIVATIONS = ("relu", "relu_", "relu6", "relu6_", "hardtanh", "hardtanh_")
_JOINING = ("add", "add_", "mul", "mul_")
_MAKING = ("adaptive_avg_pool2d", "avg_pool2d", "mean")
_PASSING = ("max_pool2d", "flatten", "reshape", "view", "permute", "transpose", "squeeze", "unsqueeze")

_ACTIVATION_SPEC = QuantizationSpec(
    dtype=torch.uint8,
    quant_min=0,
    quant_max=255,
    qscheme=torch.per_tensor_affine,
    observer_or_fake_quant_ctr=FusedMovingAvgObsFakeQuantize.with_args(
        observer=MovingAverageMinMaxObserver, eps=_LEAST_SCALE
    ),
)


class EightBitQuantizer(Quantizer):  # type: ignore[misc]
    """Activations uint8 per tensor, weights int8 per output channel, biases float."""

    def annotate(self, model: GraphModule) -> GraphModule:
        """Mark each node of ``model`` whose inputs and output are rounded.

        A convolution, linear layer, sum or product is rounded together with the activation function that alone reads
        it. What only moves values keeps their scale. Everything else stays float.
        """
        for node in model.graph.nodes:
            name = _name(node)
            if name in _OUTPUT_AXIS and node.args[1].op == "get_attr":
                weight = _weight_spec(node, _OUTPUT_AXIS[name])
                self._mark(node, {node.args[0]: _ACTIVATION_SPEC, node.args[1]: weight})
            elif name in _JOINING and all(isinstance(argument, Node) for argument in node.args):
                if any(_is_rounded(argument) for argument in node.args):
                    self._mark(node, dict.fromkeys(node.args, _ACTIVATION_SPEC))
            elif name in _MAKING and _is_rounded(node.args[0]):
                self._mark(node, {node.args[0]: _ACTIVATION_SPEC})
            elif name in _PASSING and _is_rounded(node.args[0]):
                _pass_on(node)
        return model

    def validate(self, model: GraphModule) -> None:
        """Accept every graph: what has no eight-bit form stays float."""

    def _mark(self, node: Node, inputs: dict[Node, QuantizationSpec]) -> None:
        node.meta[_ANNOTATION] = QuantizationAnnotation(input_qspec_map=inputs, _annotated=True)
        last = _last_of_block(node)
        if _name(node) == "linear" and all(user.op == "output" for user in last.users):
            return  # eight bits would only blur what a classifier compares
        if last is node:
            node.meta[_ANNOTATION].output_qspec = _ACTIVATION_SPEC
        else:
            last.meta[_ANNOTATION] = QuantizationAnnotation(output_qspec=_ACTIVATION_SPEC, _annotated=True)


def fold_norms(model: GraphModule) -> None:
    """Multiply each BatchNorm that alone reads a convolution into its weight, and add it to its bias, in place.

    Training a finished network on, its statistics are better left as they are: torchao's way of keeping them moving
    computes every convolution twice, and captures 120 patterns to fold them at the end.
    """
    for index, norm in enumerate(list(model.graph.nodes)):
        convolution = norm.args[0] if _name(norm) == "batch_norm" else None
        if not isinstance(convolution, Node) or _name(convolution) not in _FOLDED or len(convolution.users) != 1:
            continue
        source, weight, bias, *rest = (*convolution.args, None) if len(convolution.args) == 2 else convolution.args
        gain, shift, mean, variance = (_value(model, argument) for argument in norm.args[1:5])
        scale = (1.0 if gain is None else gain) / torch.sqrt(variance + norm.args[7])
        old_weight, old_bias = _value(model, weight), _value(model, bias)
        new_weight = old_weight * scale.reshape(-1, *[1] * (old_weight.ndim - 1))
        new_bias = (0.0 if shift is None else shift) + ((0.0 if old_bias is None else old_bias) - mean) * scale
        with model.graph.inserting_before(convolution):
            nodes = [
                _parameter(model, f"folded_{kind}_{index}", value)
                for kind, value in (("weight", new_weight), ("bias", new_bias))
            ]
        convolution.args = (source, *nodes, *rest)
        norm.replace_all_uses_with(convolution)
        model.graph.erase_node(norm)
    model.graph.eliminate_dead_code()
    model.recompile()


def _value(model: GraphModule, node: Any) -> Any:  # noqa: ANN401 - a tensor, or None where there is none
    if node is None:
        return None
    value: Any = model
    for part in node.target.split("."):
        value = getattr(value, part)
    return value.detach()


def _parameter(model: GraphModule, name: str, value: torch.Tensor) -> Node:
    model.register_parameter(name, torch.nn.Parameter(value.clone()))
    return model.graph.get_attr(name)


def _weight_spec(node: Node, axis: int) -> QuantizationSpec:
    grouped_transpose = axis == 1 and len(node.args) > 6 and node.args[6] != 1  # its groups share output channels
    observer: Any = MovingAverageMinMaxObserver if grouped_transpose else MovingAveragePerChannelMinMaxObserver
    return QuantizationSpec(
        dtype=torch.int8,
        quant_min=-127,
        quant_max=127,
        qscheme=torch.per_tensor_symmetric if grouped_transpose else torch.per_channel_symmetric,
        ch_axis=None if grouped_transpose else axis,
        observer_or_fake_quant_ctr=FusedMovingAvgObsFakeQuantize.with_args(
            observer=observer, eps=_LEAST_SCALE, averaging_constant=1.0
        ),
    )


def _pass_on(node: Node) -> None:
    source = node.args[0]
    assert isinstance(source, Node)
    shared = SharedQuantizationSpec(source)
    node.meta[_ANNOTATION] = QuantizationAnnotation(
        input_qspec_map={source: shared}, output_qspec=SharedQuantizationSpec((source, node)), _annotated=True
    )


def _last_of_block(node: Node) -> Node:
    """The activation function that alone reads the node, or the node itself."""
    users = list(node.users)
    return users[0] if len(users) == 1 and _name(users[0]) in _ACTIVATIONS else node


def _is_rounded(node: object) -> bool:
    annotation = node.meta.get(_ANNOTATION) if isinstance(node, Node) else None
    return annotation is not None and annotation.output_qspec is not None


def _name(node: Node) -> str:
    """The operator's name without namespace and overload, such as ``conv2d``."""
    return node.target._schema.name.split("::")[1] if isinstance(node.target, torch._ops.OpOverload) else ""

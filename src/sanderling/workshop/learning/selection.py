"""What is trained: which parameters, or which adapters beside them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import onnx

from sanderling.core.errors import OptionError
from sanderling.workshop.learning.draft import needed
from sanderling.workshop.learning.forward import Forward

_HEAVY = ("Gemm", "MatMul", "Conv", "ConvTranspose")
_SHOWN = 8


@dataclass(frozen=True)
class LoraOptions:
    """How adapters are put in.

    Attributes:
        rank: of each.
        alpha: ``alpha / rank`` scales the product.
        layers: expression that finds layers' paths; None takes every linear layer and convolution.
        head: also train the last layer itself.
    """

    rank: int = 8
    alpha: float = 16.0
    layers: str | None = None
    head: bool = False


@dataclass(frozen=True)
class Layer:
    """A node that multiplies with a parameter.

    Attributes:
        path: of the module.
        weight: the parameter's name.
        node: that multiplies.
        turned: whether it reads the weight through a Transpose.
    """

    path: str
    weight: str
    node: onnx.NodeProto
    turned: bool


def parse_lora(text: str) -> LoraOptions | None:
    """Read ``lora:r=8,alpha=16,layers=REGEX,head``; None where the text asks for something else.

    ``layers`` comes last, as an expression may hold commas.

    Raises:
        OptionError: an option is unknown or out of range.
    """
    if text != "lora" and not text.startswith("lora:"):
        return None
    rest, _, layers = text.partition("layers=")
    values: dict[str, str] = {}
    for part in filter(None, rest.removeprefix("lora").lstrip(":").split(",")):
        key, _, value = part.partition("=")
        values[key.strip()] = value.strip()
    unknown = set(values) - {"r", "alpha", "head"}
    if unknown:
        raise OptionError(
            f"--trainable '{text}' has the unknown option '{min(unknown)}': available are r, alpha, head, layers"
        )
    try:
        rank = int(values.get("r", "8"))
        alpha = float(values.get("alpha", str(2 * rank)))
    except ValueError as error:
        raise OptionError(
            f"--trainable '{text}' has no number where one belongs: expected lora:r=8,alpha=16"
        ) from error
    if rank < 1 or not 0 < alpha < float("inf"):
        raise OptionError(f"--trainable '{text}': the rank must be at least 1 and alpha above 0")
    return LoraOptions(rank, alpha, layers or None, "head" in values)


def expression(text: str) -> re.Pattern[str]:
    """Compile an expression.

    Raises:
        OptionError: it is none.
    """
    try:
        return re.compile(text)
    except re.error as error:
        raise OptionError(f"--trainable '{text}' is no regular expression: {error}") from error


def layers_of(forward: Forward) -> list[Layer]:
    """Every linear layer and convolution whose weight is a parameter, in the order of the graph."""
    turned: dict[str, str] = {}
    found = []
    own = {f"frozen.{name}" for name in forward.parameters}
    for node in forward.draft.nodes:
        if node.op_type == "Transpose" and node.input[0] in own:
            turned[node.output[0]] = node.input[0]
        if node.op_type not in _HEAVY:
            continue
        read = node.input[1]
        value = turned.get(read, read)
        if value in own:
            weight = value.removeprefix("frozen.")
            found.append(Layer(weight.rpartition(".")[0], weight, node, read in turned))
    return found


def before_loss(forward: Forward) -> set[str]:
    """Every value that the first output depends on."""
    return {value for node in needed(forward.draft.nodes, [forward.outputs[0].name]) for value in node.output}


def head_of(forward: Forward) -> tuple[str, ...]:
    """Parameters of the last layer before the first output, which is the one that the loss looks at.

    Raises:
        OptionError: no layer multiplies with a parameter.
    """
    before = before_loss(forward)
    layers = [layer for layer in layers_of(forward) if before.intersection(layer.node.output)]
    if not layers:
        raise OptionError("--trainable head: the model has no linear layer or convolution; give a regular expression")
    last = layers[-1]
    inside = [name for name in forward.parameters if name.rpartition(".")[0] == last.path]
    return tuple(inside) if last.path else (last.weight,)


def chosen_parameters(forward: Forward, trainable: str) -> tuple[str, ...]:
    """The parameters that ``head``, ``full`` or an expression finds, in the model's order.

    Raises:
        OptionError: it finds none.
    """
    if trainable == "head":
        return head_of(forward)
    if trainable == "full":
        return forward.parameters
    pattern = expression(trainable)
    found = tuple(name for name in forward.parameters if pattern.search(name))
    if not found:
        raise OptionError(f"--trainable '{trainable}' finds no parameter: available are {shown(forward.parameters)}")
    return found


def trained_parameters(forward: Forward, trainable: str) -> tuple[str, ...]:
    """The module's own parameters that are trained: adapters leave all others frozen."""
    lora = parse_lora(trainable)
    if lora is None:
        return chosen_parameters(forward, trainable)
    return head_of(forward) if lora.head else ()


def shown(names: Sequence[str]) -> str:
    """Some of many names."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more

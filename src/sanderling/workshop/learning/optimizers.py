"""An optimiser's update as a graph: every parameter at once, clipped by their common norm before."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx

from sanderling.core.tensor import TensorSpec
from sanderling.model.learning import OptimizerKind, TrainableParameter
from sanderling.workshop.learning.draft import Draft, extract

STATES: dict[OptimizerKind, tuple[str, ...]] = {"sgd": ("m",), "adamw": ("m", "v")}
SETTINGS: dict[OptimizerKind, dict[str, float]] = {
    "sgd": {"momentum": 0.9, "dampening": 0.0, "weight_decay": 0.0},
    "adamw": {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01},
}
_CLIP_MARGIN = 1e-6


def optimizer_graph(kind: OptimizerKind, parameters: Sequence[TrainableParameter], opset: int = 18) -> onnx.ModelProto:
    """The graph of one optimiser; ``sanderling.model.learning`` names its inputs and outputs.

    ε, β and the decay are inputs: no rewriting of the graph can take a small one for zero.

    Args:
        kind: ``sgd`` with momentum, as torch.optim.SGD, or ``adamw``, as torch.optim.AdamW.
        parameters: in the order of the inputs.
        opset: of the graph.

    Source: Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization", algorithm 2.
    """
    draft = Draft(opset=opset)
    scalars = ["lr", "grad_scale", "clip_norm", "step", *SETTINGS[kind]]
    inputs = [TensorSpec(name=name, dtype="float32", shape=()) for name in scalars]
    for prefix in ("param", "grad", *STATES[kind]):
        inputs += [TensorSpec(name=f"{prefix}.{p.name}", dtype="float32", shape=p.shape) for p in parameters]
    norm, factor = _factor(draft, [f"grad.{p.name}" for p in parameters])
    outputs = [(norm, TensorSpec(name="grad_norm", dtype="float32", shape=()))]
    shared = _SHARED[kind](draft)
    for parameter in parameters:
        gradient = draft.op("Mul", f"grad.{parameter.name}", factor)
        values = _UPDATES[kind](draft, parameter.name, gradient, shared)
        for prefix, value in zip(("param", *STATES[kind]), values, strict=True):
            spec = TensorSpec(name=f"{prefix}.out.{parameter.name}", dtype="float32", shape=parameter.shape)
            outputs.append((value, spec))
    return extract(draft, f"optimizer_{kind}", inputs, outputs)


def _factor(draft: Draft, gradients: Sequence[str]) -> tuple[str, str]:
    """Norm of all scaled gradients together, and what each is multiplied with: the scale, and what clips the norm."""
    squares = [draft.op("ReduceSumSquare", name, keepdims=0) for name in gradients]
    total = squares[0] if len(squares) == 1 else draft.op("Sum", *squares)
    norm = draft.op("Mul", draft.op("Sqrt", total), "grad_scale")
    share = draft.op("Div", "clip_norm", draft.op("Add", norm, draft.number(_CLIP_MARGIN)))
    return norm, draft.op("Mul", "grad_scale", draft.op("Min", share, draft.number(1.0)))


def _adamw_shared(draft: Draft) -> dict[str, str]:
    one = draft.number(1.0)
    shared = {}
    for beta in ("beta1", "beta2"):
        shared[f"rest_{beta}"] = draft.op("Sub", one, beta)
        shared[f"correction_{beta}"] = draft.op("Sub", one, draft.op("Pow", beta, "step"))
    shared["kept"] = draft.op("Sub", one, draft.op("Mul", "lr", "weight_decay"))
    shared["rate"] = draft.op("Div", "lr", shared["correction_beta1"])
    shared["root"] = draft.op("Sqrt", shared["correction_beta2"])
    return shared


def _adamw(draft: Draft, name: str, gradient: str, shared: dict[str, str]) -> tuple[str, ...]:
    m = draft.op("Add", draft.op("Mul", "beta1", f"m.{name}"), draft.op("Mul", shared["rest_beta1"], gradient))
    square = draft.op("Mul", gradient, gradient)
    v = draft.op("Add", draft.op("Mul", "beta2", f"v.{name}"), draft.op("Mul", shared["rest_beta2"], square))
    spread = draft.op("Add", draft.op("Div", draft.op("Sqrt", v), shared["root"]), "eps")
    move = draft.op("Mul", shared["rate"], draft.op("Div", m, spread))
    return draft.op("Sub", draft.op("Mul", f"param.{name}", shared["kept"]), move), m, v


def _sgd_shared(draft: Draft) -> dict[str, str]:
    """Where there is no velocity to damp against, the gradient is taken whole, as PyTorch does."""
    first, still = draft.op("Equal", "step", draft.number(1.0)), draft.op("Equal", "momentum", draft.number(0.0))
    rest = draft.op("Sub", draft.number(1.0), "dampening")
    return {"rest": draft.op("Where", draft.op("Or", first, still), draft.number(1.0), rest)}


def _sgd(draft: Draft, name: str, gradient: str, shared: dict[str, str]) -> tuple[str, ...]:
    decayed = draft.op("Add", gradient, draft.op("Mul", "weight_decay", f"param.{name}"))
    velocity = draft.op("Add", draft.op("Mul", "momentum", f"m.{name}"), draft.op("Mul", shared["rest"], decayed))
    return draft.op("Sub", f"param.{name}", draft.op("Mul", "lr", velocity)), velocity


_SHARED: dict[OptimizerKind, Callable[[Draft], dict[str, str]]] = {"sgd": _sgd_shared, "adamw": _adamw_shared}
_UPDATES: dict[OptimizerKind, Callable[[Draft, str, str, dict[str, str]], tuple[str, ...]]] = {
    "sgd": _sgd,
    "adamw": _adamw,
}

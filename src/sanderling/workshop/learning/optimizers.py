"""An optimiser's update as a graph: elementwise, on the parameters as one vector or on any piece of it."""

from __future__ import annotations

from collections.abc import Callable

import onnx

from sanderling.core.tensor import TensorSpec
from sanderling.model.learning import OptimizerKind
from sanderling.workshop.learning.draft import Draft, extract

STATES: dict[OptimizerKind, tuple[str, ...]] = {"sgd": ("m",), "adamw": ("m", "v")}
SETTINGS: dict[OptimizerKind, dict[str, float]] = {
    "sgd": {"momentum": 0.9, "dampening": 0.0, "weight_decay": 0.0},
    "adamw": {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01},
}


def optimizer_graph(kind: OptimizerKind, opset: int = 18) -> onnx.ModelProto:
    """The graph of one optimiser; ``sanderling.model.learning`` names its inputs and outputs.

    ε, β and the decay are inputs: no rewriting of the graph can take a small one for zero.

    Args:
        kind: ``sgd`` with momentum, as torch.optim.SGD, or ``adamw``, as torch.optim.AdamW.
        opset: of the graph.

    Source: Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization", algorithm 2.
    """
    draft = Draft(opset=opset)
    scalars, vectors = ["lr", "grad_scale", "step", *SETTINGS[kind]], ["param", "grad", *STATES[kind]]
    inputs = [TensorSpec(name=name, dtype="float32", shape=()) for name in scalars]
    inputs += [TensorSpec(name=name, dtype="float32", shape=("length",)) for name in vectors]
    outputs = []
    for prefix, value in zip(("param", *STATES[kind]), _UPDATES[kind](draft), strict=True):
        outputs.append((value, TensorSpec(name=f"{prefix}.out", dtype="float32", shape=("length",))))
    return extract(draft, f"optimizer_{kind}", inputs, outputs)


def _adamw(draft: Draft) -> tuple[str, ...]:
    """Whatever scales a vector is one number before it does: each operation goes through all parameters."""
    one = draft.number(1.0)
    rest1, rest2 = draft.op("Sub", one, "beta1"), draft.op("Sub", one, "beta2")
    correction1 = draft.op("Sub", one, draft.op("Pow", "beta1", "step"))
    root = draft.op("Sqrt", draft.op("Sub", one, draft.op("Pow", "beta2", "step")))
    kept = draft.op("Sub", one, draft.op("Mul", "lr", "weight_decay"))
    rate = draft.op("Div", draft.op("Mul", "lr", root), correction1)
    scaled = draft.op("Mul", "grad", draft.op("Mul", rest1, "grad_scale"))
    m = draft.op("Add", draft.op("Mul", "m", "beta1"), scaled)
    scaled = draft.op("Mul", "grad", draft.op("Mul", draft.op("Sqrt", rest2), "grad_scale"))
    v = draft.op("Add", draft.op("Mul", "v", "beta2"), draft.op("Mul", scaled, scaled))
    spread = draft.op("Add", draft.op("Sqrt", v), draft.op("Mul", "eps", root))
    move = draft.op("Mul", draft.op("Div", m, spread), rate)
    return draft.op("Sub", draft.op("Mul", "param", kept), move), m, v


def _sgd(draft: Draft) -> tuple[str, ...]:
    """Where there is no velocity to damp against, the gradient is taken whole, as PyTorch does."""
    first, still = draft.op("Equal", "step", draft.number(1.0)), draft.op("Equal", "momentum", draft.number(0.0))
    rest = draft.op("Sub", draft.number(1.0), "dampening")
    rest = draft.op("Where", draft.op("Or", first, still), draft.number(1.0), rest)
    decayed = draft.op("Add", draft.op("Mul", "grad", "grad_scale"), draft.op("Mul", "weight_decay", "param"))
    velocity = draft.op("Add", draft.op("Mul", "momentum", "m"), draft.op("Mul", rest, decayed))
    return draft.op("Sub", "param", draft.op("Mul", "lr", velocity)), velocity


_UPDATES: dict[OptimizerKind, Callable[[Draft], tuple[str, ...]]] = {"sgd": _sgd, "adamw": _adamw}

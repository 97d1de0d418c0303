"""Backward rules of matrix products."""

from __future__ import annotations

from sanderling.workshop.learning.draft import Shape, integer, number
from sanderling.workshop.learning.gradients.step import Step, gradient, reduced_to


def turned(step: Step, value: str, rank: int) -> str:
    """The value with its last two axes exchanged; what an exchange made is read before it."""
    made = next((node for node in step.draft.nodes if value in node.output), None) if rank else None
    if made is not None and made.op_type == "Transpose":
        perm = next((list(entry.ints) for entry in made.attribute if entry.name == "perm"), list(range(rank))[::-1])
        if perm == [*range(rank - 2), rank - 1, rank - 2]:
            return str(made.input[0])
    return step.op("Transpose", value, perm=[*range(rank - 2), rank - 1, rank - 2])


def flat(step: Step, value: str, shape: Shape) -> str:
    """(…, C) as (rows, C)."""
    if len(shape) == 2:
        return value
    width = shape[-1]
    if isinstance(width, str):
        raise step.refuse(f"its last axis has the dynamic size '{width}'")
    return step.op("Reshape", value, step.draft.integers([-1, width]))


@gradient("MatMul")
def matmul(step: Step) -> None:
    """dA = G · Bᵀ, dB = Aᵀ · G; axes in front are summed where they were broadcast."""
    a, b, out = step.shape(0), step.shape(1), step.out_shape
    if len(a) < 2 or len(b) < 2:
        raise step.refuse("one side is a vector")
    if 0 in step.wanted:
        g = step.op("MatMul", step.g, turned(step, step.x(1), len(b)))
        step.give(0, reduced_to(step, g, (*out[:-1], a[-1]), a))
    if 1 not in step.wanted:
        return
    if len(b) == 2:  # a layer's weight: all rows of the batch at once
        left, right = flat(step, step.x(0), a), flat(step, step.g, out)
        step.give(1, step.op("MatMul", step.op("Transpose", left, perm=[1, 0]), right))
        return
    g = step.op("MatMul", turned(step, step.x(0), len(a)), step.g)
    step.give(1, reduced_to(step, g, (*out[:-2], *b[-2:]), b))


@gradient("Gemm")
def gemm(step: Step) -> None:
    """Y = alpha · A' · B' + beta · C, where A' and B' may be turned."""
    alpha, beta = number(step.node, "alpha", 1.0), number(step.node, "beta", 1.0)
    turn_a, turn_b = integer(step.node, "transA", 0), integer(step.node, "transB", 0)
    a, b, g = step.x(0), step.x(1), step.g
    if 0 in step.wanted:
        left, right, first, second = (b, g, turn_b, 1) if turn_a else (g, b, 0, 1 - turn_b)
        step.give(0, step.op("Gemm", left, right, alpha=alpha, transA=first, transB=second))
    if 1 in step.wanted:
        left, right, first, second = (g, a, 1, turn_a) if turn_b else (a, g, 1 - turn_a, 0)
        step.give(1, step.op("Gemm", left, right, alpha=alpha, transA=first, transB=second))
    if 2 in step.wanted:
        step.give(2, reduced_to(step, step.scaled(g, beta), step.out_shape, step.shape(2)))

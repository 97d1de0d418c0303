"""Backward rules of operators that work on each element by itself."""

from __future__ import annotations

import math

import numpy as np

from sanderling.workshop.learning.draft import attribute, number
from sanderling.workshop.learning.gradients.step import Step, gradient, reduced_to


@gradient("Identity", "Dropout")
def identity(step: Step) -> None:
    """Pass on."""
    step.give(0, step.g)


@gradient("Cast")
def cast(step: Step) -> None:
    """float32 to float32; nothing flows through whole numbers."""
    step.give(0, step.g)


@gradient("Add", "Sub")
def add(step: Step) -> None:
    """d(a ± b) = da ± db."""
    for place in step.wanted:
        g = step.op("Neg", step.g) if place == 1 and step.node.op_type == "Sub" else step.g
        step.give(place, reduced_to(step, g, step.out_shape, step.shape(place)))


@gradient("Sum")
def total(step: Step) -> None:
    """d(a + b + …) = da + db + …."""
    for place in step.wanted:
        step.give(place, reduced_to(step, step.g, step.out_shape, step.shape(place)))


@gradient("Mul")
def mul(step: Step) -> None:
    """d(a · b) = da · b + a · db."""
    for place in step.wanted:
        g = step.mul(step.g, step.x(1 - place))
        step.give(place, reduced_to(step, g, step.out_shape, step.shape(place)))


@gradient("Div")
def div(step: Step) -> None:
    """d(a / b) = da / b − (a / b) / b · db."""
    over = step.op("Div", step.g, step.x(1))
    if 0 in step.wanted:
        step.give(0, reduced_to(step, over, step.out_shape, step.shape(0)))
    if 1 in step.wanted:
        g = step.op("Neg", step.mul(over, step.y))
        step.give(1, reduced_to(step, g, step.out_shape, step.shape(1)))


@gradient("Neg")
def neg(step: Step) -> None:
    """d(−x) = −dx."""
    step.give(0, step.op("Neg", step.g))


@gradient("Abs")
def absolute(step: Step) -> None:
    """d|x| = sign x · dx."""
    step.give(0, step.mul(step.g, step.op("Sign", step.x())))


@gradient("Relu")
def relu(step: Step) -> None:
    """dx where the output is above 0."""
    step.give(0, step.where(step.op("Greater", step.y, step.draft.number(0.0)), step.g))


@gradient("LeakyRelu")
def leaky_relu(step: Step) -> None:
    """dx above 0, alpha · dx below."""
    slope = step.scaled(step.g, number(step.node, "alpha", 0.01))
    above = step.op("Greater", step.x(), step.draft.number(0.0))
    step.give(0, step.op("Where", above, step.g, slope))


@gradient("PRelu")
def prelu(step: Step) -> None:
    """dx above 0, slope · dx and x · dslope below."""
    below = step.op("Less", step.x(), step.draft.number(0.0))
    if 0 in step.wanted:
        step.give(0, step.op("Where", below, step.mul(step.g, step.x(1)), step.g))
    if 1 in step.wanted:
        g = step.where(below, step.mul(step.g, step.x()))
        step.give(1, reduced_to(step, g, step.out_shape, step.shape(1)))


@gradient("Elu")
def elu(step: Step) -> None:
    """dx above 0, (y + alpha) · dx below."""
    slope = step.op("Add", step.y, step.draft.number(number(step.node, "alpha", 1.0)))
    above = step.op("Greater", step.x(), step.draft.number(0.0))
    step.give(0, step.op("Where", above, step.g, step.mul(step.g, slope)))


@gradient("Clip")
def clip(step: Step) -> None:
    """dx inside the limits."""
    inside = None
    kinds = ("Greater", "Less") if step.y in step.draft.open_clips else ("GreaterOrEqual", "LessOrEqual")
    for place, kind in enumerate(kinds, start=1):
        if step.has(place):
            holds = step.op(kind, step.x(), step.x(place))
            inside = holds if inside is None else step.op("And", inside, holds)
    step.give(0, step.g if inside is None else step.where(inside, step.g))


@gradient("Max", "Min")
def extreme(step: Step) -> None:
    """dx to the larger (smaller) of two; halves where both are equal."""
    if len(step.node.input) != 2:
        raise step.refuse(f"it has {len(step.node.input)} inputs, only 2 are handled")
    for place in step.wanted:
        own, other = step.x(place), step.x(1 - place)
        wins = step.op("Greater" if step.node.op_type == "Max" else "Less", own, other)
        tie = step.op("Where", step.op("Equal", own, other), step.draft.number(0.5), step.draft.number(0.0))
        share = step.op("Where", wins, step.draft.number(1.0), tie)
        step.give(place, reduced_to(step, step.mul(step.g, share), step.out_shape, step.shape(place)))


@gradient("Where")
def where(step: Step) -> None:
    """dx to the side that was taken."""
    for place in step.wanted:
        g = step.where(step.x(0) if place == 1 else step.op("Not", step.x(0)), step.g)
        step.give(place, reduced_to(step, g, step.out_shape, step.shape(place)))


@gradient("Sigmoid")
def sigmoid(step: Step) -> None:
    """y · (1 − y) · dx."""
    slope = step.mul(step.y, step.op("Sub", step.draft.number(1.0), step.y))
    step.give(0, step.mul(step.g, slope))


@gradient("Tanh")
def tanh(step: Step) -> None:
    """(1 − y²) · dx."""
    slope = step.op("Sub", step.draft.number(1.0), step.mul(step.y, step.y))
    step.give(0, step.mul(step.g, slope))


@gradient("Softplus")
def softplus(step: Step) -> None:
    """sigmoid(x) · dx."""
    step.give(0, step.mul(step.g, step.op("Sigmoid", step.x())))


@gradient("Exp")
def exp(step: Step) -> None:
    """y · dx."""
    step.give(0, step.mul(step.g, step.y))


@gradient("Log")
def log(step: Step) -> None:
    """dx / x."""
    step.give(0, step.op("Div", step.g, step.x()))


@gradient("Sqrt")
def sqrt(step: Step) -> None:
    """dx / (2 · y)."""
    step.give(0, step.op("Div", step.scaled(step.g, 0.5), step.y))


@gradient("Reciprocal")
def reciprocal(step: Step) -> None:
    """−y² · dx."""
    step.give(0, step.op("Neg", step.mul(step.g, step.mul(step.y, step.y))))


@gradient("Sin")
def sin(step: Step) -> None:
    """cos(x) · dx."""
    step.give(0, step.mul(step.g, step.op("Cos", step.x())))


@gradient("Cos")
def cos(step: Step) -> None:
    """−sin(x) · dx."""
    step.give(0, step.op("Neg", step.mul(step.g, step.op("Sin", step.x()))))


@gradient("Erf")
def erf(step: Step) -> None:
    """2 / √π · exp(−x²) · dx."""
    slope = step.op("Exp", step.op("Neg", step.mul(step.x(), step.x())))
    step.give(0, step.mul(step.g, step.scaled(slope, 2 / math.sqrt(math.pi))))


@gradient("Gelu")
def gelu(step: Step) -> None:
    """(Φ(x) + x · φ(x)) · dx, or that of its approximation by tanh."""
    x = step.x()
    if attribute(step.node, "approximate", "none") == "tanh":
        step.give(0, step.mul(step.g, _gelu_tanh_slope(step, x)))
        return
    chance = step.op("Erf", step.scaled(x, math.sqrt(0.5)))
    chance = step.scaled(step.op("Add", chance, step.draft.number(1.0)), 0.5)
    density = step.op("Exp", step.scaled(step.mul(x, x), -0.5))
    slope = step.op("Add", chance, step.mul(x, step.scaled(density, 1 / math.sqrt(2 * math.pi))))
    step.give(0, step.mul(step.g, slope))


def _gelu_tanh_slope(step: Step, x: str) -> str:
    """Slope of x / 2 · (1 + t), t = tanh(c · (x + 0.044715 · x³)), c = √(2/π)."""
    c, one = math.sqrt(2 / math.pi), step.draft.number(1.0)
    square = step.mul(x, x)
    inner = step.mul(x, step.op("Add", step.scaled(square, 0.044715), one))
    t = step.op("Tanh", step.scaled(inner, c))
    bend = step.scaled(step.op("Add", step.scaled(square, 3 * 0.044715), one), c / 2)
    rest = step.mul(step.mul(x, step.op("Sub", one, step.mul(t, t))), bend)
    return step.op("Add", step.scaled(step.op("Add", t, one), 0.5), rest)


@gradient("HardSigmoid")
def hard_sigmoid(step: Step) -> None:
    """alpha · dx between 0 and 1."""
    zero, one = step.draft.number(0.0), step.draft.number(1.0)
    inside = step.op("And", step.op("Greater", step.y, zero), step.op("Less", step.y, one))
    step.give(0, step.where(inside, step.scaled(step.g, number(step.node, "alpha", 0.2))))


@gradient("HardSwish")
def hard_swish(step: Step) -> None:
    """0 below −3, dx above 3, (x / 3 + 1/2) · dx between."""
    x = step.x()
    slope = step.op("Add", step.scaled(x, 1 / 3), step.draft.number(0.5))
    slope = step.op("Where", step.op("Greater", x, step.draft.number(3.0)), step.draft.number(1.0), slope)
    step.give(0, step.where(step.op("Greater", x, step.draft.number(-3.0)), step.mul(step.g, slope)))


@gradient("Pow")
def power(step: Step) -> None:
    """e · x^(e − 1) · dx; the exponent is constant."""
    exponent = step.draft.known(step.x(1))
    if 1 in step.wanted or exponent is None or exponent.size != 1:
        raise step.refuse("its exponent is no constant number")
    value = float(np.asarray(exponent).reshape(()))
    if value == 2:
        slope = step.scaled(step.x(), 2.0)
    else:
        slope = step.scaled(step.op("Pow", step.x(), step.draft.number(value - 1)), value)
    step.give(0, step.mul(step.g, slope))

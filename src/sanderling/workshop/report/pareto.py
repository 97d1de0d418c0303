"""The Pareto picture: latency against accuracy, memory as area, an engine by its shape and colour."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from sanderling.core.drawing import BOTTOM, LEFT, RIGHT, TOP, WIDTH, nice_end, svg, title_below, y_axis

SHAPES = ("circle", "square", "triangle", "diamond", "pentagon", "hexagon", "star")
_CORNERS = {"triangle": (3, -90), "diamond": (4, -90), "square": (4, -45), "pentagon": (5, -90), "hexagon": (6, 0)}
_HEIGHT = 340
_MARGIN = 24  # between the largest mark's middle and the picture's edge
_PLOT_WIDTH = WIDTH - LEFT - RIGHT
_LETTER = 7.3  # mean width of a letter at the page's 13 px
_LEAST_RADIUS, _LARGEST_RADIUS = 4.5, 15.0
_STEPS = ((1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8), tuple(tenth / 10 for tenth in range(10, 100)))
_ENOUGH_TICKS, _MOST_TICKS = 4, 12


@dataclass(frozen=True)
class Mark:
    """A candidate in the picture.

    Attributes:
        label: its name.
        shape: index into ``SHAPES``, and of its colour.
        x: latency.
        y: accuracy drop, 0 or more.
        memory_bytes: None where it was not measured; such a mark is small.
        hollow: drawn as an outline.
        chosen: the winner.
    """

    label: str
    shape: int
    x: float
    y: float
    memory_bytes: int | None
    hollow: bool
    chosen: bool


@dataclass(frozen=True)
class _Box:
    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: _Box) -> bool:
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )


def front_of(marks: Sequence[Mark]) -> list[Mark]:
    """The marks that no other beats in one of latency and drop without losing in the other, by latency."""
    front: list[Mark] = []
    for mark in sorted(marks, key=lambda mark: (mark.x, mark.y)):
        if not front or mark.y < front[-1].y:
            front.append(mark)
    return front


def pareto(marks: Sequence[Mark], *, x_title: str, y_title: str, limit: float | None) -> str:
    """Draw the marks, and the front as steps.

    Args:
        marks: at least one, all with ``x`` > 0.
        x_title: what latency is measured in.
        y_title: what the drop is measured in.
        limit: the budget, as a dashed line where it lies inside the picture.
    """
    largest, axis = _largest(marks), _HEIGHT - BOTTOM
    floor = axis - _MARGIN  # marks at 0 must not cover the numbers below the axis
    y_end = _y_end(max(mark.y for mark in marks), limit)
    scale_y = (floor - TOP) / y_end
    low, high, ticks = _span([mark.x for mark in marks])
    scale_x = _PLOT_WIDTH / math.log(high / low)
    parts = [*y_axis(y_end, scale_y, floor, y_title), *_x_axis(ticks, low, scale_x, axis, x_title)]
    if limit is not None and limit <= y_end:
        y = floor - limit * scale_y
        parts.append(f'<line class="limit" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        end = f'x="{WIDTH - RIGHT}" y="{y - 5:.1f}" text-anchor="end"'
        parts.append(f'<text class="limit" {end}>budget {limit:g}</text>')
    places = {mark: (LEFT + math.log(mark.x / low) * scale_x, floor - mark.y * scale_y) for mark in marks}
    front = front_of(marks)
    parts.append(_steps([places[mark] for mark in front]))
    for mark in sorted(marks, key=lambda mark: (mark.chosen, mark in front, -(mark.memory_bytes or 0))):
        parts.append(_drawn(mark, places[mark], largest, faded=mark not in front and not mark.chosen))
    parts += _labels(front, marks, places, largest, _Box(LEFT, TOP, WIDTH, axis))
    return svg(_HEIGHT, parts, f"{y_title} against {x_title}, and the Pareto front")


def _y_end(tallest: float, limit: float | None) -> float:
    """The budget belongs into the picture unless it would flatten all that was measured."""
    shown = limit if limit is not None and (limit <= 4 * tallest or tallest == 0) else 0.0
    return nice_end(max(1.15 * tallest, 1.15 * shown, 1e-6))


def _span(values: Sequence[float]) -> tuple[float, float, list[float]]:
    """Both ends of the logarithmic axis, a little outside the values, and its ticks."""
    around = max(max(values) / min(values), 1.5) ** (_MARGIN / (_PLOT_WIDTH - 2 * _MARGIN))
    low, high = min(values) / around, max(max(values), 1.5 * min(values)) * around
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in _STEPS:
        ticks = [float(f"{step * 10.0**power:.6g}") for power in powers for step in steps]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) >= _ENOUGH_TICKS:
            break
    every = math.ceil(len(ticks) / _MOST_TICKS)
    return low, high, ticks[::every]


def _x_axis(ticks: Sequence[float], low: float, scale: float, floor: float, title: str) -> list[str]:
    parts = [f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{floor}" y2="{floor}"/>']
    for tick in ticks:
        x = LEFT + math.log(tick / low) * scale
        parts.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{floor}" y2="{floor + 4}"/>')
        parts.append(f'<text class="axis" x="{x:.1f}" y="{floor + 17}" text-anchor="middle">{tick:g}</text>')
    return [*parts, title_below(title, floor)]


def _steps(places: Sequence[tuple[float, float]]) -> str:
    """The front: nothing that was measured lies below and left of it."""
    x, y = places[0]
    path = [f"M{x:.1f} {TOP}", f"V{y:.1f}"]
    for x, y in places[1:]:
        path += [f"H{x:.1f}", f"V{y:.1f}"]
    return f'<path class="front" d="{" ".join(path)} H{WIDTH - RIGHT}"/>'


def _radius(memory_bytes: int | None, largest: int) -> float:
    if not memory_bytes or memory_bytes < 0:
        return _LEAST_RADIUS
    return max(_LEAST_RADIUS, _LARGEST_RADIUS * math.sqrt(memory_bytes / largest))


def _drawn(mark: Mark, place: tuple[float, float], largest: int, *, faded: bool) -> str:
    memory = f"{mark.memory_bytes / 1e6:.1f} MB" if mark.memory_bytes is not None else "memory not measured"
    tip = f"{mark.label}: {mark.x:.3g}, drop {mark.y:.3g}, {memory}"
    kinds = ["mark", f"engine{mark.shape}", *(["hollow"] * mark.hollow), *(["faded"] * faded)]
    radius = _radius(mark.memory_bytes, largest)
    ring = f'<circle class="ring" cx="{place[0]:.1f}" cy="{place[1]:.1f}" r="{radius + 4:.1f}"/>' if mark.chosen else ""
    shape = _shape(SHAPES[mark.shape], *place, radius)
    return f'<g class="{" ".join(kinds)}"><title>{escape(tip)}</title>{shape}{ring}</g>'


def _shape(name: str, x: float, y: float, radius: float) -> str:
    """A shape around its middle, with about the area of a circle of that radius."""
    if name == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"/>'
    if name == "star":
        return _polygon(x, y, [radius * (1.5 if corner % 2 == 0 else 0.72) for corner in range(10)], -90)
    corners, turn = _CORNERS[name]
    reach = radius * math.sqrt(2 * math.pi / (corners * math.sin(2 * math.pi / corners)))
    return _polygon(x, y, [reach] * corners, turn)


def _polygon(x: float, y: float, reaches: Sequence[float], turn: float) -> str:
    points = []
    for corner, reach in enumerate(reaches):
        angle = math.radians(turn + 360 * corner / len(reaches))
        points.append(f"{x + reach * math.cos(angle):.1f},{y + reach * math.sin(angle):.1f}")
    return f'<polygon points="{" ".join(points)}"/>'


def legend(marks: Sequence[Mark], engines: Sequence[str]) -> list[tuple[str, str]]:
    """Small pictures with what they mean: the engines' shapes, an area, outlines."""
    shapes = sorted({mark.shape for mark in marks})
    entries = [(f"engine{shape}", _shape(SHAPES[shape], 0, 0, 6), engines[shape]) for shape in shapes]
    if any(mark.hollow for mark in marks):
        entries.append(("outline", _shape("circle", 0, 0, 6), "float in reduced arithmetic"))
    largest = _largest(marks)
    if largest:
        nice = nice_end(largest / 1e6 / 2)
        entries.append(("outline", _shape("circle", 0, 0, _radius(round(nice * 1e6), largest)), f"{nice:g} MB"))
        entries.append(("outline", _shape("circle", 0, 0, _LEAST_RADIUS), "memory not measured, or little"))
    return [(_sample(kind, shape), text) for kind, shape, text in entries]


def _sample(kind: str, shape: str) -> str:
    reach = round(_LARGEST_RADIUS) + 1
    return (
        f'<svg class="sample" viewBox="{-reach} {-reach} {2 * reach} {2 * reach}" aria-hidden="true" '
        f'xmlns="http://www.w3.org/2000/svg"><g class="mark {kind}">{shape}</g></svg>'
    )


def _largest(marks: Sequence[Mark]) -> int:
    return max((mark.memory_bytes or 0 for mark in marks), default=0)


def _labels(
    front: Sequence[Mark], marks: Sequence[Mark], places: dict[Mark, tuple[float, float]], largest: int, frame: _Box
) -> list[str]:
    """Names of the front's marks, each where it covers no mark and no other name; left out where there is no room."""
    taken = [_around(*places[mark], _radius(mark.memory_bytes, largest)) for mark in marks]
    parts = []
    for mark in front:
        (x, y), radius, width = places[mark], _radius(mark.memory_bytes, largest), _LETTER * len(mark.label)
        far = radius + 7
        tries = [
            (x + side * along - (width if side < 0 else 0), y + lift)
            for lift in (-far - 2, far + 12, -far - 20, far + 30, -far - 38, 4)
            for side, along in ((1, 0), (-1, 0), (1, far), (-1, far))
        ]
        for left, base in tries:
            box = _Box(left - 2, base - 12, left + width + 2, base + 4)
            inside = frame.left < box.left and box.right < frame.right and frame.top < box.top < frame.bottom - 16
            if inside and not any(box.meets(other) for other in taken):
                taken.append(box)
                kind = "name chosen" if mark.chosen else "name"
                parts.append(f'<text class="{kind}" x="{left:.1f}" y="{base:.1f}">{escape(mark.label)}</text>')
                break
    return parts


def _around(x: float, y: float, radius: float) -> _Box:
    return _Box(x - radius, y - radius, x + radius, y + radius)

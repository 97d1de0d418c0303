"""Charts of the report as plain SVG text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from sanderling.core.drawing import BOTTOM, LEFT, RIGHT, TOP, WIDTH, nice_end, svg, ticks, title_below, y_axis

_HALF_WIDTH = 400
_LETTER, _LINE = 7.5, 15.0  # mean width and height of the text


@dataclass(frozen=True)
class Point:
    """A point with the upper end of its error bar."""

    label: str
    x: float
    y: float
    y_upper: float
    chosen: bool


@dataclass(frozen=True)
class Bar:
    """A bar, and the text at its end."""

    label: str
    value: float
    text: str
    chosen: bool = False


def scatter(points: Sequence[Point], *, x_title: str, y_title: str, limit: float | None) -> str:
    """Points with error bars upwards, and a dashed line at ``limit``."""
    height = 300
    x_end = nice_end(max(point.x for point in points))
    tallest = max(point.y_upper for point in points)
    # A bound that is far beyond the budget must not flatten the rest of the picture.
    y_end = nice_end(max(tallest, (limit or 0) * 1.3, 1e-6))
    scale_x = (WIDTH - LEFT - RIGHT) / x_end
    scale_y = (height - TOP - BOTTOM) / y_end
    floor = height - BOTTOM
    parts = [*_x_axis(x_end, scale_x, floor, x_title), *y_axis(y_end, scale_y, floor, y_title)]
    if limit is not None:
        y = floor - limit * scale_y
        parts.append(f'<line class="limit" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(
            f'<text class="limit" x="{WIDTH - RIGHT}" y="{y - 5:.1f}" text-anchor="end">budget {limit:g}</text>'
        )
    named: list[tuple[float, float, float]] = []  # left and right end, and height, of each name
    for point in points:
        x, y, upper = LEFT + point.x * scale_x, floor - point.y * scale_y, floor - point.y_upper * scale_y
        kind = "chosen" if point.chosen else "other"
        side, anchor = (10, "start") if x < WIDTH * 0.8 else (-10, "end")
        left = x + side - (0 if anchor == "start" else _LETTER * len(point.label))
        right, lift = left + _LETTER * len(point.label), y - 8
        while any(left < end and start < right and abs(lift - level) < _LINE for start, end, level in named):
            lift -= _LINE
        named.append((left, right, lift))
        tip = f"{point.label}: {point.x:.2f}, drop {point.y:.3g}, upper bound {point.y_upper:.3g}"
        parts.append(
            f'<g class="{kind}"><title>{escape(tip)}</title>'
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y:.1f}" y2="{upper:.1f}"/>'
            f'<line x1="{x - 5:.1f}" x2="{x + 5:.1f}" y1="{upper:.1f}" y2="{upper:.1f}"/>'
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6"/>'
            f'<text x="{x + side:.1f}" y="{lift:.1f}" text-anchor="{anchor}">{escape(point.label)}</text></g>'
        )
    return svg(height, parts, f"{y_title} against {x_title}")


def bars(items: Sequence[Bar], *, title: str) -> str:
    """Horizontal bars from zero, for half the width of the page."""
    row, label_width, text_width = 30, 50, 120
    end = max((item.value for item in items), default=0.0) or 1.0
    scale = (_HALF_WIDTH - label_width - text_width) / end
    parts = []
    for index, item in enumerate(items):
        y = 6 + index * row
        kind = "chosen" if item.chosen else "other"
        parts.append(
            f'<g class="{kind}"><text x="{label_width - 8}" y="{y + 15}" text-anchor="end">{escape(item.label)}</text>'
            f'<rect x="{label_width}" y="{y}" width="{max(item.value * scale, 1):.1f}" height="20" rx="3"/>'
            f'<text x="{label_width + item.value * scale + 8:.1f}" y="{y + 15}">{escape(item.text)}</text></g>'
        )
    return svg(12 + row * len(items), parts, title, width=_HALF_WIDTH)


def profile(labels: Sequence[str], values: Sequence[float], *, y_title: str, x_title: str) -> str:
    """One thin column a layer, in the graph's order; the name shows when the pointer rests on it."""
    height = 240
    y_end = nice_end(max(max(values, default=0.0), 1.0))
    scale_y = (height - TOP - BOTTOM) / y_end
    floor = height - BOTTOM
    step = (WIDTH - LEFT - RIGHT) / max(len(values), 1)
    worst = sorted(values)[: max(1, len(values) // 10)] if values else []
    parts = y_axis(y_end, scale_y, floor, y_title)
    for index, (label, value) in enumerate(zip(labels, values, strict=True)):
        tall = max(value, 0.0) * scale_y
        kind = "worst" if value <= worst[-1] else "other"
        parts.append(
            f'<g class="{kind}"><title>{escape(label)}: {value:.1f} dB</title><rect x="{LEFT + index * step:.1f}" '
            f'y="{floor - tall:.1f}" width="{max(step - 1, 0.8):.1f}" height="{max(tall, 0.5):.1f}"/></g>'
        )
    parts.append(
        f'<text class="axis" x="{(LEFT + WIDTH) / 2}" y="{height - 10}" text-anchor="middle">{escape(x_title)}</text>'
    )
    return svg(height, parts, f"{y_title} by layer")


def _x_axis(end: float, scale: float, floor: float, title: str) -> list[str]:
    parts = [f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{floor}" y2="{floor}"/>']
    for tick in ticks(end):
        x = LEFT + tick * scale
        parts.append(f'<text class="axis" x="{x:.1f}" y="{floor + 16}" text-anchor="middle">{tick:g}</text>')
    return [*parts, title_below(title, floor)]

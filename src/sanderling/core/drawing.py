"""Pictures as plain SVG text: no script, no fonts, colours from the page's style sheet, light and dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from importlib import resources

WIDTH = 640
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 16, 44


def page_style() -> str:
    """Style sheet of every page that we write."""
    return (resources.files("sanderling.core") / "page.css").read_text("utf-8")


def svg(height: int, parts: Sequence[str], title: str, *, width: int = WIDTH) -> str:
    """A picture that scales with the page."""
    body = "\n".join(parts)
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}" '
        f'xmlns="http://www.w3.org/2000/svg">\n{body}\n</svg>'
    )


def title_below(title: str, floor: float) -> str:
    """What the horizontal axis counts, below its numbers."""
    middle = (LEFT + WIDTH - RIGHT) / 2
    return f'<text class="axis" x="{middle}" y="{floor + 36}" text-anchor="middle">{escape(title)}</text>'


def y_axis(end: float, scale: float, floor: float, title: str) -> list[str]:
    """Lines, numbers and title of the vertical axis, from 0 at ``floor`` to ``end``."""
    parts = []
    for tick in ticks(end):
        y = floor - tick * scale
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="axis" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    middle = (TOP + floor) / 2
    parts.append(
        f'<text class="axis" x="14" y="{middle}" text-anchor="middle" '
        f'transform="rotate(-90 14 {middle})">{escape(title)}</text>'
    )
    return parts


def nice_end(value: float) -> float:
    """The next 1, 2 or 5 times a power of ten that is not below ``value``."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * factor for factor in (1, 1.5, 2, 3, 4, 5, 8, 10) if power * factor >= value * 0.999)


def ticks(end: float) -> list[float]:
    """Six even numbers from 0 to ``end``."""
    return [float(f"{end * index / 5:.6g}") for index in range(6)]

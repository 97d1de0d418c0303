"""The picture of what is taken for what, as plain SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from sanderling.core.drawing import WIDTH, svg
from sanderling.measure.confusion import NOTHING, Confusion

MOST_CLASSES = 20
_LETTER = 6.6
_LONGEST_NAME = 14
_NUMBERED_CELL = 18  # a smaller one has no room for a number


def confusion_chart(confusion: Confusion, labels: Sequence[str] | None) -> str:
    """A square of cells, rows by what was right: the darker, the larger a share of its row.

    At most the 20 classes that are confused most are shown.
    """
    classes = confusion.classes(MOST_CLASSES)
    counts = confusion.matrix(classes)
    names = [_name(number, labels) for number in classes]
    left = 30 + _LETTER * max(map(len, names))
    side = min((WIDTH - left - 10) / len(classes), 40)
    top = 30.0
    middle = side * len(classes) / 2
    parts = [
        f'<text class="axis" x="{left + middle:.0f}" y="16" text-anchor="middle">given</text>',
        _turned("right", 12, top + middle, 90, "middle"),
    ]
    for row, name in enumerate(names):
        y = top + side * row
        parts.append(
            f'<text class="axis" x="{left - 6:.1f}" y="{y + side / 2 + 4:.1f}" text-anchor="end">{escape(name)}</text>'
        )
        total = max(int(counts[row].sum()), 1)
        for column, count in enumerate(counts[row].tolist()):
            tip = f"{name}, taken for {names[column]}: {count} of {total}"
            parts.append(_cell(left + side * column, y, side, count / total, count, row == column, tip))
    floor = top + side * len(classes)
    longest = max(map(len, names))
    for column, name in enumerate(names):
        x = left + side * (column + 0.5)
        parts.append(_turned(name, x, floor + 12, 60, "end"))
    return svg(round(floor + 24 + _LETTER * longest * 0.9), parts, "What is taken for what")


def _turned(text: str, x: float, y: float, degrees: int, anchor: str) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" transform="rotate(-{degrees} {x:.1f} {y:.1f})"'
    return f'<text class="axis" {place}>{escape(text)}</text>'


def _name(number: int, labels: Sequence[str] | None) -> str:
    if number == NOTHING:
        return "nothing"
    name = labels[number] if labels and number < len(labels) else f"class {number}"
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"


def _cell(x: float, y: float, side: float, share: float, count: int, is_right: bool, tip: str) -> str:
    kind = "chosen" if is_right else "worst"
    number = (
        f'<text x="{x + side / 2:.1f}" y="{y + side / 2 + 4:.1f}" text-anchor="middle">{count}</text>'
        if count and side >= _NUMBERED_CELL
        else ""
    )
    place = f'x="{x + 0.5:.1f}" y="{y + 0.5:.1f}" width="{side - 1:.1f}" height="{side - 1:.1f}"'
    opacity = f'fill-opacity="{0.04 + 0.7 * share:.2f}"'
    return f'<g class="{kind}"><title>{escape(tip)}</title><rect {place} {opacity}/>{number}</g>'

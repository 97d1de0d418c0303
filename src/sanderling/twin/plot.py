"""A play as a picture: temperatures, the device that each model ran on, and latency, over one axis of time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from sanderling.core.drawing import svg
from sanderling.run.emulation.table import LatencyTable
from sanderling.run.policy import NEVER
from sanderling.twin.simulate import DeviceSwitch, Outcome, Played
from sanderling.twin.traces import Floats

SERIES = 7  # colours of the page's style sheet
_WIDTH, _RIGHT, _TOP = 640, 16, 14
_HEAT_HEIGHT, _ROW_HEIGHT, _LATENCY_HEIGHT, _GAP = 170, 20, 120, 30
_LETTER = 7.0
_NEAR_C = 10.0  # thresholds further away are not drawn
_BUCKETS, _POINTS = 160, 640
_NAMED_MARKS, _STRONG_MARKS = 8, 60


class Frame(NamedTuple):
    """What pictures that stand side by side have in common.

    Attributes:
        seconds: end of the axis of time.
        cold_c: lower end of the axis of temperature.
        hot_c: upper end.
        short_ms: lower end of the axis of latency, a power of ten.
        long_ms: upper end.
    """

    seconds: float
    cold_c: float
    hot_c: float
    short_ms: float
    long_ms: float


def frame_of(plays: Sequence[Played], table: LatencyTable) -> Frame:
    """Axes that hold all plays, and the thresholds that they come near to."""
    seconds = max(max(float(play.trace.time_ms[-1]) for play in plays) / 1e3, 1.0)
    low = min(float(play.temperature_c.min()) for play in plays)
    high = max(float(play.temperature_c.max()) for play in plays)
    limits = [limit_c for play in plays for _, limit_c, _ in _limits(play, table)]
    latencies = np.concatenate([(play.end_ms - play.trace.time_ms)[play.outcome == Outcome.DONE] for play in plays])
    short, long = (float(latencies.min()), float(np.percentile(latencies, 99.9))) if len(latencies) else (1.0, 10.0)
    return Frame(
        seconds,
        math.floor(low / 10) * 10,
        math.ceil((max([high, *limits]) + 1) / 10) * 10,
        10.0 ** math.floor(math.log10(max(short, 1e-3))),
        10.0 ** math.ceil(math.log10(max(long, 2 * short, 1e-2))),
    )


def picture(play: Played, table: LatencyTable, frame: Frame) -> str:
    """Draw a play."""
    left = max(56.0, 14 + _LETTER * max(map(len, play.trace.models)))
    wide = (_WIDTH - left - _RIGHT) / frame.seconds
    heat_floor = _TOP + _HEAT_HEIGHT
    rows_top = heat_floor + _GAP
    latency_top = rows_top + _ROW_HEIGHT * len(play.trace.models) + _GAP
    floor = latency_top + _LATENCY_HEIGHT
    parts = [
        *_rows(play, frame, left, wide, rows_top),
        *_latency(play, frame, left, wide, latency_top),
        *_switches(play, frame, left, wide, _TOP, floor),
        *_heat(play, table, frame, left, wide, heat_floor),
        *_time_axis(frame, left, wide, floor),
    ]
    return svg(round(floor) + 44, parts, f"{play.contender.name}: temperature, device and latency over time")


def device_class(index: int) -> str:
    """Style of a device, by its place in the table."""
    return f"series{index % SERIES}"


def _limits(play: Played, table: LatencyTable) -> Iterable[tuple[str, float, str]]:
    """Device, temperature and meaning of every threshold that the device comes near to."""
    for index, device in enumerate(play.devices):
        near_c = float(play.temperature_c[:, index].max()) + _NEAR_C
        leave_c, return_c = play.contender.thresholds_c.get(device, (NEVER, NEVER))
        throttle_c = table.device(device).thermal.throttle_c
        if leave_c <= near_c:
            yield device, leave_c, f"{device} is left at {leave_c:g} °C"
            yield device, return_c, f"{device} returns at {return_c:g} °C"
        if throttle_c is not None and throttle_c <= near_c:
            yield device, throttle_c, f"{device} slows down at {throttle_c:g} °C"


def _heat(play: Played, table: LatencyTable, frame: Frame, left: float, wide: float, floor: float) -> list[str]:
    tall = _HEAT_HEIGHT / (frame.hot_c - frame.cold_c)
    parts = []
    step = 10 if frame.hot_c - frame.cold_c <= 80 else 20
    for degrees in range(int(frame.cold_c), int(frame.hot_c) + 1, step):
        parts += _level(floor - (degrees - frame.cold_c) * tall, f"{degrees}", left)
    parts.append(_title("°C", floor - _HEAT_HEIGHT / 2))
    labels: list[str] = []
    taken: list[float] = []
    for device, limit_c, text in _limits(play, table):
        if not frame.cold_c <= limit_c <= frame.hot_c:
            continue
        y = floor - (limit_c - frame.cold_c) * tall
        kind = device_class(play.devices.index(device))
        parts.append(f'<line class="threshold {kind}" x1="{left}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        if all(abs(y - other) >= 12 for other in taken):
            taken.append(y)
            place = f'x="{_WIDTH - _RIGHT}" y="{y - 3:.1f}" text-anchor="end"'
            labels.append(f'<text class="name {kind}" {place}>{escape(text)}</text>')
    every = max(len(play.tick_ms) // _POINTS, 1)
    for index, device in enumerate(play.devices):
        points = [
            f"{left + at / 1e3 * wide:.1f},{floor - (degrees - frame.cold_c) * tall:.1f}"
            for at, degrees in zip(
                play.tick_ms[::every].tolist(), play.temperature_c[::every, index].tolist(), strict=True
            )
            if at / 1e3 <= frame.seconds
        ]
        parts.append(
            f'<polyline class="line {device_class(index)}" points="{" ".join(points)}"><title>{escape(device)}</title>'
            "</polyline>"
        )
    return [*parts, *labels]


def _rows(play: Played, frame: Frame, left: float, wide: float, top: float) -> list[str]:
    """For each model a band: in each moment, the devices that ran its requests, by their share."""
    done = play.outcome == Outcome.DONE
    bucket = np.minimum(play.end_ms / 1e3 / frame.seconds * _BUCKETS, _BUCKETS).astype(np.int64, casting="unsafe")
    parts = []
    for row, model in enumerate(play.trace.models):
        y = top + row * _ROW_HEIGHT
        parts.append(f'<text class="name" x="{left - 8:.1f}" y="{y + 13:.1f}" text-anchor="end">{escape(model)}</text>')
        own = done & (play.trace.model == row)
        counts = np.stack(
            [
                np.bincount(bucket[own & (play.device == index)], minlength=_BUCKETS + 1)[:_BUCKETS].astype(np.float64)
                for index in range(len(play.devices))
            ]
        )  # (devices, buckets)
        parts += _bands(counts, left, frame.seconds * wide / _BUCKETS, y, _ROW_HEIGHT - 4)
    return parts


def _bands(counts: Floats, left: float, step: float, top: float, height: float) -> list[str]:
    """Stacked shares, drawn as one path a device; equal neighbours are one rectangle."""
    total = np.maximum(counts.sum(axis=0), 1)
    ends = np.round(np.cumsum(counts, axis=0) / total * height)  # (devices, buckets), pixels from the top
    parts = []
    for index in range(len(counts)):
        starts = ends[index - 1] if index else np.zeros_like(ends[0])
        pieces = []
        begin = 0
        for at in range(1, _BUCKETS + 1):
            if at < _BUCKETS and (starts[at], ends[index][at]) == (starts[begin], ends[index][begin]):
                continue
            tall = ends[index][begin] - starts[begin]
            if tall:
                x, long = left + begin * step, (at - begin) * step
                pieces.append(f"M{x:.1f} {top + starts[begin]:.1f}h{long:.2f}v{tall:.0f}h{-long:.2f}z")
            begin = at
        if pieces:
            parts.append(f'<path class="band {device_class(index)}" d="{"".join(pieces)}"/>')
    return parts


def _latency(play: Played, frame: Frame, left: float, wide: float, top: float) -> list[str]:
    decades = math.log10(frame.long_ms / frame.short_ms)
    tall, floor = _LATENCY_HEIGHT / decades, top + _LATENCY_HEIGHT
    parts = []
    for decade in range(round(decades) + 1):
        level_ms = frame.short_ms * 10.0**decade
        parts += _level(floor - decade * tall, f"{level_ms:g}", left)
    parts.append(_title("latency, ms", top + _LATENCY_HEIGHT / 2))
    done = np.flatnonzero(play.outcome == Outcome.DONE)
    done = done[np.argsort(play.end_ms[done], kind="stable")]
    latency_ms = (play.end_ms - play.trace.time_ms)[done]
    edges = np.searchsorted(play.end_ms[done], np.linspace(0, frame.seconds * 1e3, _BUCKETS + 1))
    for share, kind in ((99, "p99"), (50, "p50")):
        path, pen = [], "M"
        for index in range(_BUCKETS):
            found = latency_ms[edges[index] : edges[index + 1]]
            if not len(found):
                pen = "M"
                continue
            level = math.log10(min(max(float(np.percentile(found, share)), frame.short_ms), frame.long_ms))
            x = left + (index + 0.5) / _BUCKETS * frame.seconds * wide
            path.append(f"{pen}{x:.1f} {floor - (level - math.log10(frame.short_ms)) * tall:.1f}")
            pen = "L"
        parts.append(f'<path class="line {kind}" d="{"".join(path)}"/>')
    return parts


def _switches(play: Played, frame: Frame, left: float, wide: float, top: float, floor: float) -> list[str]:
    """A line at each moment at which a model changed its device, with the reasons as its tip."""
    moments: dict[float, list[DeviceSwitch]] = {}
    for switch in play.switches:
        if switch.at_ms / 1e3 <= frame.seconds:
            moments.setdefault(switch.at_ms / 1e3, []).append(switch)
    kind = "switch" if len(moments) <= _STRONG_MARKS else "switch many"
    parts = []
    for at_s, switches in moments.items():
        x = left + at_s * wide
        texts = [f"{switch.model}: {switch.source} → {switch.target}, {switch.reason}" for switch in switches]
        tip = escape("\n".join([f"{at_s:.1f} s", *texts]))
        parts.append(
            f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{floor:.1f}"><title>{tip}</title></line>'
        )
        targets = sorted({switch.target for switch in switches})
        if len(moments) <= _NAMED_MARKS:
            shift, anchor = (3, "start") if x < _WIDTH - _RIGHT - 40 else (-3, "end")
            place = f'x="{x + shift:.1f}" y="{top + _HEAT_HEIGHT + 18:.1f}" text-anchor="{anchor}"'
            parts.append(f'<text class="name" {place}>{escape(", ".join(targets))}</text>')
    return parts


def _time_axis(frame: Frame, left: float, wide: float, floor: float) -> list[str]:
    unit, title = (60.0, "minutes") if frame.seconds > 150 else (1.0, "seconds")
    span = frame.seconds / unit
    step = next(step for step in (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1500, 10**9) if span / step <= 10)
    parts = [f'<line class="axis" x1="{left}" x2="{_WIDTH - _RIGHT}" y1="{floor:.1f}" y2="{floor:.1f}"/>']
    for tick in range(0, int(span) + 1, step):
        x = left + tick * unit * wide
        parts.append(f'<text class="axis" x="{x:.1f}" y="{floor + 16:.1f}" text-anchor="middle">{tick}</text>')
    middle = (left + _WIDTH - _RIGHT) / 2
    return [*parts, f'<text class="axis" x="{middle:.1f}" y="{floor + 34:.1f}" text-anchor="middle">{title}</text>']


def _level(y: float, text: str, left: float) -> list[str]:
    return [
        f'<line class="grid" x1="{left}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>',
        f'<text class="axis" x="{left - 8:.1f}" y="{y + 4:.1f}" text-anchor="end">{text}</text>',
    ]


def _title(text: str, middle: float) -> str:
    return (
        f'<text class="axis" x="14" y="{middle:.1f}" text-anchor="middle" '
        f'transform="rotate(-90 14 {middle:.1f})">{text}</text>'
    )

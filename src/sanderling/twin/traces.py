"""Arrivals: which model is asked when, how urgently, with how many rows."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sanderling.core.errors import DataError, OptionError
from sanderling.run.policy import NEVER

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

COLUMNS = ("time_ms", "model", "deadline_ms", "priority", "rows")
FORMS = "poisson:MODEL@RATE/s, bursty:MODEL@RATE/s,burst=RATE or camera:MODEL@30fps×STREAMS"
_MOST_REQUESTS = 20_000_000
_MOST_ROWS = 4096
_MOST_STREAMS = 10_000
_PART = re.compile(r"^(?P<kind>poisson|bursty|camera):(?P<model>[^@,]+)@(?P<rate>[^,]+)(?P<rest>(,.*)?)$", re.DOTALL)
_RATE = re.compile(r"^(?P<rate>[0-9.eE+-]+)(/s|fps|FPS)(?:[×x](?P<streams>\d+))?$")


@dataclass(frozen=True)
class Trace:
    """Requests by time, all arrays of shape (n,).

    Attributes:
        models: names.
        model: index into ``models``.
        time_ms: of arrival, from 0 on, never falling.
        deadline_ms: from arrival on; infinite without one.
        priority: larger is sooner.
        rows: of each request, at least 1.
    """

    models: tuple[str, ...]
    model: Integers
    time_ms: Floats
    deadline_ms: Floats
    priority: Integers
    rows: Integers

    def __len__(self) -> int:
        return len(self.time_ms)

    def until(self, end_ms: float) -> Trace:
        """The requests that arrive before ``end_ms``."""
        end = int(np.searchsorted(self.time_ms, end_ms))
        return Trace(
            self.models,
            self.model[:end],
            self.time_ms[:end],
            self.deadline_ms[:end],
            self.priority[:end],
            self.rows[:end],
        )


def trace_of(text: str, *, minutes: float | None, seed: int) -> Trace:
    """A trace from a CSV file, or from a specification.

    Args:
        text: path of a file that exists or ends in ``.csv``, else a specification, see ``specified``.
        minutes: that the trace lasts: 1 by default; of a file, all of it.
        seed: of a specification's generator.

    Raises:
        DataError: the file cannot be used, or nothing arrives.
        OptionError: the specification cannot be read.
    """
    if minutes is not None and not (minutes > 0 and math.isfinite(minutes)):
        raise OptionError(f"a trace of {minutes:g} minutes cannot be played: give a number above 0")
    path = Path(text)
    if path.suffix.lower() == ".csv" or (len(text) < 4096 and path.is_file()):
        trace = read_csv(path)
        trace = trace if minutes is None else trace.until(minutes * 60e3)
    else:
        trace = specified(text, minutes=1.0 if minutes is None else minutes, seed=seed)
    if not len(trace):
        raise DataError(f"trace {text} holds no request in its time: nothing can be played")
    return trace


def specified(text: str, *, minutes: float, seed: int) -> Trace:
    """A trace of several streams, joined by ``+``.

    ``poisson:resnet18@40/s,deadline=50`` is a Poisson process. ``bursty:resnet18@10/s,burst=80,calm=8,busy=2`` changes
    between two rates, for 8 and 2 seconds in the mean. ``camera:yolov5s@30fps×2,deadline=33,jitter=2`` is two cameras
    with a phase of their own, whose frames come up to 2 ms (one standard deviation) off their time. Each may have
    ``deadline`` (milliseconds), ``priority`` and ``rows``.

    Raises:
        OptionError: another form, or a value that does not fit.
    """
    parts = re.split(r"\+(?=[a-z]+:)", "".join(text.split()))
    generator = np.random.default_rng(seed)
    streams = [_stream(part, minutes * 60.0, generator) for part in parts]
    return _merged(streams)


def poisson_ms(rate_per_s: float, seconds: float, generator: np.random.Generator) -> Floats:
    """Arrivals of a Poisson process, in milliseconds."""
    count = generator.poisson(rate_per_s * seconds)
    return np.sort(generator.random(count)) * seconds * 1e3


def bursty_ms(
    calm_per_s: float, burst_per_s: float, calm_s: float, busy_s: float, seconds: float, generator: np.random.Generator
) -> Floats:
    """Arrivals of a Poisson process whose rate changes between two values, in milliseconds.

    Source: Fischer and Meier-Hellstern, "The Markov-modulated Poisson process cookbook", Performance Evaluation 18
    (1993) 149, with two states.
    """
    pieces = []
    start, busy = 0.0, generator.random() < busy_s / (calm_s + busy_s)
    while start < seconds:
        length = min(generator.exponential(busy_s if busy else calm_s), seconds - start)
        pieces.append(start * 1e3 + poisson_ms(burst_per_s if busy else calm_per_s, length, generator))
        start, busy = start + max(length, 1e-6), not busy
    return np.concatenate(pieces)


def camera_ms(
    frames_per_s: float, streams: int, jitter_ms: float, seconds: float, generator: np.random.Generator
) -> Floats:
    """Frames of several cameras that were switched on at different moments, in milliseconds."""
    period_ms = 1e3 / frames_per_s
    frames = np.arange(math.ceil(seconds * frames_per_s)) * period_ms
    phases = generator.random(streams) * period_ms
    times = (frames[None, :] + phases[:, None]).ravel()  # (streams × frames,)
    if jitter_ms:
        times = np.maximum(times + generator.normal(0.0, jitter_ms, len(times)), 0.0)
    times.sort()
    return times[times < seconds * 1e3]


def read_csv(path: Path) -> Trace:
    """Read ``time_ms,model,deadline_ms,priority,rows``; the last three may be empty or missing.

    Raises:
        DataError: a missing file or column, a value that does not fit or time that runs back, with the line's number.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            return _from_rows(path, csv.reader(stream, strict=True))
    except OSError as error:
        raise DataError(f"cannot read trace {path}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"trace {path} is no CSV file in UTF-8: {error}") from error


@dataclass(frozen=True)
class _Stream:
    model: str
    time_ms: Floats
    deadline_ms: float
    priority: int
    rows: int


def _merged(streams: Sequence[_Stream]) -> Trace:
    models = tuple(dict.fromkeys(stream.model for stream in streams))
    lengths = [len(stream.time_ms) for stream in streams]
    time_ms = np.concatenate([stream.time_ms for stream in streams])
    order = np.argsort(time_ms, kind="stable")
    return Trace(
        models,
        np.repeat([models.index(stream.model) for stream in streams], lengths)[order].astype(np.int64),
        time_ms[order],
        np.repeat([stream.deadline_ms for stream in streams], lengths)[order].astype(np.float64),
        np.repeat([stream.priority for stream in streams], lengths)[order].astype(np.int64),
        np.repeat([stream.rows for stream in streams], lengths)[order].astype(np.int64),
    )


def _stream(text: str, seconds: float, generator: np.random.Generator) -> _Stream:
    match = _PART.match(text)
    if match is None:
        raise OptionError(f"trace '{text}' is neither a CSV file nor of the form {FORMS}")
    rate = _RATE.match(match["rate"])
    if rate is None:
        raise OptionError(f"trace '{text}': rate '{match['rate']}' is not of the form 40/s or 30fps×2")
    values = _values(text, match["rest"].removeprefix(","))
    take = _taker(text, values)
    per_s = _number(text, "rate", rate["rate"], least=1e-6, most=1e6)
    streams = int(rate["streams"] or 1)
    if not 1 <= streams <= _MOST_STREAMS:
        raise OptionError(f"trace '{text}': {streams} streams are not between 1 and {_MOST_STREAMS}")
    if per_s * streams * seconds > _MOST_REQUESTS:
        raise OptionError(
            f"trace '{text}' has {per_s * streams * seconds:.0f} requests: at most {_MOST_REQUESTS} are played at once"
        )
    deadline_ms = take("deadline", NEVER, 1e-3, 1e9)
    priority, rows = int(take("priority", 0, -1000, 1000)), int(take("rows", 1, 1, _MOST_ROWS))
    if match["kind"] == "camera":
        time_ms = camera_ms(per_s, streams, take("jitter", 0.0, 0.0, 1e3), seconds, generator)
    elif match["kind"] == "bursty":
        burst = take("burst", 5 * per_s, 1e-6, _MOST_REQUESTS / seconds)
        time_ms = bursty_ms(
            per_s, burst, take("calm", 8.0, 1e-3, 1e6), take("busy", 2.0, 1e-3, 1e6), seconds, generator
        )
    else:
        time_ms = poisson_ms(per_s * streams, seconds, generator)
    if values:
        raise OptionError(f"trace '{text}': unknown '{next(iter(values))}' of a {match['kind']} stream")
    return _Stream(match["model"], time_ms, deadline_ms, priority, rows)


def _values(text: str, rest: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for part in rest.split(",") if rest else []:
        key, equals, value = part.partition("=")
        if not equals or key in values:
            raise OptionError(f"trace '{text}': '{part}' is {'there twice' if equals else 'not of the form key=value'}")
        values[key] = value
    return values


def _taker(text: str, values: dict[str, str]) -> Callable[[str, float, float, float], float]:
    """Takes a value out of ``values``, so that what is left in the end is unknown."""

    def take(name: str, default: float, least: float, most: float) -> float:
        given = values.pop(name, None)
        return default if given is None else _number(text, name, given.removesuffix("/s"), least=least, most=most)

    return take


def _number(text: str, name: str, value: str, *, least: float, most: float) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not least <= number <= most:
        raise OptionError(f"trace '{text}': {name} '{value}' is no number between {least:g} and {most:g}")
    return number


def _from_rows(path: Path, rows: Iterator[list[str]]) -> Trace:
    head = [name.strip() for name in next(rows, [])]
    if head[:2] != list(COLUMNS[:2]) or any(name not in COLUMNS for name in head) or len(set(head)) != len(head):
        raise DataError(f"trace {path}, line 1: columns are '{','.join(head)}', expected {','.join(COLUMNS)}")
    models: dict[str, int] = {}
    columns: dict[str, list[float]] = {name: [] for name in COLUMNS}
    last_ms = 0.0
    for number, cells in enumerate(rows, 2):
        if not cells:
            continue
        place = f"trace {path}, line {number}"
        if len(cells) != len(head):
            raise DataError(f"{place}: {len(cells)} values, the first line names {len(head)}")
        row = dict(zip(head, (cell.strip() for cell in cells), strict=True))
        time_ms = _cell(place, row, "time_ms", None, 0.0, 1e12)
        if time_ms < last_ms:
            raise DataError(f"{place}: time_ms {time_ms:g} is before the line above, {last_ms:g}: sort by time")
        if not row["model"]:
            raise DataError(f"{place}: model is empty")
        last_ms = time_ms
        columns["time_ms"].append(time_ms)
        columns["model"].append(models.setdefault(row["model"], len(models)))
        columns["deadline_ms"].append(_cell(place, row, "deadline_ms", NEVER, 1e-3, 1e9))
        columns["priority"].append(_cell(place, row, "priority", 0.0, -1000, 1000, whole=True))
        columns["rows"].append(_cell(place, row, "rows", 1.0, 1, _MOST_ROWS, whole=True))
    return Trace(
        tuple(models),
        np.array(columns["model"], np.int64),
        np.array(columns["time_ms"], np.float64),
        np.array(columns["deadline_ms"], np.float64),
        np.array(columns["priority"], np.int64),
        np.array(columns["rows"], np.int64),
    )


def _cell(
    place: str,
    row: Mapping[str, str],
    name: str,
    default: float | None,
    least: float,
    most: float,
    *,
    whole: bool = False,
) -> float:
    text = row.get(name, "")
    if not text and default is not None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most or (whole and value != int(value)):
        kind = "whole number" if whole else "number"
        raise DataError(f"{place}: {name} '{text}' is no {kind} between {least:g} and {most:g}")
    return value

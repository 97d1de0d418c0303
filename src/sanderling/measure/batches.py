"""How long batches of each size take on every device here: a latency table for the twin."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from sanderling.core.errors import OptionError
from sanderling.core.machine import describe_machine
from sanderling.core.progress import Event, Progress, Silent
from sanderling.core.tensor import TensorSpec
from sanderling.measure.latency import Timing, time_interleaved
from sanderling.measure.tune.stable import batch_feeds
from sanderling.model.package import Package
from sanderling.run.emulation.table import LatencyTable, TableDevice, TableEntry
from sanderling.run.engines import engine
from sanderling.run.lanes import LanePlan, rank_lanes
from sanderling.run.policy.document import Policy

BATCHES = (1, 2, 4, 8)
_KINDS = ("npu", "gpu", "cpu")
_MOST_ROWS = 4096
_MOST_JITTER = 2.0


def parse_batches(text: str) -> tuple[int, ...]:
    """Read ``1,2,4,8``.

    Raises:
        OptionError: another form, or a size that is not between 1 and 4096.
    """
    try:
        sizes = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        sizes = (0,)
    if not 1 <= sizes[0] <= sizes[-1] <= _MOST_ROWS:
        raise OptionError(f"batches '{text}' are not of the form 1,2,4,8, each between 1 and {_MOST_ROWS}")
    return sizes


def measure_table(
    path: str | Path,
    *,
    batches: Sequence[int] = BATCHES,
    threads: int = 0,
    warmup: int = 10,
    repeats: int = 100,
    progress: Progress | None = None,
) -> LatencyTable:
    """Time every batch size on every device that runs the package, all in turn (A B C A B C …), on golden inputs.

    Args:
        path: the package; what its plan says runs, else the chosen variant on the first engine that offers the device.
        batches: rows of a call; a package with a fixed batch has its own size only.
        threads: of one call; 0 leaves it to the plan or the engine.
        warmup: untimed calls of each.
        repeats: timed calls of each.
        progress: told about each round.

    Returns:
        The median of each size. Power and heat are not measured: they are the table's defaults.

    Raises:
        PackageError: the package is broken.
        UnavailableError: no device here runs it.
    """
    package = Package.open(path)
    progress = progress or Silent()
    lanes = _lanes(package, threads)
    fixed = _fixed_batch(package.manifest.inputs)
    if fixed is not None and tuple(batches) != (fixed,):
        reason = f"the model takes {fixed} rows; build with --dynamic batch for others"
        progress.event(Event(kind="batch-fixed", subject=package.path.name, reason=reason))
    sizes = tuple(batches) if fixed is None else (fixed,)
    golden = package.golden()
    # a golden call of a fixed batch has all its rows already
    feeds = {size: batch_feeds(golden, size if fixed is None else 1) for size in sizes}
    with ExitStack() as stack:
        calls: dict[str, Callable[[], object]] = {}
        for device, lane in lanes.items():
            place = lane.place
            executable = engine(place.engine).load(package.file(place.variant.file), place.options)
            stack.callback(executable.close)
            calls |= {f"{device} {size}": partial(executable.run, feeds[size]) for size in sizes}
        progress.stage("measure batches", repeats)
        timings = time_interleaved(calls, warmup=warmup, repeats=repeats, progress=progress)
    machine = describe_machine()
    ran = ", ".join(lane.name for lane in lanes.values())
    return LatencyTable(
        source=f"{package.manifest.name}: medians of {repeats} calls of {ran} on {machine.processor}, {machine.cores} "
        "cores; power and heat are assumed",
        devices={device: TableDevice(kind=lane.kind.value) for device, lane in lanes.items()},
        models={
            package.manifest.name: {
                device: _entry({size: timings[f"{device} {size}"] for size in sizes}, is_fixed=fixed is not None)
                for device in lanes
            }
        },
    )


def _lanes(package: Package, threads: int) -> dict[str, LanePlan]:
    """The first way of running on each device, by the device's name."""
    ranked, _ = rank_lanes(package, Policy(device_priorities=_KINDS), threads=threads)
    lanes: dict[str, LanePlan] = {}
    for lane in ranked:
        lanes.setdefault(lane.device, lane)
    return lanes


def _fixed_batch(inputs: Sequence[TensorSpec]) -> int | None:
    sizes = [spec.shape[0] for spec in inputs if spec.shape and isinstance(spec.shape[0], int)]
    return sizes[0] if sizes else None


def _entry(timings: dict[int, Timing], *, is_fixed: bool) -> TableEntry:
    spreads = [statistics.pstdev(timing.samples_ms) / timing.mean for timing in timings.values()]
    return TableEntry(
        latency_ms={size: timing.p50 for size, timing in timings.items()},
        jitter=min(statistics.median(spreads), _MOST_JITTER),
        fixed=is_fixed,
    )

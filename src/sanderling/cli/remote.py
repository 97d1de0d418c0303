"""`sanderling bench --on`: measure on a device, and keep the result in the package."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sanderling.cli.output import print_result
from sanderling.core.errors import OptionError

if TYPE_CHECKING:
    from rich.console import Console

    from sanderling.measure.remote.devices import RemoteOptions
    from sanderling.measure.remote.results import DeviceBench


def bench_there(package: Path, on: str | None, options: RemoteOptions, *, measured_here: bool, as_json: bool) -> None:
    """Measure and print.

    Raises:
        OptionError: options that are for this machine, or a runner for no device.
    """
    from sanderling.api import bench_on
    from sanderling.cli.progress import RichProgress

    if on is None:
        raise OptionError("--runner needs --on ssh:HOST or --on hdc:KEY")
    if measured_here:
        raise OptionError("--lean and --table are of this machine: leave them out with --on")
    with RichProgress() as progress:
        found = bench_on(
            package,
            on,
            variants=options.variants,
            threads=options.threads,
            batch=options.batch,
            warmup=options.warmup,
            repeats=options.repeats,
            command=options.command,
            runner=options.runner,
            progress=progress,
        )
    print_result(found.model_dump(mode="json"), as_json=as_json, show=lambda console: _show(console, found, package))


def _show(console: Console, found: DeviceBench, package: Path) -> None:
    from sanderling.cli.present import bench_result

    bench_result(console, found.result)
    held = f"{len(found.checks)} checks hold on {found.on}; the result is in {package}"
    console.print(held, soft_wrap=True, markup=False)

"""`sanderling replay`: try a policy on a virtual clock."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sanderling.cli.output import print_result, reporting_errors
from sanderling.core.errors import OptionError
from sanderling.core.files import require_folder

if TYPE_CHECKING:
    from rich.console import Console

    from sanderling.twin.replay import Replay
    from sanderling.twin.summary import Part, Summary

_SHOWN_SWITCHES = 6


def replay(
    trace: Annotated[
        str | None,
        typer.Argument(metavar="TRACE", help="CSV file, or such as camera:yolov5s@30fps×2,deadline=33+poisson:…"),
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help="Policy file, default, article, or baseline:NAME; default by default.")
    ] = None,
    compare: Annotated[list[str], typer.Option(help="Another one, side by side; repeatable.")] = [],  # noqa: B006 - typer reads the default
    table: Annotated[
        str | None, typer.Option(help="Latency table, as bench --table writes it; the article's by default.")
    ] = None,
    thermal: Annotated[
        list[str],
        typer.Option(metavar="[DEVICE:]tau=S,r=C/W", help="Other heat: tau, r, ambient, throttle, slowdown."),
    ] = [],  # noqa: B006
    minutes: Annotated[
        float | None, typer.Option(help="Length of the trace; 1 by default, of a CSV file all of it.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the trace and of the latencies.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Write a page with pictures to this .html.")] = None,
    example: Annotated[str | None, typer.Option(help="A replay that is built in: thermal.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Try policies on a trace, without the devices: who is in time, how warm it gets, what it costs."""
    with reporting_errors(as_json=as_json):
        from sanderling.cli.progress import RichProgress
        from sanderling.twin.replay import example as built_in
        from sanderling.twin.replay import replay as run_replay
        from sanderling.twin.replay import table_of, write_page

        if example is not None:
            found = built_in(example)
            trace, minutes = trace or found.trace, found.minutes if minutes is None else minutes
            policy, table = policy or found.policy, table or found.table
            thermal = [*found.thermal, *thermal]
        if trace is None:
            raise OptionError(
                "no TRACE was given: name a CSV file, streams such as poisson:resnet18@40/s, or --example thermal"
            )
        if out is not None and out.suffix.lower() not in {".html", ".htm"}:
            raise OptionError(f"--out {out} must end in .html")
        if out is not None:
            require_folder(out)
        with RichProgress() as progress:
            result = run_replay(
                trace,
                [policy or "default", *compare],
                table_of(table or "article", thermal),
                minutes=minutes,
                seed=seed,
                progress=progress,
            )
        if out is not None:
            write_page(out, result, trace_text=trace, command=shlex.join(["sanderling", *sys.argv[1:]]))
        print_result(
            {**result.to_json(), "out": str(out) if out else None},
            as_json=as_json,
            show=lambda console: _show(console, result, out),
        )


def _show(console: Console, result: Replay, out: Path | None) -> None:
    from sanderling.cli.present import table

    _parts(console, "whole trace", [(each.name, each.whole, each) for each in result.summaries])
    for minute in result.summaries[0].minutes:
        _parts(console, f"minute {minute}", [(each.name, each.minutes[minute], None) for each in result.summaries])
    console.print(table(*_devices(result.summaries)))
    for summary in result.summaries:
        for switch in summary.switches[:_SHOWN_SWITCHES]:
            change = f"{switch.model} {switch.source} → {switch.target}, {switch.reason}"
            console.print(f"{summary.name}, {switch.at_s:.1f} s: {change}", markup=False, soft_wrap=True)
        if len(summary.switches) > _SHOWN_SWITCHES:
            console.print(f"{summary.name}: {len(summary.switches)} changes of device in all", markup=False)
    if out is not None:
        console.print(f"page: {out}", markup=False, soft_wrap=True)


def _parts(console: Console, title: str, parts: Sequence[tuple[str, Part, Summary | None]]) -> None:
    """A row a policy; energy where there is a summary of the whole."""
    from sanderling.cli.present import table

    titles = [title, "in time", "good /s", "p50 ms", "p99 ms", "late", "dropped", "full"]
    rows = []
    for name, part, summary in parts:
        latency_ms = part.latency_ms or {}
        row = [name, f"{100 * part.slo_attainment:.2f}\N{NO-BREAK SPACE}%", f"{part.goodput_per_s:.1f}"]
        row += [f"{latency_ms[share]:.1f}" if latency_ms else "–" for share in ("p50", "p99")]
        row += [f"{part.late}", f"{part.dropped}", f"{part.rejected}"]
        if summary is not None:
            each = summary.energy_per_inference_j
            row.append("–" if each is None else f"{each:.3f}")
        rows.append(row)
    if parts[0][2] is not None:
        titles.append("J each")
    console.print(table([(heading, index > 0) for index, heading in enumerate(titles)], rows))


def _devices(summaries: Sequence[Summary]) -> tuple[list[tuple[str, bool]], list[list[str]]]:
    """Busy, energy and temperature of each device, a row a policy and device."""
    rows = [
        [
            summary.name,
            name,
            f"{100 * device.utilization:.0f}\N{NO-BREAK SPACE}%",
            f"{device.requests}",
            f"{device.energy_j:.0f}",
            f"{device.highest_c:.1f}",
            ", ".join(f"{limit:g}: {seconds:.0f}" for limit, seconds in device.seconds_above_c.items()),
        ]
        for summary in summaries
        for name, device in summary.devices.items()
    ]
    titles = ("devices", "", "busy", "requests", "J", "highest °C", "°C: seconds above")
    return [(title, 1 < index < 6) for index, title in enumerate(titles)], rows

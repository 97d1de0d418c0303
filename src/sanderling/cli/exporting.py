"""`sanderling export` and `sanderling check`: what the software of other devices reads, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sanderling.cli.output import ANSWER_IS_NO, print_result, reporting_errors
from sanderling.core.errors import OptionError

if TYPE_CHECKING:
    from rich.console import Console

    from sanderling.workshop.targets.checking import CheckResult
    from sanderling.workshop.targets.exporting import ExportResult
    from sanderling.workshop.targets.listing import TargetState

TargetName = Annotated[str | None, typer.Option("--target", help="Such as openvino or harmonyos; see export --list.")]
Device = Annotated[str | None, typer.Option(help="Of the target; its first by default.")]
Variant = Annotated[str | None, typer.Option(help="Of the package; the target's own choice by default.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]


def export(
    package: Annotated[
        Path | None, typer.Argument(metavar="PKG", help="Package folder NAME.sdl, or a zip of one.")
    ] = None,
    target: TargetName = None,
    device: Device = None,
    variant: Variant = None,
    options: Annotated[
        list[str], typer.Option("--option", metavar="NAME=VALUE", help="Of the target; repeatable.")
    ] = [],  # noqa: B006 - typer reads the default
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder to write.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="List targets, devices, options and tools.")] = False,
    as_json: Json = False,
) -> None:
    """Write what the devices of a target run, checked here as far as that goes; exit 1 when a check fails."""
    with reporting_errors(as_json=as_json):
        from sanderling.api import export as run_export
        from sanderling.cli.progress import RichProgress

        if listed:
            _list(as_json=as_json)
            return
        if package is None or target is None or output is None:
            raise OptionError("export needs PKG, --target and --output; sanderling export --list lists the targets")
        with RichProgress() as progress:
            result = run_export(
                package,
                output,
                target=target,
                device=device,
                variant=variant,
                options=_parsed(options),
                progress=progress,
            )
        print_result(result.to_json(), as_json=as_json, show=lambda console: _show_export(console, result))


def check(
    model: Annotated[Path, typer.Argument(metavar="MODEL|PKG", help="ONNX file or package.")],
    target: TargetName = None,
    device: Device = None,
    variant: Variant = None,
    as_json: Json = False,
) -> None:
    """Say what a target refuses of a model, and what helps; exit 1 when an export cannot help itself."""
    with reporting_errors(as_json=as_json):
        from sanderling.api import check as run_check
        from sanderling.cli.progress import RichProgress

        if target is None:
            raise OptionError("check needs --target; sanderling export --list lists the targets")
        with RichProgress() as progress:
            result = run_check(model, target=target, device=device, variant=variant, progress=progress)
        print_result(result.to_json(), as_json=as_json, show=lambda console: _show_check(console, result))
        if not result.accepted:
            raise typer.Exit(ANSWER_IS_NO)


def _parsed(options: list[str]) -> dict[str, str]:
    parsed = {}
    for text in options:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise OptionError(f"--option '{text}' is not NAME=VALUE")
        if name in parsed:
            raise OptionError(f"--option '{name}' is given twice")
        parsed[name] = value
    return parsed


def _list(*, as_json: bool) -> None:
    from sanderling.workshop.targets.listing import list_targets

    states = list_targets()
    value = {"targets": [state.to_json() for state in states]}
    print_result(value, as_json=as_json, show=lambda console: _show_list(console, states))


def _show_list(console: Console, states: list[TargetState]) -> None:
    from rich.markup import escape

    from sanderling.cli.present import table

    rows = [[state.name, escape(state.summary), ", ".join(state.devices)] for state in states]
    console.print(table([("target", False), ("", False), ("devices", False)], rows))
    options = [[state.name, name, escape(text)] for state in states for name, text in state.options.items()]
    if options:
        console.print(table([("target", False), ("--option", False), ("", False)], options))
    tools = [
        [state.name, tool.name, "here" if tool.found else "missing", tool.version, escape(tool.hint)]
        for state in states
        for tool in state.tools
    ]
    console.print(table([("target", False), ("tool", False), ("", False), ("version", False), ("", False)], tools))


def _show_export(console: Console, result: ExportResult) -> None:
    from sanderling.workshop.targets.readme import proof_line

    record = result.record
    console.print(f"{record['tool']} wrote {len(record['files'])} files", soft_wrap=True, markup=False)
    for title, lines in (
        ("verified", [proof_line(proof) for proof in record["proofs"]]),
        ("remains", record["remaining"]),
        ("note", record["notes"]),
        ("next", record["next_steps"]),
    ):
        for line in lines:
            console.print(f"  {title}: {line}", soft_wrap=True, markup=False)
    console.print(f"folder: {result.path}", soft_wrap=True, markup=False)


def _show_check(console: Console, result: CheckResult) -> None:
    for variant, refused in result.refusals.items():
        for refusal in refused:
            more = f" and {len(refusal.nodes) - 3} more" if refusal.nodes[3:] else ""
            line = f"{refusal.operator} ({', '.join(refusal.nodes[:3])}{more}): {refusal.reason}"
            if refusal.rewrite:
                line += f"; {'by export' if refusal.automatic else 'what helps'}: {refusal.rewrite}"
            kind = "rewritten" if refusal.automatic else "refused"
            console.print(f"  {kind}: {variant or result.model}: {line}", soft_wrap=True, markup=False)
    verdict = "can be exported to" if result.accepted else "is refused by"
    console.print(f"{result.model} {verdict} {result.target} ({result.device})", soft_wrap=True, markup=False)

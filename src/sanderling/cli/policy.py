"""`sanderling policy`: read a policy file and say what it means, write one out, put one into a package."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sanderling.cli.output import print_result, reporting_errors

if TYPE_CHECKING:
    from rich.console import Console

    from sanderling.run.policy.document import FallbackThreshold, Policy

policy = typer.Typer(
    name="policy",
    help="Check a policy file, write one out, or put one into a package.",
    no_args_is_help=True,
    add_completion=False,
)

File = Annotated[Path, typer.Argument(metavar="FILE", help="Policy file (JSON).")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]


@policy.command()
def check(file: File, as_json: Json = False) -> None:
    """Say what a policy file means, defaults marked; exit 2 when it is wrong."""
    with reporting_errors(as_json=as_json):
        from sanderling.run.policy.document import read_policy

        found = read_policy(file)
        value = {
            "file": str(file),
            "policy": found.model_dump(mode="json", by_alias=True),
            "given": sorted(_given(found)),
        }
        print_result(value, as_json=as_json, show=lambda console: _show(console, file, found))


@policy.command()
def schema(as_json: Json = False) -> None:
    """Print the JSON Schema of policy files."""
    with reporting_errors(as_json=as_json):
        from sanderling.run.policy.document import policy_schema

        value = policy_schema()
        print_result(value, as_json=as_json, show=lambda console: _print_json(console, value))


@policy.command()
def example(as_json: Json = False) -> None:
    """Print a policy with every key written out and explained, to start from."""
    with reporting_errors(as_json=as_json):
        from sanderling.run.policy.keys import example as make_example

        value = make_example()
        print_result(value, as_json=as_json, show=lambda console: _print_json(console, value))


@policy.command()
def attach(
    package: Annotated[Path, typer.Argument(metavar="PKG", help="Package folder NAME.sdl, or a zip of one.")],
    file: File,
    as_json: Json = False,
) -> None:
    """Put a policy file into a package, in the place of the one that it has."""
    with reporting_errors(as_json=as_json):
        from sanderling.model.package import Package, rewrite_manifest
        from sanderling.run.policy.document import POLICY, parse_policy, policy_text

        text = policy_text(file)
        parse_policy(text, str(file))
        opened = Package.open(package)
        replaced = POLICY in opened.manifest.files
        rewrite_manifest(opened, opened.manifest, package, {POLICY: text})
        entry = Package.open(package).manifest.files[POLICY]
        value = {"package": str(package), "policy": POLICY, "replaced": replaced, **entry.model_dump(mode="json")}
        done = f"{package} has {'another' if replaced else 'a'} policy now; every hash in it holds"
        print_result(value, as_json=as_json, show=lambda console: console.print(done, soft_wrap=True, markup=False))


def _print_json(console: Console, value: dict[str, Any]) -> None:
    import json

    console.print(json.dumps(value, indent=2, ensure_ascii=False), soft_wrap=True, markup=False)


def _show(console: Console, file: Path, found: Policy) -> None:
    from rich.markup import escape

    from sanderling.cli.present import table
    from sanderling.run.policy.keys import DEVICE, keys

    console.print(f"{file} is a policy:", soft_wrap=True, markup=False)
    for device in (*found.device_priorities, *sorted(found.fallback_thresholds.keys() - set(found.device_priorities))):
        console.print(f"  {device}: {_left_when(found, found.threshold(device))}", soft_wrap=True, markup=False)
    if not found.device_priorities:
        console.print("  devices: as the package's plan ranks them", soft_wrap=True)
    given, values = _given(found), found.model_dump(mode="json", by_alias=True)
    said, defaults = [], []
    for key in keys():
        if DEVICE not in key.place:
            value = _plain(_at(values, key.place))
            if key.name in given:
                said.append([key.name, value, escape(key.meaning)])
            else:
                defaults.append([key.name, value])
    if said:
        console.print(table([("in the file", False), ("", False), ("", False)], said))
    console.print(table([("by default", False), ("", False)], defaults))
    console.print("what each key means: docs/policy.md, or sanderling policy example", soft_wrap=True)


def _at(content: dict[str, Any], place: tuple[str, ...]) -> object:
    value: Any = content
    for name in place:
        value = value[name]
    return value


def _left_when(found: Policy, threshold: FallbackThreshold) -> str:
    """When a device is left and used again, in words."""
    recovery, reasons = found.recovery, ["an error"]
    if threshold.latency is not None:
        reasons.append(f"{recovery.slow_batches} batches in a row over {threshold.latency:g} ms")
    text = f"left after {' or '.join(reasons)}, for {recovery.hold_off / 1000:g} s at first"
    if threshold.temp is not None:
        marked = " (default)" if threshold.cooldown_temp is None else ""
        sensor = f" by the sensor {threshold.sensor}" if threshold.sensor else ""
        text += f"; at {threshold.temp:g} °C{sensor}, until it is at {threshold.return_c:g} °C{marked}"
    return text


def _given(found: Policy) -> set[str]:
    """Names of the keys that the file has."""
    content = found.model_dump(mode="json", by_alias=True, exclude_unset=True)
    names = set()
    for key, value in content.items():
        sections = isinstance(value, dict) and key not in ("fallbackThresholds",)
        names |= {f"{key}.{name}" for name in value} if sections else {key}
    return names


def _plain(value: object) -> str:
    """A value as it would be written, for a table."""
    if value is None or value in ([], {}):
        return "–"
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    if isinstance(value, dict):
        return "; ".join(f"{key}: {_plain(item)}" for key, item in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)

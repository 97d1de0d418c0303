"""Runs the module's `.ets` files on Node, and JavaScript of the tests beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sanderling.run.policy.batching import BatchRules
from sanderling.run.policy.placement import LaneRule, RecoveryRule
from sanderling.run.policy.scheduling import SchedulingRules
from sanderling.run.policy.vectors import to_json
from sanderling.workshop.targets.harmonyos import toolchain
from sanderling.workshop.targets.harmonyos.module import TEMPLATE

SCRIPTS = Path(__file__).parent / "data" / "arkts"
MODULE = TEMPLATE / "sanderling"
SOURCES = MODULE / "src" / "main" / "ets"


def run_javascript(name: str, job: object, folder: Path, *arguments: str) -> Any:
    """Run a script of the tests with the folders of the scripts and of the module, and a job; returns its JSON."""
    file = folder / f"{Path(name).stem}.json"
    file.write_text(json.dumps(job))
    given = [str(toolchain.TOOLS), str(SOURCES), str(file), *arguments]
    return json.loads(toolchain.run_script(str(SCRIPTS / name), given))


def camel(value: Any) -> Any:
    """Named tuples as the module has them."""
    if isinstance(value, dict):
        return {_camel(name): camel(item) for name, item in value.items()}
    return [camel(item) for item in value] if isinstance(value, list) else value


def replay_trace(
    steps: Sequence[object],
    rules: SchedulingRules,
    batching: Mapping[str, BatchRules],
    lanes: Sequence[LaneRule],
    recovery: RecoveryRule,
    levels: Mapping[str, str],
    folder: Path,
) -> list[Any]:
    """Replay a trace of the dispatcher on the module's."""
    models = [
        {"name": name, "lanes": [camel(to_json(lane)) for lane in lanes], "batching": camel(to_json(each))}
        | {"recovery": camel(to_json(recovery))}
        for name, each in batching.items()
    ]
    job = {"rules": camel(to_json(rules)), "models": models, "levels": levels, "steps": steps}
    return run_javascript("dispatcher.js", job, folder)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)

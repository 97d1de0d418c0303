"""The README's commands as they stand there, each in a process of its own: how long they take, and what comes out."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_FIRST = "python -m benchmarks.zoo.dialect_data"
_TIMEOUT_S = 600


def measure(folder: Path) -> list[dict[str, Any]]:
    """Run them in ``folder``, one after the other.

    Raises:
        FileNotFoundError: ``espeak-ng`` is not installed.
    """
    from benchmarks.zoo.dialect_data import installed

    if not installed():
        raise FileNotFoundError("espeak-ng not found; install it with: apt-get install espeak-ng")
    rows = []
    for command in readme_commands():
        start = time.perf_counter()
        answer = run_command(command, folder)
        rows.append({"command": shlex.join(command), "seconds": round(time.perf_counter() - start, 1)})
        if "variants" in answer:
            rows[-1]["accuracy"] = {variant["id"]: variant["accuracy"] for variant in answer["variants"]}
        print(rows[-1], flush=True)
    return rows


def readme_commands() -> list[list[str]]:
    """The commands of the README that make data, a task, a checkpoint and a package."""
    text = (ROOT / "README.md").read_text("utf-8")
    block = next(part for part in text.split("```sh\n")[1:] if part.startswith(_FIRST)).partition("```")[0]
    return [shlex.split(line) for line in block.replace("\\\n", " ").splitlines()]


def run_command(
    command: list[str], folder: Path, *, python: str = sys.executable, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Run one of them; ``sanderling`` with ``--json``, whose answer is returned.

    Args:
        command: of ``readme_commands``.
        folder: where it runs.
        python: that has the packages it needs.
        environment: instead of one that finds this checkout's code.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    name, *arguments = [part.replace("benchmarks/", f"{ROOT}/benchmarks/") for part in command]
    ours = name == "sanderling"
    start = [python, "-c", "from sanderling.cli import main; main()"] if ours else [python]
    done = subprocess.run(
        [*start, *arguments, *(["--json"] if ours else [])],
        cwd=folder,
        env=environment or {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        stdout=subprocess.PIPE,
        timeout=_TIMEOUT_S,
        check=True,
    )
    answer: dict[str, Any] = json.loads(done.stdout) if ours else {}
    return answer

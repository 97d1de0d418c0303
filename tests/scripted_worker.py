"""The process of a scripted engine that is isolated: `python -m tests.scripted_worker`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sanderling.run.engines.base import EngineOptions, Executable
from sanderling.run.worker import main
from tests.engines import Script, ScriptedEngine


def load(header: dict[str, Any]) -> Executable:
    """Load the graph that a message names, by the script that it tells."""
    return ScriptedEngine(Script.from_header(json.loads(header["script"]))).load(Path(header["model"]), EngineOptions())


if __name__ == "__main__":
    main(load)

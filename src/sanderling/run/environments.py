"""Environments of their own, for toolkits whose pinned packages do not live with ours.

An environment is a `venv` in the cache folder, made on request and nowhere else. It is filled beside its place and
renamed there at the end, with a mark of what was installed: one that was half made is never taken for ready, and one
whose requirements changed is made again. A worker process runs in its Python, see ``run/isolated.py``.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sanderling.core.errors import OutputError, UnavailableError, first_line
from sanderling.core.files import cache_folder, replacing
from sanderling.core.progress import Event, Progress, Silent
from sanderling.run.commands import run_command

_MARK = "ready.json"
_PIP_S = 3600
_SHORT_S = 300
_FULL = re.compile(r"No space left|Disk quota exceeded|Errno 28|Errno 122")
_MISSING = re.compile(r"No matching distribution found|Could not find a version")


@dataclass(frozen=True)
class Environment:
    """A Python of its own with pinned packages.

    Attributes:
        name: of the engine that needs it, and of its folder.
        requirements: pinned, such as ``numpy==1.26.4``; pip adds what they need. What Sanderling needs is among them.
        alone: pinned, and installed without what they need: their own pins contradict the others.
        imports: modules that must import in it before it is ready.
        size_bytes: what it takes on disk, about; 0 where that is not known.
    """

    name: str
    requirements: tuple[str, ...]
    alone: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    size_bytes: int = 0

    @property
    def folder(self) -> Path:
        """Where it is, or will be."""
        return cache_folder() / "environments" / self.name

    @property
    def python(self) -> Path | None:
        """Its interpreter, or None when it is not ready: not made, half made, or made of other requirements."""
        program = _program(self.folder)
        try:
            mark = json.loads((self.folder / _MARK).read_bytes())
        except (OSError, ValueError):
            return None
        return program if mark == self._mark() and program.is_file() else None

    def install(self, progress: Progress) -> None:
        """Make it, unless it is ready; errors as of ``install``."""
        install(self, progress)

    def _mark(self) -> dict[str, str]:
        """What it is made of; another interpreter or processor needs another one."""
        listed = json.dumps([self.requirements, self.alone])
        return {
            "requirements_sha256": hashlib.sha256(listed.encode()).hexdigest(),
            "python": f"{sys.implementation.cache_tag} {platform.machine()}",
        }


def install(environment: Environment, progress: Progress | None = None) -> Path:
    """Make an environment, unless it is ready; returns its interpreter.

    Raises:
        UnavailableError: the disk is short, or Python or pip could not make it; nothing is kept.
        OutputError: the cache folder cannot be written.
    """
    progress = progress or Silent()
    folder = environment.folder
    with _in_turn(folder, progress):
        ready = environment.python
        if ready is not None:
            return ready
        _clear(folder, progress)
        _check_disk(environment)
        with replacing(folder) as made:
            _make(environment, made, progress)
    return _program(folder)


def import_path() -> Path:
    """A folder with nothing but a link to this Sanderling, for ``PYTHONPATH`` of another interpreter.

    Our own site-packages would bring other versions of what that interpreter has.

    Raises:
        OutputError: the cache folder cannot be written.
    """
    package = Path(__file__).resolve().parents[1]
    folder = cache_folder() / "links" / hashlib.sha256(str(package).encode()).hexdigest()[:16]
    link = folder / package.name
    if link.resolve() == package:
        return folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        link.symlink_to(package, target_is_directory=True)
    except FileExistsError:  # another process was first
        pass
    except OSError as error:
        raise OutputError(f"cannot make link {link}: {error.strerror or first_line(error)}") from error
    return folder


def _program(folder: Path) -> Path:
    return folder / "bin" / "python"


@contextmanager
def _in_turn(folder: Path, progress: Progress) -> Iterator[None]:
    """One process makes an environment; the others wait, and find it made."""
    import fcntl

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = (folder.parent / f"{folder.name}.lock").open("wb")
    except OSError as error:
        raise OutputError(f"cannot write to {folder.parent}: {error.strerror or first_line(error)}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.stage(f"wait for another process that makes environment '{folder.name}'")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _clear(folder: Path, progress: Progress) -> None:
    """Remove what a killed process left, and an environment that is of no use any more."""
    for left in folder.parent.glob(f".{folder.name}.*"):
        shutil.rmtree(left, ignore_errors=True)
    if folder.exists():
        reason = "it was made of other requirements, or for another Python; it is made again"
        progress.event(Event(kind="environment-outdated", subject=folder.name, reason=reason))
        shutil.rmtree(folder, ignore_errors=True)


def _check_disk(environment: Environment) -> None:
    free = shutil.disk_usage(environment.folder.parent).free
    if free < environment.size_bytes:
        raise UnavailableError(
            f"environment '{environment.name}' needs about {_gigabytes(environment.size_bytes)} in "
            f"{environment.folder.parent}: {_gigabytes(free)} is free; free some, or set SANDERLING_CACHE"
        )


def _make(environment: Environment, folder: Path, progress: Progress) -> None:
    size = f", about {_gigabytes(environment.size_bytes)}" if environment.size_bytes else ""
    progress.stage(f"make environment '{environment.name}' in {environment.folder}{size}")
    _run(environment, [sys.executable, "-m", "venv", str(folder)], "Python could not make a venv", _SHORT_S)
    pip = [str(_program(folder)), "-m", "pip", "install", "--quiet", "--no-input", "--only-binary=:all:"]
    # What stands alone comes first: it is where a build for this machine may be missing, and it is small.
    for options, packages in ((["--no-deps"], environment.alone), ([], environment.requirements)):
        if packages:
            progress.stage(f"install {', '.join(packages)}")
            told = f"pip could not install {', '.join(packages)}"
            _run(environment, [*pip, *options, *packages], told, _PIP_S)
    if environment.imports:
        progress.stage(f"import {', '.join(environment.imports)}")
        program = f"import {', '.join(environment.imports)}"
        _run(environment, [str(_program(folder)), "-I", "-c", program], f"'{program}' failed in it", _SHORT_S)
    (folder / _MARK).write_text(json.dumps(environment._mark()))


def _run(environment: Environment, command: Sequence[str], failed: str, timeout_s: float) -> None:
    """Run one step, away from packages and settings that are meant for our own interpreter."""
    ours = ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PIP_REQUIREMENT")
    variables = {key: value for key, value in os.environ.items() if key not in ours}
    told = f"environment '{environment.name}' could not be made: {failed}"
    try:
        done = run_command(command, timeout_s=timeout_s, folder=environment.folder.parent, variables=variables)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"{told}: {first_line(error)}") from error
    if done.returncode:
        raise UnavailableError(f"{told}: {_reason(done.stdout + done.stderr)}; nothing was kept")


def _reason(text: str) -> str:
    """The last thing that a failed step told, and what may be behind it."""
    if _FULL.search(text):
        return "the disk is full; free some, or set SANDERLING_CACHE to a folder elsewhere"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.partition("ERROR: ")[2] for line in lines if line.startswith("ERROR: ")]
    reason = first_line(RuntimeError((errors or lines or ["it told no reason"])[-1]))
    if not _MISSING.search(text):
        return reason
    here = f"Python {sys.version_info.major}.{sys.version_info.minor} on {platform.system()} {platform.machine()}"
    return f"{reason}; pip reaches no index, or there is no build for {here}"


def _gigabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.1f} GB"

"""What lies in a repository's folder: packages by name and version, and what is wrong with the rest.

    NAME.sdl, NAME.sdl.zip             one package, replaced by the next; its versions are counted from 1
    NAME/VERSION.sdl, VERSION.sdl.zip  versions side by side, numbered 1, 2, 3, …, that never change

A name that begins with a dot is somebody's temporary file and is left alone, as is whatever ends otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sanderling.core.errors import OptionError

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_VERSION = re.compile(r"[1-9][0-9]{0,8}")
_SUFFIXES = (".sdl.zip", ".sdl")
_MOST_FILES = 10_000

Stamp = tuple[tuple[str, int, int, int], ...]


class Source(NamedTuple):
    """A package in the folder.

    Attributes:
        name: of the model.
        version: from 1; 0 where the package is replaced and its versions are counted.
        path: of the package, folder or zip.
        stamp: name, size, time of change and inode of its files: another one where it was written to.
    """

    name: str
    version: int
    path: Path
    stamp: Stamp

    @property
    def key(self) -> tuple[str, int]:
        """Name and version."""
        return self.name, self.version


class Misplaced(NamedTuple):
    """Something in the folder that is not served, and why."""

    subject: str
    reason: str


def check_name(name: str) -> str:
    """Return a model's name as it came from the network, if it is one.

    Raises:
        OptionError: it is no plain name, such as one with slashes or dots at its start.
    """
    if not _NAME.fullmatch(name):
        shown = name if len(name) <= 60 else f"{name[:60]}…"
        raise OptionError(
            f"'{shown}' is no name of a model: expected letters, digits, '.', '_' and '-', the first no dot or dash"
        )
    return name


def list_sources(root: Path) -> tuple[dict[tuple[str, int], Source], list[Misplaced]]:
    """Read the folder.

    Args:
        root: of the repository; a missing or unreadable one is a fault and has no packages.

    Returns:
        Packages by name and version, and what cannot be served.
    """
    sources: dict[tuple[str, int], Source] = {}
    faults: list[Misplaced] = []
    for name, version, path in _candidates(root, faults):
        fault = _fault(root, name, version, path)
        if fault is None and (name, int(version or 0)) in sources:
            fault = "there is a folder and a zip of it: keep one"
        if fault is not None:
            faults.append(Misplaced(path.relative_to(root).as_posix(), fault))
            continue
        source = Source(name, int(version or 0), path, _stamp(path))
        sources[source.key] = source
    numbered = {name for name, version in sources if version}
    for name in sorted(numbered & {name for name, version in sources if not version}):
        path = sources.pop((name, 0)).path
        faults.append(Misplaced(path.name, f"there is a folder {name}/ with versions of it: keep one of both"))
    return sources, faults


def _candidates(root: Path, faults: list[Misplaced]) -> Iterator[tuple[str, str, Path]]:
    """Model's name, version as written (empty without one), and path of whatever is called like a package."""
    for path in _children(root, root, faults):
        stem = _stem(path.name)
        if stem is not None:
            yield stem, "", path
        elif _NAME.fullmatch(path.name) and path.is_dir():
            if not _is_inside(root, path):
                faults.append(Misplaced(path.name, "it is a link that leaves the repository"))
                continue
            for child in _children(root, path, faults):
                version = _stem(child.name)
                if version is not None:
                    yield path.name, version, child


def _children(root: Path, folder: Path, faults: list[Misplaced]) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        subject = folder.relative_to(root).as_posix() if folder != root else folder.name
        faults.append(Misplaced(subject, f"it cannot be read: {error.strerror}"))
        return []


def _stem(filename: str) -> str | None:
    return next((filename.removesuffix(suffix) for suffix in _SUFFIXES if filename.endswith(suffix)), None)


def _fault(root: Path, name: str, version: str, path: Path) -> str | None:
    if not _NAME.fullmatch(name):
        return "its name is none of a model: letters, digits, '.', '_' and '-' are taken, the first no dot or dash"
    if version and not _VERSION.fullmatch(version):
        return "its version is no whole number from 1 on"
    if not _is_inside(root, path):
        return "it is a link that leaves the repository"
    return None


def _is_inside(root: Path, path: Path) -> bool:
    try:
        return path.resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError):  # a link in a circle
        return False


def _stamp(path: Path) -> Stamp:
    """Whatever changes when a package is written to; what vanishes meanwhile is left out, and shows next time."""
    files = [path] if path.is_file() else [path, *sorted(path.rglob("*"))[:_MOST_FILES]]
    stamps = []
    for file in files:
        try:
            status = file.stat()
        except OSError:
            continue
        relative = file.relative_to(path).as_posix()
        stamps.append((relative, status.st_size, status.st_mtime_ns, status.st_ino))
    return tuple(stamps)

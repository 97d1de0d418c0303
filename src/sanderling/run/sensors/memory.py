"""How much memory is used, and where it ends: the container's where it has a limit, the machine's otherwise."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

import psutil

from sanderling.run.sensors.sysfs import line


@dataclass(frozen=True)
class Memory:
    """Memory in bytes.

    Attributes:
        used_bytes: by everything in the container, or on the machine; caches of files that are idle are not counted.
        limit_bytes: at which the kernel ends processes.
        resident_bytes: of this process.
        scope: whose memory ``used_bytes`` and ``limit_bytes`` are.
    """

    used_bytes: int
    limit_bytes: int
    resident_bytes: int
    scope: Literal["container", "machine"]


@dataclass(frozen=True)
class _Version:
    """Names of one version of control groups."""

    usage: str
    limit: str
    idle_cache: str


_V1 = _Version("memory.usage_in_bytes", "memory.limit_in_bytes", "total_inactive_file")
_V2 = _Version("memory.current", "memory.max", "inactive_file")


def read_memory(root: Path = Path("/")) -> Memory:
    """Used memory and its limit. Of nested groups with limits, the one with the least left counts.

    Used is the working set, as kubelet counts it: the group's usage without its inactive file cache.

    Args:
        root: folder that holds ``proc`` and ``sys``.

    Source: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst of Linux.
    """
    machine = psutil.virtual_memory()
    resident = int(psutil.Process().memory_info().rss)
    groups = [(used, limit) for used, limit in _limited_groups(root) if limit < machine.total]
    if groups:
        used, limit = min(groups, key=lambda group: group[1] - group[0])
        return Memory(used, limit, resident, "container")
    return Memory(int(machine.total - machine.available), int(machine.total), resident, "machine")


def _limited_groups(root: Path) -> Iterator[tuple[int, int]]:
    """Working set and limit of this process's group and of each group around it."""
    for version, folders in _groups(root):
        for folder in folders:
            limit, usage = line(folder / version.limit), line(folder / version.usage)
            if limit.isdecimal() and usage.isdecimal():  # no limit is "max", or more than any machine has
                yield max(0, int(usage) - _idle_cache(folder, version)), int(limit)


def _groups(root: Path) -> Iterator[tuple[_Version, list[Path]]]:
    """The folders of this process's group and those around it, for each version that is mounted."""
    mounts = list(_mounts(root))
    for entry in line(root / "proc/self/cgroup").splitlines():
        _, controllers, path = entry.split(":", 2) if entry.count(":") >= 2 else ("", "-", "")
        if controllers and "memory" not in controllers.split(","):
            continue
        version = _V1 if controllers else _V2
        for mounted, shown, folder in mounts:
            if mounted is version:
                yield version, _around(folder, _below(shown, path))


def _mounts(root: Path) -> Iterator[tuple[_Version, str, Path]]:
    """Mounted hierarchies with a memory controller: version, the group shown there, and the folder.

    Source: proc_pid_mountinfo(5): ``36 35 98:0 /shown /folder rw - type source options``.
    """
    for entry in line(root / "proc/self/mountinfo").splitlines():
        left, _, right = entry.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        folder = root / _unescaped(fields[4]).lstrip("/")
        if kind[0] == "cgroup2":
            yield _V2, _unescaped(fields[3]), folder
        elif kind[0] == "cgroup" and "memory" in kind[2].split(","):
            yield _V1, _unescaped(fields[3]), folder


def _below(shown: str, path: str) -> PurePosixPath:
    """A group's path below what is mounted; the mounted group itself where the path is seen from elsewhere."""
    inside = PurePosixPath(path)
    if ".." in inside.parts or not inside.is_relative_to(shown):
        return PurePosixPath()
    return inside.relative_to(shown)


def _around(folder: Path, group: PurePosixPath) -> list[Path]:
    return [folder / group, *(folder / outer for outer in group.parents)] if group.parts else [folder]


def _idle_cache(folder: Path, version: _Version) -> int:
    for entry in line(folder / "memory.stat").splitlines():
        name, _, value = entry.partition(" ")
        if name == version.idle_cache and value.isdecimal():
            return int(value)
    return 0


def _unescaped(field: str) -> str:
    """A field of mountinfo: blanks and backslashes are written as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field)

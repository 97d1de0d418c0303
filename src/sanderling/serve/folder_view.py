"""What a repository knows of its folder: what is there, since when it has not changed, and what was tried before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sanderling.serve.sources import Misplaced, Source, Stamp, list_sources

_RETRY_S = 60.0


class FolderView:
    """The folder as it was when it was last looked at, and its past.

    Args:
        root: the folder.
        settle_s: for which a package must not change before it is read.
        gone_s: after which a package that vanished counts as deleted.
        now_s: monotonic clock.

    Attributes:
        sources: packages by name and version.
    """

    def __init__(self, root: Path, *, settle_s: float, gone_s: float, now_s: Callable[[], float]) -> None:
        self.sources: dict[tuple[str, int], Source] = {}
        self._root = root
        self._settle_s = settle_s
        self._gone_s = gone_s
        self._now_s = now_s
        self._seen: dict[tuple[str, int], tuple[Stamp, float]] = {}
        self._tried: dict[tuple[str, int], Stamp] = {}
        self._retry_s: dict[tuple[str, int], float] = {}
        self._gone: dict[tuple[str, int], float] = {}
        self._told: set[Misplaced] = set()

    def look(self) -> tuple[bool, list[Misplaced]]:
        """Read the folder.

        Returns:
            Whether it is there, else it says nothing about the packages; and what is wrong in it since now.
        """
        sources, faults = list_sources(self._root)
        new = [fault for fault in faults if fault not in self._told]
        self._told = set(faults)
        if not self._root.is_dir():
            return False, new
        now_s = self._now_s()
        self.sources = sources
        for key, source in sources.items():
            if key not in self._seen or self._seen[key][0] != source.stamp:
                self._seen[key] = source.stamp, now_s
                self._retry_s.pop(key, None)
        self._gone = {key: self._gone.get(key, now_s) for key in self._seen if key not in sources}
        for key in [key for key, since_s in self._gone.items() if now_s - since_s >= self._gone_s]:
            del self._gone[key], self._seen[key]
            self._tried.pop(key, None)
            self._retry_s.pop(key, None)
        return True, new

    def versions(self, name: str) -> dict[int, Source]:
        """Packages of a model by their version; 0 for one whose versions are counted."""
        return {source.version: source for key, source in self.sources.items() if key[0] == name}

    def is_there(self, name: str, version: int) -> bool:
        """Whether a package is in the folder, or was until just now."""
        return (name, version) in self.sources or (name, version) in self._gone

    def is_settled(self, source: Source, *, patient: bool) -> bool:
        """Whether a package may be read now: it has not changed for a while, and is not to be tried later.

        Args:
            source: of this view.
            patient: False takes it as it is.
        """
        now_s = self._now_s()
        if now_s < self._retry_s.get(source.key, now_s):
            return False
        return not patient or now_s - self._seen[source.key][1] >= self._settle_s

    def was_tried(self, source: Source) -> bool:
        """Whether a package was read as it is now."""
        return self._tried.get(source.key) == source.stamp

    def note_tried(self, source: Source) -> None:
        """A package is read now."""
        self._tried[source.key] = source.stamp

    def try_later(self, source: Source) -> None:
        """Let a package be read again after a while, though nothing changes in it."""
        self._tried.pop(source.key, None)
        self._retry_s[source.key] = self._now_s() + _RETRY_S

    def forget_tries(self, name: str) -> None:
        """Let all packages of a model be read again."""
        for version in self.versions(name):
            self._tried.pop((name, version), None)
            self._retry_s.pop((name, version), None)

"""The versions of one model: which gets the requests, which wait to be taken back, and which are on their way out."""

from __future__ import annotations

from dataclasses import dataclass, field

from sanderling.core.errors import SanderlingError
from sanderling.model.package import Package
from sanderling.serve.canary_trial import CanaryTrial
from sanderling.serve.data_plane import ServedModel
from sanderling.serve.sources import Stamp


@dataclass
class Version:
    """A version that was admitted once.

    Attributes:
        number: from 1.
        stamp: of its source when it was copied.
        digest: of its manifest.
        package: its copy; None once that was removed.
        served: where requests reach it; None while it is not loaded.
        retire_at_s: when it is unloaded; None while it is needed.
    """

    number: int
    stamp: Stamp
    digest: str
    package: Package | None
    served: ServedModel | None = None
    retire_at_s: float | None = None


@dataclass
class Rotation:
    """What a repository knows of one model.

    Attributes:
        name: of the model.
        versions: by number.
        default: that requests without a version get; 0 where none is loaded.
        earlier: versions that were the default before, the last one last.
        shelved: versions that were rolled back: they do not come again by themselves.
        refused: why a version is not loaded, by number.
        trial: of the canary, if there is one.
        counted: the highest number that was given to a package without one.
        is_off: it was unloaded by a call.
    """

    name: str
    versions: dict[int, Version] = field(default_factory=dict)
    default: int = 0
    earlier: list[int] = field(default_factory=list)
    shelved: set[int] = field(default_factory=set)
    refused: dict[int, SanderlingError] = field(default_factory=dict)
    trial: CanaryTrial | None = None
    counted: int = 0
    is_off: bool = False

    @property
    def loaded(self) -> dict[int, ServedModel]:
        """Versions that requests can reach."""
        return {number: version.served for number, version in self.versions.items() if version.served is not None}

    @property
    def canary(self) -> int:
        """The version on trial; 0 without one."""
        return int(self.trial.new) if self.trial is not None else 0

    @property
    def fallback(self) -> int:
        """The version that a rollback goes to; 0 where there is none."""
        usable = [
            number
            for number in self.earlier
            if number not in self.shelved and number in self.versions and self.versions[number].package is not None
        ]
        return usable[-1] if usable else 0

    def promote(self, number: int) -> None:
        """Make a version the default; the one before can be gone back to."""
        self.trial = None
        if self.default and self.default != number:
            self.earlier = [known for known in self.earlier if known not in (number, self.default)] + [self.default]
        self.default = number

    def go_back(self) -> int:
        """Make the earlier version the default again and shelve the present one; returns the shelved one."""
        shelved, self.default = self.default, self.fallback
        self.earlier = [known for known in self.earlier if known != self.default]
        self.shelved.add(shelved)
        self.trial = None
        return shelved

    def schedule(self, wanted: set[int], *, now_s: float, grace_s: float) -> None:
        """Note when each version is unloaded that is neither wanted, nor the default, nor on trial."""
        needed = wanted | {self.default, self.canary}
        for version in self.versions.values():
            if version.number in needed:
                version.retire_at_s = None
            elif version.served is not None and version.retire_at_s is None:
                version.retire_at_s = now_s + grace_s

    def take_due(self, now_s: float) -> list[ServedModel]:
        """Versions whose time has come; they count as unloaded from now on."""
        due = []
        for version in self.versions.values():
            if version.served is not None and version.retire_at_s is not None and version.retire_at_s <= now_s:
                due.append(version.served)
                version.served = version.retire_at_s = None
        return due

    def take_copies(self) -> list[Package]:
        """Copies that nothing needs any more; the one that a rollback goes to stays."""
        unneeded = []
        for version in self.versions.values():
            if version.served is None and version.package is not None and version.number != self.fallback:
                unneeded.append(version.package)
                version.package = None
        kept = {number: version for number, version in self.versions.items() if version.package is not None}
        self.versions = kept | {number: self.versions[number] for number in self.shelved & self.versions.keys()}
        return unneeded

    def take_down(self) -> None:
        """Forget all versions; only the count goes on."""
        self.versions, self.default, self.earlier, self.trial = {}, 0, [], None

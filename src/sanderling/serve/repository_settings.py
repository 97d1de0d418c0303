"""How a repository is watched, and how its versions follow each other."""

from __future__ import annotations

from typing import NamedTuple

from sanderling.serve.canary import CanaryRules
from sanderling.serve.version_policy import VersionPolicy


class RepositorySettings(NamedTuple):
    """How a repository is watched, and how versions follow each other.

    Attributes:
        interval_s: between two looks at the folder.
        settle_s: for which a package must not change before it is read: it may still be written.
        grace_s: for which a version stays loaded that another one replaced.
        gone_s: after which a package that vanished counts as deleted, not as being replaced.
        versions: which are served.
        canary: how a new version is tried first; None swaps at once.
    """

    interval_s: float = 2.0
    settle_s: float = 2.0
    grace_s: float = 60.0
    gone_s: float = 10.0
    versions: VersionPolicy = VersionPolicy()
    canary: CanaryRules | None = None

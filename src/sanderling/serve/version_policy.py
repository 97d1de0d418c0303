"""Which versions of a model are served."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

from sanderling.core.errors import OptionError

_FORMS = "latest, latest=N, specific=N,N,… or all"


class VersionPolicy(NamedTuple):
    """The newest ``latest`` versions; or those of ``specific``; or all of them, where ``latest`` is 0."""

    latest: int = 1
    specific: tuple[int, ...] = ()

    def wanted(self, available: Collection[int]) -> tuple[int, ...]:
        """Which of the available versions are served, the oldest first; the last one gets what asks for none."""
        if self.specific:
            return tuple(sorted(set(self.specific) & set(available)))
        return tuple(sorted(available))[-self.latest :]


def parse_version_policy(text: str) -> VersionPolicy:
    """Read a policy as the command line has it.

    Raises:
        OptionError: it has another form.
    """
    kind, _, value = text.partition("=")
    if text == "latest":
        return VersionPolicy()
    if text == "all":
        return VersionPolicy(latest=0)
    if kind == "latest" and re.fullmatch(r"[1-9][0-9]{0,8}", value):
        return VersionPolicy(latest=int(value))
    if kind == "specific" and re.fullmatch(r"[1-9][0-9]{0,8}(,[1-9][0-9]{0,8})*", value):
        return VersionPolicy(specific=tuple(map(int, value.split(","))))
    raise OptionError(f"version policy '{text}' is unknown: expected {_FORMS}")

"""What the ends of a server share: the data plane, and what may stand beside it."""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from sanderling.core.errors import OptionError
from sanderling.serve.aside import Aside
from sanderling.serve.data_plane import DataPlane
from sanderling.serve.descriptions import describe_repository
from sanderling.serve.errors import UnauthorizedError
from sanderling.serve.log import Log
from sanderling.serve.settings import Settings
from sanderling.serve.shared_memory import SharedMemoryRegistry


class Repository(Protocol):
    """Models that can be loaded and unloaded while the server runs. Its calls may take long."""

    def index(self, *, ready_only: bool) -> Sequence[Mapping[str, str]]:
        """Name, version, state and reason of everything that is loaded or could be."""

    def load(self, name: str, parameters: Mapping[str, Any]) -> None:
        """Load a model, or its newest version."""

    def unload(self, name: str, parameters: Mapping[str, Any]) -> None:
        """Unload a model."""


class FixedModels:
    """The models that the server was started with, which stay as they are."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane

    def index(self, *, ready_only: bool) -> Sequence[Mapping[str, str]]:
        """Every version that is served."""
        return describe_repository(self._plane, ready_only=ready_only)

    def load(self, name: str, parameters: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Refused."""
        raise OptionError(f"model '{name}' cannot be loaded: start the server with --repository DIR")

    def unload(self, name: str, parameters: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Refused."""
        raise OptionError(f"model '{name}' cannot be unloaded: start the server with --repository DIR")


@dataclass
class Services:
    """What the ends of a server share.

    Attributes:
        memory: regions that clients have registered.
        aside: threads for what takes long.
        repository: that control routes load and unload by.
        is_traced: spans are made of requests.
        is_started: every package is loaded and warm.
    """

    settings: Settings
    plane: DataPlane
    log: Log
    memory: SharedMemoryRegistry = field(default_factory=SharedMemoryRegistry)
    aside: Aside = field(default_factory=Aside)
    repository: Repository = field(init=False)
    is_started: bool = False
    is_traced: bool = False

    def __post_init__(self) -> None:
        self.repository = FixedModels(self.plane)

    @property
    def is_ready(self) -> bool:
        """Whether requests would be run."""
        return self.is_started and self.plane.is_ready

    def check_token(self, authorization: str) -> None:
        """Check what a client sent with a request to a control route.

        Args:
            authorization: its header, ``Bearer TOKEN``.

        Raises:
            UnauthorizedError: the token is missing or wrong.
        """
        kind, _, token = authorization.partition(" ")
        expected = self.settings.token
        if kind.lower() != "bearer" or not hmac.compare_digest(token.strip().encode(), expected.encode()):
            problem = "wrong token" if authorization else "this route needs a token"
            raise UnauthorizedError(
                f"{problem}: send the header 'Authorization: Bearer TOKEN' with the token that the server was given by "
                "SANDERLING_TOKEN or printed when it started"
            )

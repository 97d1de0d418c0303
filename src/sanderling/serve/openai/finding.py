"""Which model a client means."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sanderling.serve.errors import NotFoundError
from sanderling.serve.openai.errors import UnknownModelError

if TYPE_CHECKING:
    from sanderling.serve.data_plane import DataPlane, ServedModel


def find_model(plane: DataPlane, named: str) -> ServedModel:
    """The model that a client means by ``NAME`` or ``NAME:VERSION``.

    Raises:
        UnknownModelError: there is no such model or version; the message says which there are.
    """
    name, _, version = named.partition(":")
    try:
        return plane.model(name, version)
    except NotFoundError as error:
        raise UnknownModelError(str(error)) from None

"""Keep pickles from running code while a foreign loader reads a file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_refusing: ContextVar[bool] = ContextVar("refusing", default=False)
_installed = False


class PickleRefusedError(BaseException):
    """An unpickler asked for a class or function by name.

    Not an ``Exception``: a loader that tries a second, less careful way after any exception must not get there.
    """


@contextmanager
def refusing_pickle() -> Iterator[None]:
    """Within the block, no unpickler of the standard library may look up a class or function.

    Without such a look-up a pickle is data alone. PyTorch's loader for plain tensors has an unpickler of its own,
    which is not affected.

    Raises:
        PickleRefusedError: something in the block tried.

    Source: Python's audit event ``pickle.find_class``.
    """
    global _installed
    if not _installed:
        sys.addaudithook(_refuse)
        _installed = True
    token = _refusing.set(True)
    try:
        yield
    finally:
        _refusing.reset(token)


def _refuse(event: str, arguments: tuple[object, ...]) -> None:
    if event == "pickle.find_class" and _refusing.get():
        raise PickleRefusedError(".".join(map(str, arguments)))

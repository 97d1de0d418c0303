"""Files that are whole or absent, hashes, and paths that stay where they belong."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from sanderling.core.errors import OutputError, PackageError, first_line

_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def inside(root: Path, relative: str) -> Path:
    """Join ``relative`` to ``root`` and prove that the result stays inside, links resolved.

    Raises:
        PackageError: an absolute path, one with ``..`` or a backslash, or a link that leads out.
    """
    parts = PurePosixPath(relative)
    if not relative or parts.is_absolute() or ".." in parts.parts or "\\" in relative or "\0" in relative:
        raise PackageError(f"path '{relative}' leaves the package {root}: only relative paths inside it are read")
    path = root / parts
    if not path.resolve().is_relative_to(root.resolve()):
        raise PackageError(f"path '{relative}' is a link that leaves the package {root}")
    return path


def require_folder(target: Path) -> None:
    """Refuse a target before long work whose result could not be written to it.

    Raises:
        OutputError: the folder of ``target`` is missing.
    """
    if not target.parent.is_dir():
        raise OutputError(f"cannot write {target}: {target.parent} is no folder")


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``target``; rename it over ``target`` at the end, or leave nothing.

    The body creates a file or a folder at the yielded path. On any exception, Ctrl-C included, whatever it
    wrote is removed and an older ``target`` stays as it was.

    Raises:
        OutputError: the folder of ``target`` is missing or not writable, or the disk is full.
    """
    scratch = (
        target.parent / f".{target.name}.{secrets.token_hex(4)}"
    )  # named before it is there, as Ctrl-C may come between
    try:
        try:
            scratch.mkdir(mode=0o700)
        except OSError as error:
            raise OutputError(f"cannot write {target}: {error.strerror or first_line(error)}") from error
        yield scratch / target.name
        _swap(scratch / target.name, target, scratch)
    except OSError as error:
        if error.errno in _DISK_ERRORS or str(scratch) in str(error.filename):
            reason = error.strerror or first_line(error)
            raise OutputError(f"cannot write {target}: {reason}; nothing was kept") from error
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _swap(new: Path, target: Path, scratch: Path) -> None:
    """Put ``new`` in the place of ``target``; a folder is set aside first, as rename cannot replace it."""
    if not target.is_dir():
        new.replace(target)
        return
    aside = scratch / "replaced"
    try:
        target.rename(aside)
        new.rename(target)
    except BaseException:
        if aside.exists() and not target.exists():
            aside.rename(target)
        raise


def folder_size_bytes(path: Path) -> int:
    """Sum of the sizes of a file, or of all files below a folder, in bytes."""
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def cache_folder() -> Path:
    """Folder for what can be made again: ``$SANDERLING_CACHE``, else ``$XDG_CACHE_HOME/sanderling``."""
    named = os.environ.get("SANDERLING_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sanderling"

"""Copies of the packages that are served, so that nothing that happens in the repository's folder reaches them.

A lane is loaded when it is first needed, and again after its memory was given back: long after its package in the
folder may have been replaced.
"""

from __future__ import annotations

import itertools
import os
import shutil
import uuid
from pathlib import Path
from typing import IO

from sanderling.core.errors import OutputError
from sanderling.core.files import cache_folder
from sanderling.model.package import Package, copy_package


class Snapshots:
    """Copies of packages, in a folder of this process alone. Close it.

    What a process left behind that was killed is removed by the next one, where the system has locks that end with
    their process.

    Args:
        root: folder for the folders of all processes; one in the cache by default.

    Raises:
        OutputError: the folder cannot be written.
    """

    def __init__(self, root: Path | None = None) -> None:
        self._root = root or cache_folder() / "served"
        name = uuid.uuid4().hex
        self.folder = self._root / name
        self._lock_path = self._root / f"{name}.lock"
        self._numbers = itertools.count(1)
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            self._lock: IO[bytes] = self._lock_path.open("wb")
            _try_lock(self._lock)  # before there is a folder that somebody could take for an abandoned one
            self.folder.mkdir()
        except OSError as error:
            raise OutputError(
                f"cannot write copies of packages to {self._root}: {error.strerror}; set SANDERLING_CACHE"
            ) from error
        self._remove_abandoned()

    def take(self, path: Path) -> Package:
        """Copy a package, folder or zip, and open the copy.

        Raises:
            PackageError: it is broken, altered or not whole.
            OutputError: the copy cannot be written.
        """
        return copy_package(path, self.folder / f"{next(self._numbers)}-{path.name.removesuffix('.zip')}")

    def drop(self, package: Package) -> None:
        """Remove a copy."""
        shutil.rmtree(package.path, ignore_errors=True)

    def close(self) -> None:
        """Remove all copies."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.close()
        self._lock_path.unlink(missing_ok=True)

    def _remove_abandoned(self) -> None:
        for folder in self._root.iterdir():
            lock_path = self._root / f"{folder.name}.lock"
            if folder == self.folder or not folder.is_dir() or not lock_path.exists():
                continue
            with lock_path.open("ab") as lock:
                if _try_lock(lock):
                    shutil.rmtree(folder, ignore_errors=True)
                    lock_path.unlink(missing_ok=True)


def _try_lock(file: IO[bytes]) -> bool:
    """Lock a file until it is closed or its process ends; False where that fails or there are no such locks."""
    if os.name != "posix":
        return False
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True

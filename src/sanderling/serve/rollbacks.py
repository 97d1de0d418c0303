"""Which versions were rolled back, kept over a restart, with a copy of what they were rolled back to.

A server that starts again must not serve what was found to be bad. What it went back to may be in no folder any more: a
package without a number is replaced by the next.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from pathlib import Path

from sanderling.core.errors import OutputError, PackageError
from sanderling.core.files import cache_folder, replacing
from sanderling.model.package import Package, copy_package

_STATE = "rolled-back.json"
_MOST = 100  # of a model; the oldest are forgotten


class Rollbacks:
    """What was rolled back in one repository. Usable from several threads.

    Args:
        folder: where it is kept.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._digests = self._read()

    @classmethod
    def of_repository(cls, root: Path) -> Rollbacks:
        """In the cache, by the place of the repository."""
        name = hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:32]
        return cls(cache_folder() / "rollbacks" / name)

    def is_bad(self, name: str, digest: str) -> bool:
        """Whether a package was rolled back."""
        return digest in self._digests.get(name, ())

    def earlier(self, name: str) -> Path | None:
        """The package that a model went back to, where it is kept."""
        path = self._path(name)
        return path if path.is_dir() else None

    def note(self, name: str, digest: str, earlier: Package | None) -> None:
        """A package was rolled back.

        Args:
            name: of the model.
            digest: of the package's manifest.
            earlier: that the model went back to; None where the repository's folder has it.

        Raises:
            OutputError: that cannot be kept.
        """
        with self._lock:
            known = [each for each in self._digests.get(name, ()) if each != digest]
            self._digests[name] = [*known, digest][-_MOST:]
            self._write()
            if earlier is None:
                return
            try:
                copy_package(earlier.path, self._path(name))
            except PackageError as error:
                raise OutputError(f"what {name} went back to cannot be kept: {error}") from error

    def forget(self, name: str) -> None:
        """What was rolled back may come again."""
        with self._lock:
            if self._digests.pop(name, None) is not None:
                self._write()
            self._drop(name)

    def move_on(self, name: str) -> None:
        """Another version has taken over: there is nothing to go back to after a restart."""
        with self._lock:
            self._drop(name)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.sdl"

    def _drop(self, name: str) -> None:
        shutil.rmtree(self._path(name), ignore_errors=True)

    def _read(self) -> dict[str, list[str]]:
        """What was kept; nothing where that was damaged."""
        try:
            content = json.loads((self._folder / _STATE).read_text())
            return {str(name): list(map(str, digests)) for name, digests in content.items()}
        except (OSError, ValueError, AttributeError, TypeError):
            return {}

    def _write(self) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"cannot write {self._folder}: {error.strerror}; set SANDERLING_CACHE") from error
        with replacing(self._folder / _STATE) as path:
            path.write_text(json.dumps(self._digests))

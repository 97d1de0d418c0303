"""Files of the compile cache: what an engine made, behind its own SHA-256.

Vendors trust what lies in their caches: a compiled graph with a few altered bytes was loaded, and computed nonsense.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from sanderling.core.errors import OutputError, first_line
from sanderling.core.files import replacing

SEAL_BYTES = 32  # of the SHA-256 that a file begins with


def unsealed(path: Path) -> bytes | None:
    """What was kept, or None when it is not there or damaged."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    content = data[SEAL_BYTES:]
    return content if hashlib.sha256(content).digest() == data[:SEAL_BYTES] else None


def is_intact(path: Path) -> bool:
    """Whether the file is there and whole, without holding it in memory."""
    try:
        with path.open("rb") as stream:
            seal = stream.read(SEAL_BYTES)
            return hashlib.file_digest(stream, "sha256").digest() == seal
    except OSError:
        return False


def seal(data: bytes | Path, path: Path) -> str:
    """Keep bytes, or those of a file. A cache that cannot be written costs time only: the answer says why."""
    try:
        content = data.read_bytes() if isinstance(data, Path) else data
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary, temporary.open("wb") as stream:
            stream.write(hashlib.sha256(content).digest())
            stream.write(content)
    except (OSError, OutputError) as error:
        return f"; not cached: {first_line(error)}"
    return ""

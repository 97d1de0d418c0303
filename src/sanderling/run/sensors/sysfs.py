"""Files of ``/sys`` and ``/proc``: one value a file, and folders with numbers."""

from __future__ import annotations

from pathlib import Path


def line(file: Path) -> str:
    """What a file says, without the end of the line; nothing where it is missing or not ours to read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def numbered(folder: Path, pattern: str) -> list[Path]:
    """Entries such as ``hwmon10`` in the order of their numbers; none where there is no such folder."""
    return sorted(folder.glob(pattern), key=lambda path: (len(path.name), path.name))

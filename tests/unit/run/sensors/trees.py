"""Folders as the kernel shows them, and programs that stand in for those of vendors."""

from __future__ import annotations

from pathlib import Path


def put(root: Path, **files: str) -> None:
    """Write files as the kernel shows them: ``hwmon__hwmon0__name="coretemp"``."""
    for name, text in files.items():
        path = root.joinpath(*name.split("__"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


def put_package(root: Path, number: int, energy_uj: int, *, name: str = "", range_uj: int = 1_000_000) -> Path:
    """A domain of RAPL; its counter begins at 0 again after ``range_uj``."""
    folder = root / "powercap" / f"intel-rapl:{number}"
    put(
        folder,
        name=name or f"package-{number}",
        energy_uj=str(energy_uj),
        max_energy_range_uj=str(range_uj),
    )
    return folder / "energy_uj"


def put_fake_program(folder: Path, name: str, script: str) -> None:
    """A fake of a vendor's program: a shell script of its name, alone in a folder for PATH."""
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


class Clock:
    """Seconds that a test moves."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

"""A fake `hdc`: takes the real one's commands strictly, prints what it prints, and its device is a folder here.

Like the real one it ends with 0 whatever happened, and its lines end with a carriage return. ``FAKE_HDC_ROOT`` is the
folder that stands for the device's `/data/local/tmp`; ``FAKE_HDC_KEYS`` are the connected devices, by spaces.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

TEMPORARY = "/data/local/tmp"


def main(words: list[str]) -> None:
    """Do what the command says."""
    keys = os.environ.get("FAKE_HDC_KEYS", "").split()
    if words[:2] == ["list", "targets"]:
        say("\n".join(keys) or "[Empty]")
        return
    if len(words) < 3 or words[0] != "-t":
        say(f"[Fail]Unknown command: {' '.join(words)}")
        return
    if words[1] not in keys:
        say("[Fail]Not match target founded, check connect-key please")
        return
    command, rest = words[2], words[3:]
    if command == "shell" and len(rest) == 1:
        shell(rest[0])
    elif command == "file" and len(rest) == 3 and rest[0] in ("send", "recv"):
        source, target = (rest[1], there(rest[2])) if rest[0] == "send" else (there(rest[1]), rest[2])
        copy(Path(source), Path(target))
    else:
        say(f"[Fail]Unknown command: {' '.join(words[2:])}")


def there(text: str) -> str:
    """What the device calls a path, as this machine does."""
    return text.replace(TEMPORARY, os.environ["FAKE_HDC_ROOT"])


def shell(command: str) -> None:
    """Run a command of the device's shell, whose outputs come as one."""
    done = subprocess.run(
        ["/bin/sh", "-c", there(command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    say(done.stdout.rstrip("\n"))


def copy(source: Path, target: Path) -> None:
    """Copy a file; it is not executable afterwards."""
    if not source.is_file():
        say(f"[Fail][E005200] Error opening file: no such file or directory, path:{source}")
    elif not target.parent.is_dir():
        say(f"[Fail]Error create file: no such file or directory, path:{target}")
    else:
        shutil.copyfile(source, target)
        say(f"FileTransfer finish, Size:{source.stat().st_size}, File count = 1, time:3ms rate:1.00kB/s")


def say(text: str) -> None:
    """Print as hdc does."""
    sys.stdout.write(text.replace("\n", "\r\n") + "\r\n")


if __name__ == "__main__":
    main(sys.argv[1:])

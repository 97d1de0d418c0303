"""A wheel of ONNX Runtime for the Python of an OpenHarmony device, from a tree that was built for it.

    python3 python/make_wheel.py TREE --version 1.32.0 --python cp311 --platform linux_aarch64 -o dist

TREE is the folder `onnxruntime` that a build with `--enable_pybind` leaves: `__init__.py`, and the bindings in `capi/`.
ONNX Runtime's own `--build_wheel` writes the tag of the machine that it was built on. What the device wants is told by

    python3 -c "import sysconfig; print(sysconfig.get_platform().replace('-', '_').replace('.', '_'))"

Layout of the wheel: onnxruntime/…, onnxruntime-VERSION.dist-info/{METADATA,WHEEL,RECORD,top_level.txt}.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import re
import sys
import zipfile
from pathlib import Path

METADATA = """Metadata-Version: 2.1
Name: onnxruntime
Version: {version}
Summary: ONNX Runtime, built for OpenHarmony
License: MIT
Requires-Dist: flatbuffers
Requires-Dist: numpy
Requires-Dist: packaging
Requires-Dist: protobuf
"""
WHEEL = """Wheel-Version: 1.0
Generator: make_wheel.py
Root-Is-Purelib: false
Tag: {tag}
"""


def main() -> int:
    """Write the wheel and print its name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=Path)
    parser.add_argument("--version", required=True)
    parser.add_argument("--python", required=True, help="such as cp311")
    parser.add_argument("--platform", required=True, help="such as linux_aarch64")
    parser.add_argument("-o", "--output", type=Path, default=Path("dist"))
    arguments = parser.parse_args()
    reason = refused(arguments.tree, arguments.python, arguments.platform)
    if reason:
        sys.stderr.write(f"make_wheel.py: {reason}\n")
        return 2
    arguments.output.mkdir(parents=True, exist_ok=True)
    made = write(arguments.tree, arguments.version, arguments.python, arguments.platform, arguments.output)
    sys.stdout.write(f"{made}\n")
    return 0


def refused(tree: Path, python: str, platform: str) -> str:
    """Why there can be no wheel, or nothing."""
    if not (tree / "__init__.py").is_file() or not list(tree.glob("capi/*.so*")):
        return f"{tree} has no __init__.py, or no library in capi/: name the folder onnxruntime of a build"
    if not re.fullmatch(r"cp3\d+", python) or not re.fullmatch(r"[a-z0-9_]+", platform):
        return f"'{python}' and '{platform}' are no tags: expected such as cp311 and linux_aarch64"
    return ""


def write(tree: Path, version: str, python: str, platform: str, output: Path) -> Path:
    """Pack the tree with its metadata."""
    tag, info = f"{python}-{python}-{platform}", f"onnxruntime-{version}.dist-info"
    target = output / f"onnxruntime-{version}-{tag}.whl"
    record: list[str] = []
    texts = {
        f"{info}/METADATA": METADATA.format(version=version),
        f"{info}/WHEEL": WHEEL.format(tag=tag),
        f"{info}/top_level.txt": "onnxruntime\n",
    }
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as wheel:
        for path in sorted(file for file in tree.rglob("*") if file.is_file() and "__pycache__" not in file.parts):
            add(wheel, f"onnxruntime/{path.relative_to(tree).as_posix()}", path.read_bytes(), record)
        for name, text in texts.items():
            add(wheel, name, text.encode(), record)
        wheel.writestr(f"{info}/RECORD", "".join([*record, f"{info}/RECORD,,\n"]))
    return target


def add(wheel: zipfile.ZipFile, name: str, data: bytes, record: list[str]) -> None:
    """Put one file into the wheel and its hash into the record."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    record.append(f"{name},sha256={digest},{len(data)}\n")
    wheel.writestr(name, data)


if __name__ == "__main__":
    sys.exit(main())

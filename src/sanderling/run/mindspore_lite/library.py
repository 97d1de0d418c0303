"""Where MindSpore Lite's shared libraries come from, and the bridge that is compiled against them.

The libraries are those of the PyPI wheel, which is built for Python 3.7 and needs none of it: what they offer is C++.
They are unpacked into the cache folder on request and nowhere else. ``bridge.cc`` gives them a C interface; it is
compiled once for a wheel, a source and a compiler.
"""

from __future__ import annotations

import hashlib
import importlib.util
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from sanderling.core.errors import EngineError, OutputError, UnavailableError, first_line
from sanderling.core.files import cache_folder, replacing, sha256_of
from sanderling.core.progress import Progress
from sanderling.run.commands import run_command

VERSION = "2.0.0"
_PROJECT = "mindspore-lite"
_WHEEL_SHA256 = "199cd0605cc985b88eddb273db9dfe9000a585ba10ca2292b6b36ebfff07b3ec"
_WHEEL_TAGS = ("--python-version", "37", "--only-binary=:all:", "--platform", "manylinux1_x86_64")
_SYSTEM = ("Linux", "x86_64")
_INSIDE = "mindspore_lite"  # the wheel's folder
_LIBRARIES = (  # of 21: what the converter and the CPU runtime need
    "libdnnl.so.2",
    "libmindspore-extendrt_python.so",
    "libmindspore_converter.so",
    "libmindspore_core.so",
    "libmindspore_glog.so.0",
    "libmslite_converter_plugin.so",
    "libmsplugin-ge-litert_python.so",
    "libopencv_core.so.4.5",
    "libopencv_imgcodecs.so.4.5",
    "libopencv_imgproc.so.4.5",
)
_LINKED = (
    "-l:libmindspore-extendrt_python.so",
    "-lmindspore_converter",
    "-lmindspore_core",
    "-lmslite_converter_plugin",
)
_SOURCE = Path(__file__).with_name("bridge.cc")
_COMPILER = "g++"
_COMPILER_HINT = "a C++ compiler, such as Debian's package g++"
_INSTALL = "sanderling devices --install mindspore"
_DOWNLOAD_S = 1800
_COMPILE_S = 300


@dataclass(frozen=True)
class State:
    """Whether the libraries can be used here; ``hint`` says what is missing, and how to get it."""

    usable: bool
    hint: str = ""


def state() -> State:
    """Look, without fetching or compiling anything."""
    here = (platform.system(), platform.machine())
    if here != _SYSTEM:
        return State(False, f"there is no build of it for {' '.join(here)}, only for {' '.join(_SYSTEM)}")
    if not _unpacked().is_dir():
        compiler = "" if shutil.which(_COMPILER) else f"; it also needs {_COMPILER_HINT}"
        return State(False, f"{_INSTALL} (fetches 169 MB, keeps 300 MB){compiler}")
    if not _compiled() and not shutil.which(_COMPILER):
        return State(False, f"install {_COMPILER_HINT}")
    return State(True)


class Libraries:
    """What `sanderling devices --install mindspore` makes."""

    name = "mindspore"

    @property
    def folder(self) -> Path:
        """Where the libraries and the compiled bridges are, or will be."""
        return _folder()

    def install(self, progress: Progress) -> None:
        """Fetch the libraries and compile the bridge, unless both are here.

        Raises:
            UnavailableError: there is no build for this machine, no compiler, or pip cannot fetch the wheel.
            OutputError: the cache folder cannot be written.
            EngineError: what was fetched is not the wheel, or the bridge does not compile.
        """
        _install(progress)


def _install(progress: Progress) -> None:
    here = (platform.system(), platform.machine())
    if here != _SYSTEM:
        raise UnavailableError(f"engine 'mindspore' cannot be installed: {state().hint}")
    if not shutil.which(_COMPILER) and not _compiled():
        raise UnavailableError(f"engine 'mindspore' cannot be installed: it needs {_COMPILER_HINT}")
    if not _unpacked().is_dir():
        progress.stage(f"fetch {_PROJECT} {VERSION}, 169 MB")
        _make_cache()
        with tempfile.TemporaryDirectory(prefix=".wheel-", dir=_folder()) as scratch:
            wheel = _fetch(Path(scratch))
            progress.stage(f"unpack {_PROJECT} {VERSION}")
            _unpack(wheel)
    progress.stage("compile the bridge to MindSpore Lite")
    bridge()


def bridge() -> Path:
    """The compiled bridge; it is compiled now where the source or the compiler is another one than before.

    Raises:
        UnavailableError: the libraries or a compiler are missing.
        EngineError: it does not compile.
        OutputError: the cache folder cannot be written.
    """
    if not _unpacked().is_dir():
        raise UnavailableError(f"engine 'mindspore' is not installed: {state().hint}")
    compiled = _compiled()
    if compiled:
        return compiled
    if not shutil.which(_COMPILER):
        raise UnavailableError(f"engine 'mindspore' is not installed: {state().hint}")
    target = _folder() / f"{_bridge_stem()}-{_compiler_key()}.so"
    with replacing(target) as temporary:
        _compile(temporary)
    return target


def fingerprint() -> str:
    """Changes when the libraries or the bridge's source do."""
    return f"{VERSION} {_bridge_stem()}"


def _folder() -> Path:
    return cache_folder() / _PROJECT


def _unpacked() -> Path:
    return _folder() / f"{VERSION}-{_WHEEL_SHA256[:16]}"


def _bridge_stem() -> str:
    """Name of the bridge for this wheel and source, without the compiler."""
    return f"bridge-{_WHEEL_SHA256[:8]}-{sha256_of(_SOURCE)[:16]}"


def _compiled() -> Path | None:
    """The bridge made by the compiler that is here; by any where none is."""
    made = sorted(_folder().glob(f"{_bridge_stem()}-*.so"))
    if made and shutil.which(_COMPILER):
        name = f"{_bridge_stem()}-{_compiler_key()}.so"
        return next((path for path in made if path.name == name), None)
    return made[-1] if made else None


def _compiler_key() -> str:
    """Names the compiler: its file and version."""
    program = Path(shutil.which(_COMPILER) or "").resolve()
    stat = program.stat()
    return hashlib.sha256(f"{program} {stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()[:16]


def _make_cache() -> None:
    try:
        _folder().mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make {_folder()}: {error.strerror or first_line(error)}") from error


def _fetch(folder: Path) -> Path:
    """Let pip bring the wheel, from wherever it is set to look; only this one wheel is taken."""
    if importlib.util.find_spec("pip") is None:
        raise UnavailableError(f"cannot fetch {_PROJECT} {VERSION}: this Python has no pip; run 'python -m ensurepip'")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps", *_WHEEL_TAGS]
    try:
        done = run_command([*command, "--dest", str(folder), f"{_PROJECT}=={VERSION}"], timeout_s=_DOWNLOAD_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"cannot fetch {_PROJECT} {VERSION}: {first_line(error)}") from error
    found = list(folder.glob("*.whl"))
    if done.returncode or len(found) != 1:
        told = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        reason = first_line(UnavailableError(told[-1] if told else done.stderr))
        raise UnavailableError(f"cannot fetch {_PROJECT} {VERSION}: {reason}")
    got = sha256_of(found[0])
    if got != _WHEEL_SHA256:
        raise EngineError(f"what pip fetched as {_PROJECT} {VERSION} has SHA-256 {got}: expected {_WHEEL_SHA256}")
    return found[0]


def _unpack(wheel: Path) -> None:
    """Keep the headers and the libraries that are needed."""
    with zipfile.ZipFile(wheel) as archive, replacing(_unpacked()) as temporary:
        for name in archive.namelist():
            wanted = name.startswith(f"{_INSIDE}/include/") or name in {f"{_INSIDE}/lib/{file}" for file in _LIBRARIES}
            if wanted and not name.endswith("/"):
                target = temporary / name.removeprefix(f"{_INSIDE}/")
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(name) as source, target.open("wb") as stream:
                    shutil.copyfileobj(source, stream)


def _compile(target: Path) -> None:
    libraries = _unpacked()
    command = [
        *(_COMPILER, "-std=c++17", "-O2", "-fPIC", "-shared", str(_SOURCE), "-o", str(target)),
        *(f"-I{libraries}", f"-I{libraries / 'include'}", f"-L{libraries / 'lib'}", *_LINKED),
        "-Wl,--allow-shlib-undefined",
        "-Wl,--disable-new-dtags",  # the path counts for what the libraries themselves need, too
        f"-Wl,-rpath,$ORIGIN/{libraries.name}/lib",
    ]
    try:
        done = run_command(command, timeout_s=_COMPILE_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(f"mindspore: {_COMPILER} could not compile its bridge: {first_line(error)}") from error
    if done.returncode:
        told = [line for line in done.stderr.splitlines() if "error" in line] or [done.stderr]
        raise EngineError(f"mindspore: {_COMPILER} could not compile its bridge: {first_line(EngineError(told[0]))}")

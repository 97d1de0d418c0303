"""The package on disk: a folder, or a zip of it, that is read only when every hash holds."""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sanderling.core.arrays import read_npz
from sanderling.core.errors import DataError, OptionError, OutputError, PackageError, first_line
from sanderling.core.files import cache_folder, inside, replacing, sha256_of
from sanderling.core.tensor import Array
from sanderling.model.manifest import SCHEMA_VERSION, FileEntry, Golden, Manifest, Variant
from sanderling.model.tuning import TUNING, Tuning

MANIFEST = "manifest.json"
EVIDENCE = "evidence.json"
REPORT = "report.html"
_MANIFEST_LIMIT_BYTES = 16 << 20
_ZIP_DATE = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Package:
    """A package that was read: its manifest and the folder that holds its files."""

    path: Path
    manifest: Manifest

    @classmethod
    def open(cls, path: str | Path, *, check_hashes: bool = True, check_files: bool = True) -> Package:
        """Read a package.

        Args:
            path: folder ``NAME.sdl`` or a zip of one (unpacked once into the cache).
            check_hashes: compare every file's SHA-256.
            check_files: compare presence and sizes; False only reads the manifest, for ``problems()`` later.

        Raises:
            PackageError: no package, an unknown schema version, a path that leaves it, a missing file or a
                changed byte.
        """
        folder = Path(path)
        zipped = folder.is_file()
        if zipped:
            folder = _unpacked(folder)
        if not folder.is_dir():
            raise PackageError(f"{path} does not exist: expected a package folder (NAME.sdl) or a zip of one")
        package = cls(folder, _read_manifest(folder))
        problems = package.problems(check_hashes=check_hashes) if check_files else []
        if problems and zipped:  # the copy in the cache was damaged: the zip itself may be whole
            shutil.rmtree(folder)
            package = cls(_unpacked(Path(path)), package.manifest)
            problems = package.problems(check_hashes=check_hashes)
        if problems:
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            raise PackageError(f"package {path}: {problems[0]}{more}; build it again or fetch a whole copy")
        return package

    def problems(self, *, check_hashes: bool = True) -> list[str]:
        """What does not hold any more: one line for each missing, resized or changed file."""
        found = []
        for name, entry in self.manifest.files.items():
            path = inside(self.path, name)
            if not path.is_file():
                found.append(f"file '{name}' is missing")
            elif path.stat().st_size != entry.size_bytes:
                found.append(f"file '{name}' has {path.stat().st_size} bytes, the manifest says {entry.size_bytes}")
            elif check_hashes and sha256_of(path) != entry.sha256:
                found.append(f"file '{name}' does not have the hash that the manifest says: it was changed")
        return found

    def file(self, name: str) -> Path:
        """Path of one of the package's files.

        Raises:
            PackageError: the manifest does not list it, or it leaves the package.
        """
        if name not in self.manifest.files:
            raise PackageError(f"package {self.path} has no file '{name}': available are {sorted(self.manifest.files)}")
        return inside(self.path, name)

    def variant(self, identifier: str | None = None) -> Variant:
        """The variant of that id; the chosen one without an id.

        Raises:
            OptionError: no variant has that id.
        """
        variant = self.manifest.variant(identifier or self.manifest.chosen)
        if variant is None:
            available = ", ".join(variant.id for variant in self.manifest.variants)
            raise OptionError(f"package {self.path} has no variant '{identifier}': available are {available}")
        return variant

    def golden(self) -> GoldenVectors:
        """Read the golden vectors.

        Raises:
            PackageError: an array is missing or is not plain numbers.
        """
        golden = self.manifest.golden
        try:
            return GoldenVectors.from_arrays(read_npz(self.file(golden.file)), golden)
        except (DataError, KeyError) as error:
            raise PackageError(f"golden vectors of {self.path} are unreadable: {first_line(error)}") from error

    def tuning(self) -> Tuning:
        """Read what was measured when the package was tuned; nothing where it never was.

        Raises:
            PackageError: the file says something else than it may.
        """
        if TUNING not in self.manifest.files:
            return Tuning()
        path = self.file(TUNING)
        try:
            return Tuning.model_validate_json(path.read_bytes())
        except OSError as error:
            raise PackageError(f"{path} cannot be read: {error.strerror}") from error
        except ValidationError as error:
            raise PackageError(f"{path}: {_first_fault(error)}; measure again with sanderling tune") from error


@dataclass(frozen=True)
class GoldenVectors:
    """Inputs, and each variant's outputs for them; the first axis of every array counts the calls."""

    inputs: dict[str, Array]
    outputs: dict[str, dict[str, Array]]

    def __len__(self) -> int:
        return len(next(iter(self.inputs.values())))

    def call(self, index: int) -> dict[str, Array]:
        """Feeds of one call."""
        return {name: array[index] for name, array in self.inputs.items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], golden: Golden) -> GoldenVectors:
        """Sort the arrays of the file into inputs and outputs by their names."""
        inputs: dict[str, Array] = {}
        outputs: dict[str, dict[str, Array]] = {variant: {} for variant in golden.tolerance}
        for key, array in arrays.items():
            owner, _, name = key.partition("/")
            if owner == "input":
                inputs[name] = array
            else:
                outputs[owner][name] = array
        return cls(inputs, outputs)

    def to_arrays(self) -> dict[str, Array]:
        """The arrays under the names that the file uses."""
        arrays = {f"input/{name}": array for name, array in self.inputs.items()}
        for variant, named in self.outputs.items():
            arrays |= {f"{variant}/{name}": array for name, array in named.items()}
        return arrays


def copy_package(path: Path, target: Path) -> Package:
    """Make a whole copy of a package as a folder, and open it: what happens to the original later is nothing to it.

    Args:
        path: package folder, or a zip of one; only the files that its manifest lists are copied.
        target: the folder.

    Raises:
        PackageError: it is no package, or not whole; then there is no copy.
        OutputError: the copy cannot be written.
    """
    with replacing(target) as folder:
        try:
            if path.is_dir():
                _copy_files(path, folder)
            elif zipfile.is_zipfile(path):
                _unpack(path, folder)
            else:
                raise PackageError(f"{path} is no package: expected a folder (NAME.sdl) or a zip of one")
            problems = Package.open(folder, check_files=False).problems()
        except FileNotFoundError as error:
            raise PackageError(f"package {path}: a file vanished while it was copied ({first_line(error)})") from error
        if problems:
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            raise PackageError(f"package {path}: {problems[0]}{more}; build it again or fetch a whole copy")
    return Package.open(target, check_hashes=False)


def _copy_files(path: Path, folder: Path) -> None:
    listed = _read_manifest(path).files
    folder.mkdir()
    for name in (MANIFEST, *listed):
        source, copy = inside(path, name), folder / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_file():  # else it is a problem of the copy
            shutil.copyfile(source, copy)


def is_package(path: Path) -> bool:
    """Whether a folder, or a zip, has a manifest."""
    if path.is_file():
        try:
            with zipfile.ZipFile(path) as archive:
                return MANIFEST in archive.namelist()
        except (OSError, NotImplementedError, zipfile.BadZipFile):
            return False
    return (path / MANIFEST).is_file()


def file_entries(folder: Path) -> dict[str, FileEntry]:
    """Hash and size of every file below ``folder`` but its manifest, sorted by name."""
    return {
        path.relative_to(folder).as_posix(): _file_entry(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path != folder / MANIFEST
    }


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write ``manifest.json`` with a digest of its own content, so that a changed byte in it shows too."""
    content = manifest.model_dump(mode="json")
    content["digest"] = _digest(content)
    (folder / MANIFEST).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def rewrite_manifest(package: Package, manifest: Manifest, path: Path, files: Mapping[str, str] | None = None) -> None:
    """Replace the manifest of the package at ``path``, a folder or a zip; other files stay as they are.

    Args:
        package: as it was opened from ``path``.
        manifest: the new one.
        path: of the package.
        files: texts by name that are written as well, and listed with their hashes.

    Raises:
        OutputError: the package cannot be written; it stays as it was.
    """
    files = files or {}
    if path.is_dir():
        with ExitStack() as stack:  # everything is written before the first file is replaced
            targets = {name: stack.enter_context(replacing(path / name)) for name in (*files, MANIFEST)}
            for name, text in files.items():
                targets[name].write_text(text, encoding="utf-8")
            written = [targets[name] for name in files]
            write_manifest(targets[MANIFEST].parent, _listing(manifest, written))
        return
    with replacing(path) as target:
        folder = target.with_name("package")
        shutil.copytree(package.path, folder)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
        write_manifest(folder, _listing(manifest, [folder / name for name in files]))
        write_zip(folder, target)


def _listing(manifest: Manifest, written: Sequence[Path]) -> Manifest:
    """The manifest with these files' hashes and sizes."""
    files = manifest.files | {path.name: _file_entry(path) for path in written}
    return manifest.model_copy(update={"files": dict(sorted(files.items()))})


def _file_entry(path: Path) -> FileEntry:
    return FileEntry(sha256=sha256_of(path), size_bytes=path.stat().st_size)


def write_zip(folder: Path, target: Path) -> None:
    """Pack a package folder into a zip that depends on nothing but the files' names and bytes."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(file for file in folder.rglob("*") if file.is_file()):
            info = zipfile.ZipInfo(path.relative_to(folder).as_posix(), _ZIP_DATE)
            info.compress_type = zipfile.ZIP_DEFLATED
            with path.open("rb") as source, archive.open(info, "w", force_zip64=True) as sink:
                shutil.copyfileobj(source, sink, 1 << 20)


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _read_manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST
    if not path.is_file():
        raise PackageError(f"{folder} is no package: it has no {MANIFEST}")
    if path.stat().st_size > _MANIFEST_LIMIT_BYTES:
        raise PackageError(f"{path} has {path.stat().st_size} bytes: at most {_MANIFEST_LIMIT_BYTES} are read")
    return _parse_manifest(path.read_bytes(), str(path))


def _parse_manifest(data: bytes, name: str) -> Manifest:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise PackageError(f"{name} is not valid JSON: {first_line(error)}") from error
    if not isinstance(content, dict):
        raise PackageError(f"{name} must hold a JSON object, got {type(content).__name__}")
    version = content.get("schema_version")
    if version != SCHEMA_VERSION:
        raise PackageError(
            f"{name} has schema version {version!r}: this Sanderling reads version {SCHEMA_VERSION}; "
            "build the package again, or install the Sanderling that made it"
        )
    digest = content.pop("digest", None)
    if digest != _digest(content):
        raise PackageError(f"{name} does not have the digest that it says: it was changed")
    try:
        return Manifest.model_validate(content)
    except ValidationError as error:
        raise PackageError(f"{name}: {_first_fault(error)}") from error


def _first_fault(error: ValidationError) -> str:
    detail = error.errors()[0]
    return ": ".join(part for part in (".".join(map(str, detail["loc"])), detail["msg"]) if part)


def _unpacked(archive_path: Path) -> Path:
    """Unpack a zip into the cache, only the files its manifest lists and only at the sizes it says."""
    if not zipfile.is_zipfile(archive_path):
        raise PackageError(f"{archive_path} is no package: expected a folder (NAME.sdl) or a zip of one")
    target = cache_folder() / "packages" / sha256_of(archive_path)
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"cannot unpack {archive_path} into {target.parent}: {error.strerror}; set SANDERLING_CACHE"
        ) from error
    with replacing(target) as folder:
        _unpack(archive_path, folder)
    return target


def _unpack(archive_path: Path, folder: Path) -> None:
    with _opened(archive_path) as archive:
        manifest = _member(archive, MANIFEST, _MANIFEST_LIMIT_BYTES)
        files = _parse_manifest(manifest, f"{archive_path}:{MANIFEST}").files
        folder.mkdir()
        (folder / MANIFEST).write_bytes(manifest)
        for name, entry in files.items():
            path = inside(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(_member(archive, name, entry.size_bytes))


def _opened(archive_path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(archive_path)
    except (OSError, NotImplementedError, zipfile.BadZipFile) as error:
        raise PackageError(f"{archive_path} is a damaged zip: {first_line(error)}") from error


def _member(archive: zipfile.ZipFile, name: str, limit_bytes: int) -> bytes:
    try:
        with archive.open(name) as stream:
            data = stream.read(limit_bytes + 1)
    except (KeyError, zipfile.BadZipFile, zlib.error, RuntimeError, EOFError) as error:
        raise PackageError(f"{archive.filename}: '{name}' is missing or broken: {first_line(error)}") from error
    if len(data) > limit_bytes:
        raise PackageError(f"{archive.filename}: '{name}' holds more than the {limit_bytes} bytes that it may")
    return data

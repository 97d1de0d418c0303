from __future__ import annotations

import hashlib
import io
import json
import os
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from sanderling.core.errors import OptionError, OutputError, PackageError
from sanderling.core.precision import Precision
from sanderling.model.graph import input_specs, output_specs
from sanderling.model.manifest import Golden, Manifest, Source, Variant
from sanderling.model.package import (
    MANIFEST,
    GoldenVectors,
    Package,
    file_entries,
    is_package,
    write_manifest,
    write_zip,
)
from tests.models import conv_classifier, random_arrays, run_directly, save

GRAPH = "model.fp32.onnx"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small package folder, made by hand."""
    folder = tmp_path / "tiny.sdl"
    folder.mkdir()
    model = conv_classifier()
    save(model, folder / GRAPH)
    inputs = random_arrays({"image": (2, 1, 3, 8, 8)})  # two calls
    outputs = [run_directly(model, {"image": call})["scores"] for call in inputs["image"]]
    vectors = GoldenVectors(inputs, {"fp32": {"scores": np.stack(outputs)}})
    np.savez_compressed(folder / "golden.npz", **vectors.to_arrays())
    variant = Variant(
        id="fp32",
        precision=Precision.FP32,
        file=GRAPH,
        size_bytes=(folder / GRAPH).stat().st_size,
        engines=("onnxruntime",),
    )
    manifest = Manifest(
        name="tiny",
        source=Source(format="onnx", name="tiny.onnx"),
        inputs=input_specs(model),
        outputs=output_specs(model),
        variants=(variant,),
        chosen="fp32",
        golden=Golden(file="golden.npz", samples=2, tolerance={"fp32": 1e-4}),
        files=file_entries(folder),
    )
    write_manifest(folder, manifest)
    return folder


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("SANDERLING_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def rewrite_manifest(folder: Path, **changes: object) -> None:
    """Change the manifest as someone would who also knows how its digest is made."""
    content = json.loads((folder / MANIFEST).read_text()) | changes
    del content["digest"]
    plain = json.dumps(content, sort_keys=True, separators=(",", ":"))
    content["digest"] = hashlib.sha256(plain.encode()).hexdigest()
    (folder / MANIFEST).write_text(json.dumps(content))


def list_file(folder: Path, name: str) -> None:
    """Let the manifest list one more file, of four bytes."""
    files = json.loads((folder / MANIFEST).read_text())["files"]
    rewrite_manifest(folder, files=files | {name: {"sha256": "0" * 64, "size_bytes": 4}})


def renew_files(folder: Path) -> None:
    """Accept the files as they are now."""
    manifest = Package.open(folder, check_files=False).manifest
    write_manifest(folder, manifest.model_copy(update={"files": file_entries(folder)}))


def flip_byte(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x01
    path.write_bytes(data)


def zipped(folder: Path) -> Path:
    target = folder.with_name("tiny.sdl.zip")
    write_zip(folder, target)
    return target


def members_of(archive: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(archive) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def write_members(archive: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, data in members.items():
            opened.writestr(name, data)
    return archive


def complaint(path: Path) -> str:
    with pytest.raises(PackageError) as caught:
        Package.open(path)
    return str(caught.value)


def test_whole_package_opens_and_gives_its_files(folder):
    package = Package.open(folder)
    assert package.manifest.name == "tiny"
    assert package.variant().id == package.variant("fp32").id == "fp32"
    assert package.file(GRAPH) == folder / GRAPH
    assert package.problems() == []
    assert is_package(folder)


def test_manifest_survives_its_round_trip(folder):
    manifest = Package.open(folder).manifest
    write_manifest(folder, manifest)
    assert Package.open(folder).manifest == manifest


def test_golden_vectors_are_read_as_they_were_written(folder):
    golden = Package.open(folder).golden()
    assert golden.inputs["image"].shape == (2, 1, 3, 8, 8)
    expected = run_directly(folder / GRAPH, {"image": golden.inputs["image"][1]})["scores"]
    np.testing.assert_array_equal(golden.outputs["fp32"]["scores"][1], expected)


def test_changed_byte_is_reported_with_the_file(folder):
    flip_byte(folder / GRAPH, 200)
    message = complaint(folder)
    assert GRAPH in message
    assert "changed" in message


def test_changed_byte_passes_when_hashes_are_not_asked_for(folder):
    flip_byte(folder / GRAPH, 200)
    assert Package.open(folder, check_hashes=False).manifest.name == "tiny"


def test_missing_file_is_reported_even_without_hashes(folder):
    (folder / GRAPH).unlink()
    with pytest.raises(PackageError, match=f"file '{GRAPH}' is missing"):
        Package.open(folder, check_hashes=False)


def test_truncated_file_is_reported_with_both_sizes(folder):
    whole = (folder / GRAPH).read_bytes()
    (folder / GRAPH).write_bytes(whole[:-7])
    assert f"'{GRAPH}' has {len(whole) - 7} bytes, the manifest says {len(whole)}" in complaint(folder)


def test_further_problems_are_counted(folder):
    for name in (GRAPH, "golden.npz"):
        (folder / name).unlink()
    assert "(and 1 more)" in complaint(folder)
    assert len(Package.open(folder, check_files=False).problems()) == 2


@pytest.mark.parametrize("name", ["../x", "/etc/hostname", "a/../../x", "..\\x"])
def test_file_name_that_leaves_the_package_is_refused(folder, name):
    (folder.parent / "x").write_bytes(b"evil")
    list_file(folder, name)
    assert "leaves the package" in complaint(folder)


def test_link_to_a_file_outside_is_refused(folder):
    (folder / GRAPH).rename(folder.parent / "elsewhere.onnx")
    (folder / GRAPH).symlink_to(folder.parent / "elsewhere.onnx")
    assert "link that leaves" in complaint(folder)


def test_file_that_the_manifest_does_not_list_is_not_given(folder):
    (folder / "extra.bin").write_bytes(b"x")
    package = Package.open(folder)
    for name in ("extra.bin", "../x"):
        with pytest.raises(PackageError, match=f"no file '{name}'"):
            package.file(name)


def test_unknown_variant_is_told_with_the_available_ones(folder):
    with pytest.raises(OptionError, match=r"no variant 'int4': available are fp32"):
        Package.open(folder).variant("int4")


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_unknown_schema_version_is_refused_with_the_known_one(folder, version):
    rewrite_manifest(folder, schema_version=version)
    message = complaint(folder)
    assert f"schema version {version!r}" in message
    assert "reads version 1" in message


def test_changed_byte_in_the_manifest_is_noticed(folder):
    flip_byte(folder / MANIFEST, (folder / MANIFEST).read_bytes().index(b"0.0001"))
    assert "digest" in complaint(folder)


def test_manifest_without_a_digest_is_refused(folder):
    content = json.loads((folder / MANIFEST).read_text())
    del content["digest"]
    (folder / MANIFEST).write_text(json.dumps(content))
    assert "digest" in complaint(folder)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff\xfe\x00",
        b"not json",
        b"[" * 100_000,
        b'{"a": ' + b"1" * 5000 + b"}",
        b"[1]",
        b"null",
    ],
    ids=["empty", "cut", "binary", "words", "deep", "digits", "list", "null"],
)
def test_manifest_that_is_no_json_object_is_refused(folder, data):
    (folder / MANIFEST).write_bytes(data)
    assert MANIFEST in complaint(folder)


def test_huge_manifest_is_not_read(folder):
    with (folder / MANIFEST).open("r+b") as stream:
        stream.truncate((16 << 20) + 1)  # a sparse file: it costs no disk
    assert "at most 16777216" in complaint(folder)


@pytest.mark.parametrize(
    ("field", "value", "place"),
    [
        ("variants", [{"id": "fp32"}], "variants.0"),
        ("files", {GRAPH: {"sha256": "short", "size_bytes": 1}}, f"files.{GRAPH}.sha256"),
        ("surprise", 1, "surprise"),
    ],
)
def test_manifest_field_that_does_not_fit_is_named(folder, field, value, place):
    rewrite_manifest(folder, **{field: value})
    assert f"{MANIFEST}: {place}" in complaint(folder)


def test_folder_without_a_manifest_is_no_package(tmp_path):
    assert "has no manifest.json" in complaint(tmp_path)
    assert not is_package(tmp_path)


def test_missing_path_is_told(tmp_path):
    assert "does not exist" in complaint(tmp_path / "nowhere.sdl")


def test_pickled_object_in_the_golden_vectors_is_never_loaded(folder):
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(folder / "exploded"),)

    np.savez(folder / "golden.npz", **{"input/image": np.array([Bomb()], dtype=object)})
    renew_files(folder)
    with pytest.raises(PackageError, match="golden vectors"):
        Package.open(folder).golden()
    assert not (folder / "exploded").exists()


def test_golden_vectors_of_an_unknown_variant_are_refused(folder):
    np.savez(folder / "golden.npz", **{"int4/scores": np.zeros(1)})
    renew_files(folder)
    with pytest.raises(PackageError, match="golden vectors"):
        Package.open(folder).golden()


@pytest.mark.parametrize("kind", ["empty", "words", "npy", "cut"])
def test_golden_file_that_is_no_archive_is_refused(folder, kind):
    plain = io.BytesIO()
    np.save(plain, np.zeros(3))
    whole = (folder / "golden.npz").read_bytes()
    data = {"empty": b"", "words": b"hello", "npy": plain.getvalue(), "cut": whole[: len(whole) // 2]}[kind]
    (folder / "golden.npz").write_bytes(data)
    renew_files(folder)
    with pytest.raises(PackageError, match="golden vectors"):
        Package.open(folder).golden()


def test_zip_opens_as_the_folder_does(folder, cache):
    package = Package.open(zipped(folder))
    assert package.manifest == Package.open(folder).manifest
    assert package.path.is_relative_to(cache)
    assert (package.path / GRAPH).read_bytes() == (folder / GRAPH).read_bytes()


def test_zip_is_unpacked_once(folder, cache):
    archive = zipped(folder)
    first = Package.open(archive)
    marker = (first.path / GRAPH).stat().st_mtime_ns
    again = Package.open(archive)
    assert again.path == first.path
    assert (again.path / GRAPH).stat().st_mtime_ns == marker
    assert [path.name for path in (cache / "packages").iterdir()] == [first.path.name]


def test_zip_of_the_same_folder_is_the_same_bytes(folder, tmp_path):
    first = zipped(folder).read_bytes()
    os.utime(folder / GRAPH, (1, 1))
    write_zip(folder, tmp_path / "second.zip")
    assert (tmp_path / "second.zip").read_bytes() == first


def test_zip_member_larger_than_the_manifest_says_is_refused(folder, tmp_path):
    members = members_of(zipped(folder))
    members[GRAPH] += b"\0" * 10_000_000  # a small bomb: it packs to 10 kB
    message = complaint(write_members(tmp_path / "bomb.zip", members))
    assert GRAPH in message
    assert "more than" in message


def test_zip_without_a_listed_member_is_refused(folder, tmp_path):
    members = members_of(zipped(folder))
    del members[GRAPH]
    assert f"'{GRAPH}' is missing" in complaint(write_members(tmp_path / "part.zip", members))


def test_zip_with_a_changed_byte_is_reported_with_the_file(folder, tmp_path):
    members = members_of(zipped(folder))
    members[GRAPH] = members[GRAPH][:-1] + bytes([members[GRAPH][-1] ^ 1])
    assert f"'{GRAPH}' does not have the hash" in complaint(write_members(tmp_path / "changed.zip", members))


@pytest.mark.parametrize("name", ["../evil.txt", "/tmp/evil.txt", "a/../../evil.txt", "..\\evil.txt"])
def test_zip_slip_writes_nothing_outside(folder, tmp_path, cache, name):
    list_file(folder, name)
    archive = write_members(tmp_path / "slip.zip", members_of(zipped(folder)) | {name: b"evil"})
    assert "leaves the package" in complaint(archive)
    assert list(tmp_path.rglob("*evil*")) == []
    assert list((cache / "packages").iterdir()) == []


def test_zip_member_that_the_manifest_does_not_list_is_not_unpacked(folder, tmp_path):
    archive = write_members(tmp_path / "more.zip", members_of(zipped(folder)) | {"extra.sh": b"x", "../evil": b"x"})
    package = Package.open(archive)
    assert sorted(path.name for path in package.path.iterdir()) == sorted([MANIFEST, *package.manifest.files])
    assert not list(tmp_path.rglob("evil"))


def test_zip_without_a_manifest_is_refused(tmp_path):
    assert MANIFEST in complaint(write_members(tmp_path / "other.zip", {"a.txt": b"x"}))


def test_file_that_is_no_zip_is_refused(tmp_path):
    (tmp_path / "package.zip").write_bytes(b"hello")
    assert "no package" in complaint(tmp_path / "package.zip")


def test_zip_cut_short_is_refused(folder):
    archive = zipped(folder)
    archive.write_bytes(archive.read_bytes()[:-100])
    assert "no package" in complaint(archive)


def test_zip_with_damaged_packed_data_is_refused(folder):
    archive = zipped(folder)
    with zipfile.ZipFile(archive) as opened:
        member = opened.getinfo(GRAPH)
    data = bytearray(archive.read_bytes())
    lengths = struct.unpack_from("<HH", data, member.header_offset + 26)  # of the name and the extra field
    start = member.header_offset + 30 + sum(lengths)
    data[start : start + member.compress_size] = b"\xff" * member.compress_size
    archive.write_bytes(data)
    assert GRAPH in complaint(archive)


@pytest.mark.parametrize(("offset", "value"), [(2, 9), (6, 120), (28, 99)], ids=["magic", "version", "length"])
def test_zip_with_a_damaged_directory_is_refused(folder, offset, value):
    archive = zipped(folder)
    data = bytearray(archive.read_bytes())
    data[data.index(b"PK\x01\x02") + offset] = value
    archive.write_bytes(data)
    assert str(archive) in complaint(archive)


def test_failed_unpacking_leaves_nothing_in_the_cache(folder, tmp_path, cache):
    members = members_of(zipped(folder))
    del members[GRAPH]
    complaint(write_members(tmp_path / "part.zip", members))
    assert list((cache / "packages").iterdir()) == []


def test_cache_that_cannot_be_written_is_told(folder, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SANDERLING_CACHE", str(tmp_path / "file"))
    with pytest.raises(OutputError, match="file"):
        Package.open(zipped(folder))

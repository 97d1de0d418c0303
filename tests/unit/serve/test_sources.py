from __future__ import annotations

import os
from pathlib import Path

import pytest

from sanderling.core.errors import OptionError
from sanderling.serve.sources import check_name, list_sources


def folder(path: Path, text: str = "{}") -> Path:
    path.mkdir(parents=True)
    (path / "manifest.json").write_text(text)
    return path


def keys(root: Path) -> set[tuple[str, int]]:
    return set(list_sources(root)[0])


def faults(root: Path) -> dict[str, str]:
    return {fault.subject: fault.reason for fault in list_sources(root)[1]}


def test_packages_are_found_by_name_and_by_number(tmp_path):
    folder(tmp_path / "demo.sdl")
    (tmp_path / "zipped.sdl.zip").write_bytes(b"zip")
    folder(tmp_path / "many" / "1.sdl")
    (tmp_path / "many" / "12.sdl.zip").write_bytes(b"zip")
    assert keys(tmp_path) == {("demo", 0), ("zipped", 0), ("many", 1), ("many", 12)}
    assert faults(tmp_path) == {}


def test_temporary_and_other_files_are_left_alone(tmp_path):
    folder(tmp_path / ".demo.sdl.x1" / "demo.sdl")
    (tmp_path / "README.md").write_text("hello")
    folder(tmp_path / "docs" / "deep" / "1.sdl")
    assert list_sources(tmp_path) == ({}, [])


def test_link_inside_the_folder_is_followed(tmp_path):
    folder(tmp_path / "store" / "a")
    (tmp_path / "demo.sdl").symlink_to(tmp_path / "store" / "a")
    assert keys(tmp_path) == {("demo", 0)}


@pytest.mark.parametrize("name", ["demo.sdl", "demo.sdl.zip", "many/1.sdl"])
def test_link_out_of_the_folder_is_a_fault(tmp_path, name):
    outside, root = folder(tmp_path / "outside.sdl"), tmp_path / "root"
    (root / name).parent.mkdir(parents=True)
    (root / name).symlink_to(outside)
    assert keys(root) == set()
    assert faults(root) == {name: "it is a link that leaves the repository"}


def test_folder_of_versions_that_is_a_link_out_is_not_looked_into(tmp_path):
    folder(tmp_path / "outside" / "1.sdl")
    root = tmp_path / "root"
    root.mkdir()
    (root / "many").symlink_to(tmp_path / "outside")
    assert keys(root) == set()
    assert faults(root) == {"many": "it is a link that leaves the repository"}


def test_link_in_a_circle_is_no_package(tmp_path):
    (tmp_path / "demo.sdl").symlink_to(tmp_path / "demo.sdl")
    assert keys(tmp_path) == set()


@pytest.mark.parametrize("name", ["0.sdl", "01.sdl", "v1.sdl", "1.5.sdl", "-1.sdl", "1e3.sdl"])
def test_version_that_is_no_whole_number_is_a_fault(tmp_path, name):
    folder(tmp_path / "many" / name)
    assert faults(tmp_path) == {f"many/{name}": "its version is no whole number from 1 on"}


def test_package_in_both_forms_is_a_fault_and_the_first_stays(tmp_path):
    folder(tmp_path / "demo.sdl")
    (tmp_path / "demo.sdl.zip").write_bytes(b"zip")
    assert keys(tmp_path) == {("demo", 0)}
    assert "keep one" in faults(tmp_path)["demo.sdl.zip"]


def test_package_beside_numbered_versions_is_a_fault_and_the_numbers_stay(tmp_path):
    folder(tmp_path / "demo.sdl")
    folder(tmp_path / "demo" / "1.sdl")
    assert keys(tmp_path) == {("demo", 1)}
    assert "keep one of both" in faults(tmp_path)["demo.sdl"]


def test_missing_folder_is_a_fault(tmp_path):
    assert faults(tmp_path / "none") == {"none": "it cannot be read: No such file or directory"}


def test_stamp_changes_with_size_time_and_file(tmp_path):
    package = folder(tmp_path / "demo.sdl")
    stamps = [list_sources(tmp_path)[0]["demo", 0].stamp]
    (package / "manifest.json").write_text("{ }")
    stamps.append(list_sources(tmp_path)[0]["demo", 0].stamp)
    os.utime(package / "manifest.json", ns=(1, 1))
    stamps.append(list_sources(tmp_path)[0]["demo", 0].stamp)
    (package / "model.onnx").write_text("")
    stamps.append(list_sources(tmp_path)[0]["demo", 0].stamp)
    assert len(set(stamps)) == 4


@pytest.mark.parametrize("name", ["demo", "a", "Mobile-Net_v3.1", "0", "x" * 128])
def test_plain_names_are_taken(name):
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "/etc/passwd", "a\\b", ".hidden", "-x", "a\0", "a\n", "é", "x" * 129, "a b"]
)
def test_names_that_could_be_paths_are_refused(name):
    with pytest.raises(OptionError, match="is no name of a model"):
        check_name(name)

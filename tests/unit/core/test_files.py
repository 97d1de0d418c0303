from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from sanderling.core.errors import OutputError, PackageError
from sanderling.core.files import cache_folder, folder_size_bytes, inside, replacing, sha256_of


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def write_folder(folder: Path, **files: str) -> None:
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)


def write_half(target: Path, failure: BaseException) -> None:
    with replacing(target) as path:
        path.write_text("half")
        raise failure


def write_half_a_folder(target: Path, failure: BaseException) -> None:
    with replacing(target) as path:
        write_folder(path, a="half")
        raise failure


def fill_the_disk(target: Path) -> None:
    with replacing(target) as path:
        path.write_text("half")
        Path("/dev/full").write_bytes(b"rest")


def test_new_file_appears_whole_and_nothing_else_stays(tmp_path):
    with replacing(tmp_path / "out.txt") as target:
        target.write_text("new")
        assert not (tmp_path / "out.txt").exists()
    assert (tmp_path / "out.txt").read_text() == "new"
    assert left_in(tmp_path) == ["out.txt"]


def test_new_file_takes_the_place_of_the_old(tmp_path):
    (tmp_path / "out.txt").write_text("old")
    with replacing(tmp_path / "out.txt") as target:
        target.write_text("new")
    assert (tmp_path / "out.txt").read_text() == "new"
    assert left_in(tmp_path) == ["out.txt"]


@pytest.mark.parametrize("failure", [RuntimeError("no"), KeyboardInterrupt(), SystemExit(1)])
def test_failure_leaves_nothing_new_and_keeps_the_old_file(tmp_path, failure):
    (tmp_path / "out.txt").write_text("old")
    with pytest.raises(type(failure)):
        write_half(tmp_path / "out.txt", failure)
    assert (tmp_path / "out.txt").read_text() == "old"
    assert left_in(tmp_path) == ["out.txt"]


@pytest.mark.parametrize("failure", [RuntimeError("no"), KeyboardInterrupt()])
def test_failure_leaves_nothing_where_nothing_was(tmp_path, failure):
    with pytest.raises(type(failure)):
        write_half_a_folder(tmp_path / "out", failure)
    assert left_in(tmp_path) == []


def test_new_folder_takes_the_place_of_the_old_with_no_file_of_it_left(tmp_path):
    write_folder(tmp_path / "out", a="old", stale="old")
    with replacing(tmp_path / "out") as target:
        write_folder(target, a="new")
    assert left_in(tmp_path / "out") == ["a"]
    assert (tmp_path / "out" / "a").read_text() == "new"
    assert left_in(tmp_path) == ["out"]


@pytest.mark.parametrize("failure", [RuntimeError("no"), KeyboardInterrupt()])
def test_failure_keeps_the_old_folder(tmp_path, failure):
    write_folder(tmp_path / "out", a="old")
    with pytest.raises(type(failure)):
        write_half_a_folder(tmp_path / "out", failure)
    assert (tmp_path / "out" / "a").read_text() == "old"
    assert left_in(tmp_path) == ["out"]


def test_body_that_writes_nothing_keeps_the_old_folder(tmp_path):
    write_folder(tmp_path / "out", a="old")
    with pytest.raises(OutputError, match="cannot write"), replacing(tmp_path / "out"):
        pass
    assert (tmp_path / "out" / "a").read_text() == "old"
    assert left_in(tmp_path) == ["out"]


def test_missing_parent_folder_is_an_output_error_that_names_the_target(tmp_path):
    target = tmp_path / "missing" / "out.txt"
    with pytest.raises(OutputError, match=r"cannot write .*out\.txt: No such file"), replacing(target):
        pytest.fail("the body must not run")


def test_parent_that_is_a_file_is_an_output_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"), replacing(tmp_path / "file" / "out.txt"):
        pytest.fail("the body must not run")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, which is Linux's full disk")
def test_full_disk_is_an_output_error_and_nothing_is_kept(tmp_path):
    (tmp_path / "out.txt").write_text("old")
    with pytest.raises(OutputError, match=r"No space left.*nothing was kept"):
        fill_the_disk(tmp_path / "out.txt")
    assert (tmp_path / "out.txt").read_text() == "old"
    assert left_in(tmp_path) == ["out.txt"]


def test_path_inside_is_joined(tmp_path):
    assert inside(tmp_path, "a/b.onnx") == tmp_path / "a" / "b.onnx"


@pytest.mark.parametrize(
    "path", ["", "..", "../x", "a/../../x", "a/../b", "/etc/passwd", "a\\b", "..\\x", "a\0b"], ids=repr
)
def test_path_that_leaves_is_refused(tmp_path, path):
    with pytest.raises(PackageError, match="leaves the package"):
        inside(tmp_path, path)


def test_link_that_leads_out_is_refused(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "package" / "file").symlink_to(tmp_path / "secret")
    (tmp_path / "package" / "folder").symlink_to(tmp_path)
    for name in ("file", "folder/secret"):
        with pytest.raises(PackageError, match="link that leaves"):
            inside(tmp_path / "package", name)


def test_link_that_stays_inside_is_read(tmp_path):
    (tmp_path / "real").write_text("x")
    (tmp_path / "link").symlink_to("real")
    assert inside(tmp_path, "link").read_text() == "x"


def test_package_reached_through_a_link_is_read(tmp_path):
    write_folder(tmp_path / "real", a="x")
    (tmp_path / "link").symlink_to("real")
    assert inside(tmp_path / "link", "a").read_text() == "x"


def test_hash_is_that_of_the_bytes(tmp_path):
    (tmp_path / "a").write_bytes(b"sanderling")
    assert sha256_of(tmp_path / "a") == hashlib.sha256(b"sanderling").hexdigest()


def test_folder_size_counts_files_at_every_depth(tmp_path):
    write_folder(tmp_path / "out", a="123")
    write_folder(tmp_path / "out" / "deep", b="4567")
    assert folder_size_bytes(tmp_path / "out") == 7
    assert folder_size_bytes(tmp_path / "out" / "a") == 3


def test_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SANDERLING_CACHE", raising=False)
    assert cache_folder() == tmp_path / "sanderling"
    monkeypatch.setenv("SANDERLING_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"

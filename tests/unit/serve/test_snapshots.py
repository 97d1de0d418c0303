from __future__ import annotations

import shutil
import subprocess
import sys

import numpy as np
import pytest

from sanderling.core.errors import OutputError, PackageError
from sanderling.model.package import MANIFEST, write_zip
from sanderling.serve.snapshots import Snapshots
from tests.versions import built, put


def test_copy_is_whole_and_outlives_the_original(tmp_path):
    original = put(built(2.0), tmp_path / "demo.sdl")
    (original / "notes.txt").write_text("not in the manifest")
    snapshots = Snapshots(tmp_path / "cache")
    copy = snapshots.take(original)
    shutil.rmtree(original)
    assert copy.problems() == []
    assert not (copy.path / "notes.txt").exists()
    np.testing.assert_allclose(next(iter(copy.golden().inputs.values())).shape[-1], 3)
    snapshots.close()


def test_zip_becomes_the_same_copy_as_its_folder(tmp_path):
    write_zip(built(2.0), tmp_path / "demo.sdl.zip")
    snapshots = Snapshots(tmp_path / "cache")
    copies = [snapshots.take(path) for path in (tmp_path / "demo.sdl.zip", built(2.0))]
    assert len({(copy.path / MANIFEST).read_bytes() for copy in copies}) == 1
    snapshots.close()


@pytest.mark.parametrize("harm", ["missing", "changed"])
def test_package_that_is_not_whole_leaves_no_copy(tmp_path, harm):
    original = put(built(2.0), tmp_path / "demo.sdl")
    model = next(original.rglob("*.onnx"))
    model.unlink() if harm == "missing" else model.write_bytes(model.read_bytes()[:-1] + b"?")
    snapshots = Snapshots(tmp_path / "cache")
    with pytest.raises(PackageError, match=r"is missing|does not have the hash"):
        snapshots.take(original)
    assert list(snapshots.folder.iterdir()) == []
    snapshots.close()


def test_copies_are_gone_after_closing(tmp_path):
    snapshots = Snapshots(tmp_path / "cache")
    first, _ = snapshots.take(built(2.0)), snapshots.take(built(2.0))
    snapshots.drop(first)
    assert len(list(snapshots.folder.iterdir())) == 1
    snapshots.close()
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="there are no locks that end with their process")
def test_copies_of_a_killed_process_are_removed_and_those_of_a_living_one_are_not(tmp_path):
    code = (
        "import os, sys; from pathlib import Path; from sanderling.serve.snapshots import Snapshots\n"
        "snapshots = Snapshots(Path(sys.argv[1])); (snapshots.folder / 'copy').mkdir(); os._exit(9)"
    )
    cache = tmp_path / "cache"
    subprocess.run([sys.executable, "-c", code, str(cache)], check=False, timeout=60)
    assert len([path for path in cache.iterdir() if path.is_dir()]) == 1
    living = Snapshots(cache)
    another = Snapshots(cache)
    assert {path for path in cache.iterdir() if path.is_dir()} == {living.folder, another.folder}
    living.close()
    another.close()


def test_cache_that_cannot_be_written_is_an_error_that_says_what_to_set(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="set SANDERLING_CACHE"):
        Snapshots(tmp_path / "file" / "cache")

from __future__ import annotations

import numpy as np
import pytest

from sanderling.core.errors import NotMetError
from sanderling.model.package import Package, file_entries, write_manifest
from sanderling.run.pool import Pool
from sanderling.serve.admission import Admission
from sanderling.serve.snapshots import Snapshots
from tests.versions import X, built, put, with_wrong_golden


def test_admitted_version_runs_and_is_pinned_no_longer(tmp_path):
    with Pool() as pool:
        admission = Admission(pool, snapshots=Snapshots(tmp_path))
        session = admission.load(admission.copy(built(2.0)), "demo:1")
        assert session.run(X)["y"].tolist() == (2 * X).tolist()
        assert [(model.name, model.pinned) for model in pool.models] == [("demo:1", False)]
    admission.close()


def test_refused_version_leaves_nothing_in_the_pool(tmp_path):
    with Pool() as pool:
        admission = Admission(pool, snapshots=Snapshots(tmp_path / "cache"))
        package = admission.copy(with_wrong_golden(built(3.0), tmp_path / "wrong.sdl"))
        with pytest.raises(NotMetError, match="golden vectors, fp32: output 'y' differs"):
            admission.load(package, "demo:1")
        assert pool.models == ()
    admission.close()


def test_model_that_no_engine_takes_is_refused_though_its_hashes_hold(tmp_path):
    broken = put(built(2.0), tmp_path / "broken.sdl")
    manifest = Package.open(broken).manifest
    (broken / manifest.variants[0].file).write_bytes(b"\x08\x0a no graph")
    write_manifest(broken, manifest.model_copy(update={"files": file_entries(broken)}))
    with Pool() as pool:
        admission = Admission(pool, snapshots=Snapshots(tmp_path / "cache"))
        with pytest.raises(NotMetError, match="golden vectors, fp32: "):
            admission.load(admission.copy(broken), "demo:1")
        assert pool.models == ()
    admission.close()


def test_variant_whose_engine_is_not_here_does_not_keep_the_others_from_running(tmp_path):
    package = put(built(2.0), tmp_path / "demo.sdl")
    manifest = Package.open(package).manifest
    fp32 = manifest.variants[0]
    elsewhere = fp32.model_copy(update={"id": "board", "engines": ("rknn",)})
    golden = manifest.golden.model_copy(update={"tolerance": {**manifest.golden.tolerance, "board": 1e-3}})
    arrays = Package.open(package).golden().to_arrays()
    np.savez(package / golden.file, **arrays, **{"board/y": arrays["fp32/y"]})
    changed = {"variants": (fp32, elsewhere), "golden": golden, "files": file_entries(package)}
    write_manifest(package, manifest.model_copy(update=changed))
    with Pool() as pool:
        admission = Admission(pool, snapshots=Snapshots(tmp_path / "cache"))
        session = admission.load(admission.copy(package), "demo:1")
        assert session.variant.id == "fp32"
    admission.close()

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from sanderling.core.errors import GuardError, NotMetError, OptionError, PackageError, RefusedError
from sanderling.model.package import Package, write_zip
from sanderling.run.isolated import Worker
from sanderling.run.policy.document import Policy
from sanderling.run.pool import Pool
from sanderling.serve.admission import Admission
from sanderling.serve.canary import CanaryRules
from sanderling.serve.data_plane import DataPlane
from sanderling.serve.errors import ConflictError, NotFoundError
from sanderling.serve.repository import Repository
from sanderling.serve.repository_settings import RepositorySettings
from sanderling.serve.rollbacks import Rollbacks
from sanderling.serve.snapshots import Snapshots
from sanderling.serve.version_policy import VersionPolicy
from tests.versions import X, built, put, with_wrong_golden

CANARY = CanaryRules(share=0.5, least_requests=10, promote_after_s=100.0)


class Watched:
    """A repository whose folder is looked at when a test says so, at the time that it says."""

    def __init__(
        self, root: Path, cache: Path, worker: Worker, settings: RepositorySettings, policy: Policy | None
    ) -> None:
        self.root = root
        self.now_s = 1000.0
        self.pool = Pool(policy)
        self.plane = DataPlane(self.pool)
        self.snapshots = Snapshots(cache)
        admission = Admission(self.pool, snapshots=self.snapshots, worker=worker)
        self.repository = Repository(
            root,
            self.pool,
            self.plane,
            settings,
            admission=admission,
            rollbacks=Rollbacks(cache / "rollbacks"),
            now_s=lambda: self.now_s,
        )

    def scan(self, after_s: float = 0.0, *, patient: bool = False) -> None:
        self.now_s += after_s
        self.repository.scan(patient=patient)

    def factor(self, version: str = "", x: np.ndarray = X) -> float:
        """What the version that answers multiplies by."""
        return float(self.plane.submit(self.plane.model("demo", version), {"x": x}).result(10)["y"][0, 0] / x[0, 0])

    @property
    def versions(self) -> dict[str, str]:
        return {entry["version"]: entry["state"] for entry in self.repository.index() if entry["name"] == "demo"}

    @property
    def events(self) -> list[str]:
        return [f"{event.kind} {event.subject}" for event in self.pool.events]

    def reason(self, kind: str) -> str:
        return next(event.reason for event in reversed(self.pool.events) if event.kind == kind)

    @property
    def copies(self) -> int:
        return len(list(self.snapshots.folder.iterdir()))

    def close(self) -> None:
        self.repository.stop()
        self.pool.close()
        self.repository.close()


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker() as one:
        yield one


@pytest.fixture
def watch(tmp_path: Path, worker: Worker) -> Iterator[Callable[..., Watched]]:
    """Makes repositories over the folder ``tmp_path / "models"``."""
    opened = []

    def make(settings: RepositorySettings | None = None, policy: Policy | None = None) -> Watched:
        root = tmp_path / "models"
        root.mkdir(exist_ok=True)
        opened.append(Watched(root, tmp_path / "cache", worker, settings or RepositorySettings(), policy))
        return opened[-1]

    yield make
    for watched in opened:
        watched.close()


def test_package_that_is_there_is_served_after_its_checks(watch):
    watched = watch()
    put(built(2.0), watched.root / "demo.sdl")
    watched.scan()
    assert watched.factor() == 2.0
    assert watched.events == ["version-loaded demo:1", "version-swapped demo:1"]
    assert watched.versions == {"1": "READY"}


def test_zip_is_served_as_a_folder_is(watch):
    watched = watch()
    write_zip(built(2.0), watched.root / "demo.sdl.zip")
    watched.scan()
    assert watched.factor() == 2.0


def test_replaced_package_is_swapped_and_the_old_one_unloaded_after_its_grace_period(watch):
    watched = watch(RepositorySettings(grace_s=60.0))
    put(built(2.0), watched.root / "demo.sdl")
    watched.scan()
    put(built(3.0), watched.root / "demo.sdl")
    watched.scan()
    assert (watched.factor(), watched.factor("1"), watched.factor("2")) == (3.0, 2.0, 3.0)
    watched.scan(after_s=59.0)
    assert watched.versions == {"1": "READY", "2": "READY"}
    watched.scan(after_s=1.0)
    assert watched.versions == {"1": "UNAVAILABLE", "2": "READY"}
    with pytest.raises(NotFoundError, match="available are 2"):
        watched.plane.model("demo", "1")


def test_old_version_keeps_its_numbers_though_its_files_are_gone(watch):
    watched = watch()
    put(built(2.0), watched.root / "demo.sdl")
    watched.scan()
    session = watched.plane.model("demo").session
    shutil.rmtree(watched.root / "demo.sdl")
    assert session.release()
    assert watched.factor() == 2.0


def test_same_package_written_again_changes_nothing(watch):
    watched = watch()
    put(built(2.0), watched.root / "demo.sdl")
    watched.scan()
    put(built(2.0), watched.root / "demo.sdl")
    watched.scan()
    assert watched.versions == {"1": "READY"}
    assert watched.events == ["version-loaded demo:1", "version-swapped demo:1"]
    assert watched.copies == 1


def test_package_is_not_read_before_it_has_settled(watch):
    watched = watch(RepositorySettings(settle_s=2.0))
    put(built(2.0), watched.root / "demo.sdl")
    watched.scan(patient=True)
    watched.scan(after_s=1.9, patient=True)
    (watched.root / "demo.sdl" / "more").write_text("still written")
    watched.scan(after_s=1.0, patient=True)
    assert watched.versions == {}
    watched.scan(after_s=2.0, patient=True)
    assert watched.versions == {"1": "READY"}


def test_half_written_package_is_refused_and_taken_when_it_is_whole(watch):
    watched = watch()
    put(built(2.0), watched.root / "demo.sdl")
    watched.scan()
    whole, target = built(3.0), watched.root / "demo.sdl"
    shutil.copy(whole / "manifest.json", target / "manifest.json")
    watched.scan()
    assert "build it again or fetch a whole copy" in watched.reason("version-refused")
    assert (watched.factor(), watched.versions) == (2.0, {"1": "READY", "2": "UNAVAILABLE"})
    count = len(watched.events)
    watched.scan()
    assert len(watched.events) == count  # it is told once
    shutil.copytree(whole, target, dirs_exist_ok=True)
    watched.scan()
    assert watched.factor() == 3.0


def test_manifest_cut_in_half_is_refused(watch):
    watched = watch()
    package = put(built(2.0), watched.root / "demo.sdl")
    text = (package / "manifest.json").read_text()
    (package / "manifest.json").write_text(text[: len(text) // 2])
    watched.scan()
    assert "not valid JSON" in watched.reason("version-refused")
    assert watched.copies == 0


def test_changed_byte_is_refused_and_the_old_version_stays(watch):
    watched = watch()
    put(built(2.0), watched.root / "demo" / "1.sdl")
    watched.scan()
    package = put(built(3.0), watched.root / "demo" / "2.sdl")
    model = next(package.rglob("*.onnx"))
    data = bytearray(model.read_bytes())
    data[-1] ^= 1
    model.write_bytes(data)
    watched.scan()
    assert "does not have the hash" in watched.reason("version-refused")
    assert (watched.factor(), watched.versions) == (2.0, {"1": "READY", "2": "UNAVAILABLE"})


def test_version_that_does_not_compute_its_golden_vectors_is_refused(watch):
    watched = watch()
    put(built(2.0), watched.root / "demo" / "1.sdl")
    watched.scan()
    with_wrong_golden(built(3.0), watched.root / "demo" / "2.sdl")
    watched.scan()
    assert "differs from the golden one" in watched.reason("version-refused")
    assert (watched.factor(), watched.copies) == (2.0, 1)


def test_next_lower_version_is_served_where_the_newest_is_refused_from_the_start(watch):
    watched = watch()
    put(built(2.0), watched.root / "demo" / "1.sdl")
    with_wrong_golden(built(3.0), watched.root / "demo" / "2.sdl")
    watched.scan()
    assert watched.factor() == 2.0


def test_numbered_version_whose_files_change_is_told_and_stays_as_it_was(watch):
    watched = watch()
    put(built(2.0), watched.root / "demo" / "1.sdl")
    watched.scan()
    put(built(3.0), watched.root / "demo" / "1.sdl")
    watched.scan()
    watched.scan()
    assert watched.events.count("version-changed demo:1") == 1
    assert watched.factor() == 2.0


@pytest.mark.parametrize(
    ("policy", "served", "default"),
    [
        (VersionPolicy(), ["3"], 4.0),
        (VersionPolicy(latest=2), ["2", "3"], 4.0),
        (VersionPolicy(latest=0), ["1", "2", "3"], 4.0),
        (VersionPolicy(specific=(1, 2)), ["1", "2"], 3.0),
    ],
)
def test_version_policy_says_what_is_loaded(watch, policy, served, default):
    watched = watch(RepositorySettings(versions=policy))
    for number in (1, 2, 3):
        put(built(1.0 + number), watched.root / "demo" / f"{number}.sdl")
    watched.scan()
    assert [entry["version"] for entry in watched.repository.index(ready_only=True)] == served
    assert watched.factor() == default


def test_kept_versions_outlive_the_grace_period(watch):
    watched = watch(RepositorySettings(versions=VersionPolicy(latest=2), grace_s=0.0))
    for factor in (2.0, 3.0, 4.0):
        put(built(factor), watched.root / "demo.sdl")
        watched.scan()
    watched.scan(after_s=1.0)
    assert [entry["version"] for entry in watched.repository.index(ready_only=True)] == ["2", "3"]


def test_package_that_vanishes_for_a_moment_is_not_unloaded(watch):
    watched = watch(RepositorySettings(gone_s=10.0))
    put(built(2.0), watched.root / "demo.sdl")
    watched.scan()
    (watched.root / "demo.sdl").rename(watched.root / "aside")
    watched.scan()
    watched.scan(after_s=9.0)
    assert watched.factor() == 2.0
    (watched.root / "aside").rename(watched.root / "demo.sdl")
    watched.scan(after_s=9.0)
    assert watched.events == ["version-loaded demo:1", "version-swapped demo:1"]


def test_deleted_package_is_unloaded(watch):
    watched = watch(RepositorySettings(gone_s=10.0))
    put(built(2.0), watched.root / "demo.sdl")
    watched.scan()
    shutil.rmtree(watched.root / "demo.sdl")
    watched.scan()
    watched.scan(after_s=10.0)
    assert watched.events[-1] == "model-unloaded demo"
    assert (watched.versions, watched.copies, watched.pool.models) == ({}, 0, ())
    with pytest.raises(NotFoundError):
        watched.plane.model("demo")


def test_deleted_newest_version_gives_way_to_the_one_before(watch):
    watched = watch(RepositorySettings(gone_s=10.0))
    put(built(2.0), watched.root / "demo" / "1.sdl")
    put(built(3.0), watched.root / "demo" / "2.sdl")
    watched.scan()
    shutil.rmtree(watched.root / "demo" / "2.sdl")
    watched.scan()
    watched.scan(after_s=10.0)
    assert watched.factor() == 2.0


def test_vanished_repository_unloads_nothing(watch):
    watched = watch(RepositorySettings(gone_s=0.0))
    put(built(2.0), watched.root / "demo.sdl")
    watched.scan()
    watched.root.rename(watched.root.with_name("elsewhere"))
    watched.scan(after_s=100.0)
    assert watched.factor() == 2.0
    assert watched.events[-1] == "package-misplaced models"


def test_rollback_is_instant_while_the_old_version_is_loaded_and_does_not_come_undone(watch):
    watched = watch()
    for factor in (2.0, 3.0):
        put(built(factor), watched.root / "demo.sdl")
        watched.scan()
    old = watched.plane.model("demo", "1").session
    assert watched.repository.rollback("demo") == "1"
    assert watched.plane.model("demo").session is old
    watched.scan()
    watched.scan(after_s=1000.0)
    assert (watched.factor(), watched.versions) == (2.0, {"1": "READY", "2": "UNAVAILABLE"})
    put(built(4.0), watched.root / "demo.sdl")
    watched.scan()
    assert watched.factor() == 4.0


def test_rollback_loads_the_old_version_again_after_the_grace_period(watch):
    watched = watch(RepositorySettings(grace_s=1.0))
    for factor in (2.0, 3.0):
        put(built(factor), watched.root / "demo.sdl")
        watched.scan()
    watched.scan(after_s=1.0)
    assert watched.versions == {"1": "UNAVAILABLE", "2": "READY"}
    assert watched.repository.rollback("demo") == "1"
    assert watched.factor() == 2.0


def test_rollback_reaches_a_lower_number_in_the_folder(watch):
    watched = watch()
    put(built(2.0), watched.root / "demo" / "1.sdl")
    put(built(3.0), watched.root / "demo" / "2.sdl")
    watched.scan()
    assert watched.repository.rollback("demo") == "1"
    watched.scan(after_s=100.0)
    assert (watched.factor(), watched.versions) == (2.0, {"1": "READY", "2": "UNAVAILABLE"})


def test_rollback_without_an_earlier_version_says_so(watch):
    watched = watch()
    put(built(2.0), watched.root / "demo.sdl")
    watched.scan()
    with pytest.raises(ConflictError, match="no version before 1"):
        watched.repository.rollback("demo")
    with pytest.raises(NotFoundError, match="loaded are demo"):
        watched.repository.rollback("other")


def test_second_rollback_does_not_come_back_to_the_first_version(watch):
    watched = watch(RepositorySettings(versions=VersionPolicy(latest=3)))
    for factor in (2.0, 3.0, 4.0):
        put(built(factor), watched.root / "demo.sdl")
        watched.scan()
    assert [watched.repository.rollback("demo") for _ in range(2)] == ["2", "1"]
    with pytest.raises(ConflictError):
        watched.repository.rollback("demo")


def test_canary_gets_its_share_and_is_promoted_after_its_time(watch):
    watched = watch(RepositorySettings(canary=CANARY))
    for factor in (2.0, 3.0):
        put(built(factor), watched.root / "demo.sdl")
        watched.scan()
    answers = [watched.factor() for _ in range(40)]
    assert sorted(set(answers)) == [2.0, 3.0]
    assert answers.count(3.0) == 20
    watched.repository.tend()
    assert watched.plane.default_version("demo") == "1"
    watched.now_s += 100.0
    watched.repository.tend()
    assert watched.plane.default_version("demo") == "2"
    assert {watched.factor() for _ in range(10)} == {3.0}
    assert watched.events[-1] == "canary-promoted demo:2"


def test_canary_that_trips_the_guard_is_rolled_back(watch):
    watched = watch(RepositorySettings(canary=CANARY, grace_s=5.0))
    put(built(2.0), watched.root / "demo.sdl")
    watched.scan()
    put(built(3.0, fragile=True), watched.root / "demo.sdl")
    watched.scan()
    failures = 0
    for _ in range(8):
        try:
            watched.factor(x=X * 100)
        except GuardError:
            failures += 1
    assert failures == 4
    watched.repository.tend()
    assert watched.events[-1] == "canary-rolled-back demo:2"
    assert "4 of 4 results failed their check" in watched.reason("canary-rolled-back")
    assert {watched.factor(x=X * 100) for _ in range(10)} == {2.0}
    watched.scan()
    watched.scan(after_s=5.0)
    assert watched.versions == {"1": "READY", "2": "UNAVAILABLE"}


def test_canary_can_be_promoted_or_ended_by_hand(watch):
    watched = watch(RepositorySettings(canary=CANARY))
    for factor in (2.0, 3.0):
        put(built(factor), watched.root / "demo.sdl")
        watched.scan()
    assert watched.repository.rollback("demo") == "1"
    assert {watched.factor() for _ in range(10)} == {2.0}
    put(built(4.0), watched.root / "demo.sdl")
    watched.scan()
    assert watched.repository.promote("demo") == "3"
    assert {watched.factor() for _ in range(10)} == {4.0}
    with pytest.raises(ConflictError, match="has no canary"):
        watched.repository.promote("demo")


def test_newer_version_takes_the_place_of_a_canary(watch):
    watched = watch(RepositorySettings(canary=CANARY, grace_s=0.0))
    for factor in (2.0, 3.0, 4.0):
        put(built(factor), watched.root / "demo.sdl")
        watched.scan()
    assert {watched.factor() for _ in range(10)} == {2.0, 4.0}
    watched.scan(after_s=1.0)
    assert watched.versions == {"1": "READY", "3": "READY"}


def test_unloaded_model_stays_away_until_it_is_loaded(watch):
    watched = watch()
    put(built(2.0), watched.root / "demo.sdl")
    watched.scan()
    watched.repository.unload("demo", {"unload_dependents": False})
    put(built(3.0), watched.root / "demo.sdl")
    watched.scan()
    with pytest.raises(NotFoundError):
        watched.plane.model("demo")
    with pytest.raises(NotFoundError, match="loaded are none"):
        watched.repository.unload("demo")
    watched.repository.load("demo")
    assert (watched.factor(), watched.versions) == (3.0, {"2": "READY"})


def test_load_tells_why_a_version_is_refused_and_keeps_the_old_one(watch):
    watched = watch()
    put(built(2.0), watched.root / "demo" / "1.sdl")
    watched.scan()
    with_wrong_golden(built(3.0), watched.root / "demo" / "2.sdl")
    for _ in range(2):
        with pytest.raises(NotMetError, match="differs from the golden one"):
            watched.repository.load("demo")
    assert watched.factor() == 2.0


def test_load_brings_a_rolled_back_version_again(watch):
    watched = watch()
    for factor in (2.0, 3.0):
        put(built(factor), watched.root / "demo.sdl")
        watched.scan()
    watched.repository.rollback("demo")
    watched.repository.load("demo")
    assert watched.factor() == 3.0


def test_load_tells_where_the_version_policy_wants_none(watch):
    watched = watch(RepositorySettings(versions=VersionPolicy(specific=(7,))))
    put(built(2.0), watched.root / "demo" / "1.sdl")
    with pytest.raises(ConflictError, match="no version that is to be served"):
        watched.repository.load("demo")


def test_load_of_what_is_loaded_changes_nothing(watch):
    watched = watch()
    put(built(2.0), watched.root / "demo.sdl")
    watched.repository.load("demo")
    session = watched.plane.model("demo").session
    watched.repository.load("demo", {})
    assert watched.plane.model("demo").session is session


@pytest.mark.parametrize("parameter", ["config", "file:1/model.onnx", "other"])
def test_load_refuses_to_override_what_a_package_says(watch, parameter):
    watched = watch()
    put(built(2.0), watched.root / "demo.sdl")
    with pytest.raises(OptionError, match=f"parameter '{parameter}' of load is refused: a package holds"):
        watched.repository.load("demo", {parameter: "{}"})
    assert watched.versions == {}


@pytest.mark.parametrize("name", ["../outside", "..", "/outside", "demo/1", ".demo"])
@pytest.mark.parametrize("call", ["load", "unload", "rollback", "promote"])
def test_no_call_takes_a_name_that_could_leave_the_folder(watch, tmp_path, name, call):
    watched = watch()
    put(built(2.0), tmp_path / "outside.sdl")
    with pytest.raises(OptionError, match="is no name of a model"):
        getattr(watched.repository, call)(name)


def test_link_that_leaves_the_folder_is_refused_by_scan_and_load(watch, tmp_path):
    watched = watch()
    put(built(2.0), tmp_path / "outside.sdl")
    (watched.root / "demo.sdl").symlink_to(tmp_path / "outside.sdl")
    watched.scan()
    assert watched.events == ["package-misplaced demo.sdl"]
    with pytest.raises(NotFoundError, match="available are none"):
        watched.repository.load("demo")


def test_file_in_a_package_that_is_a_link_out_of_it_is_refused(watch, tmp_path):
    watched = watch()
    package = put(built(2.0), watched.root / "demo.sdl")
    model = next(package.rglob("*.onnx"))
    model.rename(tmp_path / "model.onnx")
    model.symlink_to(tmp_path / "model.onnx")
    watched.scan()
    assert "a link that leaves the package" in watched.reason("version-refused")


def test_version_that_does_not_fit_beside_the_old_one_is_refused(watch):
    size = sum(
        variant.memory_bytes or variant.size_bytes
        for variant in (Package.open(built(factor)).variant() for factor in (2.0, 3.0))
    )
    watched = watch(policy=Policy(max_model_bytes=size - 1))
    put(built(2.0), watched.root / "demo.sdl")
    watched.scan()
    put(built(3.0), watched.root / "demo.sdl")
    watched.scan()
    assert "does not fit beside demo:1: 1 bytes over maxModelBytes" in watched.reason("version-refused")
    with pytest.raises(RefusedError):
        watched.repository.load("demo")
    assert watched.factor() == 2.0
    count = len(watched.events)
    watched.scan(after_s=59.0)
    assert len(watched.events) == count
    watched.scan(after_s=1.0)  # there may be room by now
    assert watched.events[count:] == ["version-refused demo:2"]


def test_old_version_is_not_released_to_make_room_for_the_new_one(watch):
    watched = watch(policy=Policy(max_model_cache=1))
    for factor in (2.0, 3.0):
        put(built(factor), watched.root / "demo.sdl")
        watched.scan()
    assert "model-released demo:1" not in watched.events
    assert watched.factor() == 3.0


def test_missing_folder_is_told_at_once(tmp_path):
    with Pool() as pool, pytest.raises(OptionError, match="is no folder"):
        Repository(tmp_path / "none", pool, DataPlane(pool))


def test_broken_package_among_whole_ones_hurts_nobody(watch):
    watched = watch()
    put(built(2.0), watched.root / "demo.sdl")
    (watched.root / "bad.sdl").mkdir()
    (watched.root / "worse.sdl").write_text("no zip")
    watched.scan()
    assert watched.factor() == 2.0
    with pytest.raises(PackageError, match="has no manifest"):
        watched.repository.load("bad")


def test_rollback_of_a_package_that_was_replaced_is_kept_over_a_restart(watch):
    first = watch()
    for factor in (2.0, 3.0):
        put(built(factor), first.root / "demo.sdl")
        first.scan()
    assert first.repository.rollback("demo") == "1"
    first.close()
    second = watch()
    second.scan()
    assert second.factor() == 2.0
    assert second.versions == {"1": "READY", "2": "UNAVAILABLE"}
    assert second.events[0] == "version-shelved demo:2"
    second.scan()
    assert second.factor() == 2.0
    put(built(5.0), second.root / "demo.sdl")
    second.scan()
    assert (second.factor(), second.versions) == (5.0, {"1": "READY", "2": "UNAVAILABLE", "3": "READY"})
    second.close()
    third = watch()
    third.scan()
    assert (third.factor(), third.versions) == (5.0, {"1": "READY"})


def test_rollback_of_a_numbered_version_is_kept_over_a_restart(watch):
    first = watch()
    for number, factor in ((1, 2.0), (2, 3.0)):
        put(built(factor), first.root / "demo" / f"{number}.sdl")
        first.scan()
    assert first.repository.rollback("demo") == "1"
    first.close()
    second = watch()
    second.scan()
    assert (second.factor(), second.versions) == (2.0, {"1": "READY", "2": "UNAVAILABLE"})
    assert {entry["version"]: entry["reason"] for entry in second.repository.index()}["2"] == "rolled back"


def test_load_forgets_a_rollback_that_was_kept(watch):
    first = watch()
    for factor in (2.0, 3.0):
        put(built(factor), first.root / "demo.sdl")
        first.scan()
    first.repository.rollback("demo")
    first.close()
    second = watch()
    second.scan()
    second.repository.load("demo")
    assert second.factor() == 3.0
    second.close()
    third = watch()
    third.scan()
    assert third.factor() == 3.0


def test_rollback_whose_copy_is_lost_serves_what_there_is(watch, tmp_path):
    first = watch()
    for factor in (2.0, 3.0):
        put(built(factor), first.root / "demo.sdl")
        first.scan()
    first.repository.rollback("demo")
    first.close()
    shutil.rmtree(tmp_path / "cache" / "rollbacks" / "demo.sdl")
    second = watch()
    second.scan()
    assert second.factor() == 3.0


def test_rollback_that_cannot_be_kept_is_done_and_told(watch, tmp_path):
    watched = watch()
    for factor in (2.0, 3.0):
        put(built(factor), watched.root / "demo.sdl")
        watched.scan()
    (tmp_path / "cache" / "rollbacks").write_text("a file where a folder should be")
    watched.repository.rollback("demo")
    assert watched.factor() == 2.0
    assert "cannot write" in watched.reason("rollback-not-kept")

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import sanderling
from sanderling.core.errors import DataError, EngineError, OptionError, PackageError
from sanderling.core.tensor import Array
from sanderling.run.branches import Branches
from sanderling.run.emulation.engine import EmulatedDevices
from sanderling.run.emulation.table import LatencyTable
from sanderling.run.features import Content
from tests.branched_packages import SIDE_PX, answering_package, matching_package
from tests.models import conv_classifier, random_arrays
from tests.unit.run.guard.packages import package_of


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    return answering_package(tmp_path_factory.mktemp("branches") / "vqa.sdl")


def pixels(seed: int) -> Content:
    feeds = random_arrays({"image": (1, 3, SIDE_PX, SIDE_PX)}, seed=seed)
    return Content(b"picture %d" % seed, lambda: feeds)


def words(*ids: int) -> Content:
    row = np.array([[*ids, *[0] * (6 - len(ids))]], np.int64)
    return Content(repr(ids).encode(), lambda: {"ids": row})


def request(seed: int, *ids: int) -> dict[str, Content]:
    return {"vision": pixels(seed), "text": words(*ids)}


def scores(outputs) -> Array:
    return next(iter(outputs.values()))


def counted(content: Content, calls: list[bytes]) -> Content:
    def feeds():
        calls.append(content.digest)
        return content.feeds()

    return Content(content.digest, feeds)


@pytest.mark.parametrize("at_once", [True, False])
def test_answers_are_those_of_the_graphs_run_by_hand(package, at_once):
    with Branches(package, at_once=at_once) as branches:
        got = scores(branches.run([request(1, 5, 6)])[0])
        leaves = branches.leaves([request(1, 5, 6)])[0]
        fusion = branches.sessions["fusion"].run(
            {"picture": scores(leaves["vision"]), "question": scores(leaves["text"])}
        )
    assert np.array_equal(got, scores(fusion))
    assert got.shape == (1, 4)


def test_many_requests_get_each_its_own_answer(package):
    requests = [request(seed, 3 + seed % 5, 3 + seed // 5) for seed in range(25)]
    with Branches(package) as branches, Branches(package, cache_bytes=0, at_once=False) as plain:
        together = branches.run(requests)
        for each, got in zip(requests, together, strict=True):
            assert np.allclose(scores(got), scores(plain.run([each])[0]), atol=1e-5)


def test_five_questions_about_a_picture_run_its_branch_once(package):
    calls: list[bytes] = []
    with Branches(package) as branches:
        seen = counted(pixels(1), calls)
        for number in range(5):
            branches.run([{"vision": seen, "text": words(3 + number)}])
        assert calls == [seen.digest]
        assert branches.sessions["vision"].statistics().requests["completed"] >= 6
        branches.run([{"vision": seen, "text": words(3)}])
        assert branches.cache.counts["misses"] == 6


def test_threads_that_ask_about_one_picture_at_once_run_its_branch_once(package):
    calls: list[bytes] = []
    with Branches(package) as branches, ThreadPoolExecutor(6) as pool:
        seen = counted(pixels(4), calls)
        asked = [{"vision": seen, "text": words(3 + number % 5, number % 3 + 3)} for number in range(24)]
        found = list(pool.map(lambda each: scores(branches.run([each])[0]), asked))
        assert len(calls) == 1
    with Branches(package, cache_bytes=0) as plain:
        for each, got in zip(asked, found, strict=True):
            assert np.allclose(got, scores(plain.run([{**each, "vision": pixels(4)}])[0]), atol=1e-5)


def test_features_are_handed_over_without_a_copy(package):
    with Branches(package) as branches:
        branches.run([request(1, 5)])
        assert branches.copied_bytes == 0


def test_a_content_that_cannot_be_read_fails_alone_and_is_not_kept(package):
    def broken():
        raise DataError("no picture")

    with Branches(package) as branches:
        for _ in range(2):
            with pytest.raises(DataError, match="no picture"):
                branches.run([{"vision": Content(b"x", broken), "text": words(3)}])
        assert scores(branches.run([request(1, 3)])[0]).shape == (1, 4)


def test_an_interrupt_leaves_nobody_waiting(package):
    def interrupted():
        raise KeyboardInterrupt

    with Branches(package) as branches:
        with pytest.raises(KeyboardInterrupt):
            branches.run([{"vision": Content(b"picture 1", interrupted), "text": words(3)}])
        assert scores(branches.run([request(1, 3)])[0]).shape == (1, 4)


def test_another_variant_runs_its_own_graphs(package):
    with Branches(package, variant="int8") as int8, Branches(package) as fp32:
        assert {session.variant.id for session in int8.sessions.values()} == {"int8"}
        assert not np.allclose(scores(int8.run([request(1, 5)])[0]), scores(fp32.run([request(1, 5)])[0]))


def test_names_that_are_not_there_are_told(package):
    with Branches(package) as branches:
        with pytest.raises(OptionError, match="expected text, vision"):
            branches.run([{"vision": pixels(1)}])
        with pytest.raises(OptionError, match="no branch 'audio': available are vision, text, fusion"):
            branches.features("audio", [pixels(1)])
    with pytest.raises(OptionError, match="no branch 'audio'"):
        Branches(package, devices={"audio": "gpu"})
    with pytest.raises(OptionError, match="no variant"):
        Branches(package, variant="int4")


def test_a_branch_runs_on_the_device_that_it_is_given(package):
    table = LatencyTable(source="test", models={"vision": {"npu": {"latency_ms": {1: 0.1}}}})
    devices = EmulatedDevices(table, "vision")
    with Branches(package, devices={"vision": "npu"}, emulate=devices) as branches, Branches(package) as plain:
        assert scores(branches.run([request(1, 5)])[0]) == pytest.approx(
            scores(plain.run([request(1, 5)])[0]), abs=1e-5
        )
        assert {name: session.device for name, session in branches.sessions.items()} == {
            "vision": "npu",
            "text": "cpu",
            "fusion": "cpu",
        }


def test_a_package_of_one_graph_has_no_branches(tmp_path):
    plain = package_of(tmp_path / "x.sdl", {"fp32": conv_classifier()}, [random_arrays({"image": (1, 3, 8, 8)})])
    with pytest.raises(OptionError, match="has no branches"):
        Branches(plain)


def test_branches_that_do_not_fit_the_fusion_are_refused(tmp_path):
    package = answering_package(tmp_path / "vqa.sdl", fusion_width=5)
    with pytest.raises(PackageError, match="branch 'vision' gives"):
        Branches(package)


def test_a_changed_byte_in_a_branch_shows_in_the_whole(tmp_path):
    package = answering_package(tmp_path / "vqa.sdl")
    file = package.path / "branches/vision.sdl/manifest.json"
    file.write_bytes(file.read_bytes().replace(b'"vision"', b'"visiom"'))
    with pytest.raises(PackageError, match=r"branches/vision\.sdl/manifest\.json"):
        sanderling.load(package.path)


def test_closed_branches_refuse_and_close_again(package):
    branches = Branches(package)
    branches.close()
    branches.close()
    with pytest.raises(EngineError):
        branches.run([request(1, 5)])


def test_a_session_takes_the_whole_package_as_one_graph(package):
    golden = package.golden()
    with sanderling.load(package.path) as session:
        assert [spec.name for spec in session.inputs] == ["vision.image", "text.ids"]
        got = session.run(golden.call(0))["fusion.scores"]
        assert np.allclose(got, golden.outputs["fp32"]["fusion.scores"][0], atol=1e-5)
        rows = {name: np.concatenate([array[0]] * 3) for name, array in golden.inputs.items()}
        assert np.allclose(session.run(rows)["fusion.scores"], np.repeat(got, 3, axis=0), atol=1e-5)
        out = np.empty((1, 4), np.float32)
        session.run(golden.call(0), {"fusion.scores": out})
        assert np.allclose(out, got, atol=1e-5)


def test_a_pool_holds_it_beside_others(package, tmp_path):
    matching = matching_package(tmp_path / "clip.sdl")
    pool = sanderling.Pool()
    try:
        pool.load(package.path)
        pool.load(matching.path)
        assert pool.run("clip", matching.golden().call(0)).keys() == {"vision.scores", "text.features"}
        assert pool.run("vqa", package.golden().call(0))["fusion.scores"].shape == (1, 4)
    finally:
        pool.close()


def test_verify_computes_golden_vectors_of_the_whole(package):
    result = sanderling.verify(package.path)
    assert result.passed
    assert [check.name for check in result.checks] == ["hashes", "golden vectors, fp32", "golden vectors, int8"]


@pytest.mark.parametrize("ask", [sanderling.bench, sanderling.inspect, sanderling.tune])
def test_what_is_for_one_graph_names_the_branches(package, ask):
    with pytest.raises(OptionError, match=r"branches/vision.sdl, branches/text.sdl"):
        ask(package.path)

from __future__ import annotations

import gc
import shutil
from pathlib import Path

import numpy as np
import pytest

import sanderling
from sanderling.api import build
from sanderling.core.errors import EngineError, OptionError, PackageError, TensorError
from sanderling.run.policy.document import Policy
from sanderling.run.session import load, open_sessions
from tests.models import conv_classifier, random_arrays, run_directly, save, sum_and_difference


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier in FP32 and INT8."""
    folder = tmp_path_factory.mktemp("classifier")
    calibration = folder / "calibration.npz"
    np.savez(calibration, **random_arrays({"image": (24, 3, 8, 8)}, seed=1))
    source = save(conv_classifier(), folder / "tiny.onnx")
    build(source, folder / "tiny.sdl", calibration=calibration, precision="fp32,int8", repeats=3)
    return folder / "tiny.sdl"


@pytest.fixture(scope="module")
def two_inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with two inputs, in FP32."""
    folder = tmp_path_factory.mktemp("sum")
    source = save(sum_and_difference(), folder / "sum.onnx")
    build(source, folder / "sum.sdl", precision="fp32", repeats=3)
    return folder / "sum.sdl"


def images(rows: int = 1) -> np.ndarray:
    return random_arrays({"image": (rows, 3, 8, 8)}, seed=rows)["image"]


@pytest.mark.parametrize("variant", ["fp32", "int8"])
@pytest.mark.parametrize("rows", [1, 5])
def test_numbers_equal_onnx_runtimes_own(package, variant, rows):
    with load(package, variant=variant, threads=1) as session:
        outputs = session.run({"image": images(rows)})
        expected = run_directly(session.package.file(session.variant.file), {"image": images(rows)}, optimized=True)
    assert outputs.keys() == {"scores"}
    np.testing.assert_array_equal(outputs["scores"], expected["scores"])


@pytest.mark.parametrize("isolation", ["thread", "process"])
@pytest.mark.parametrize("rows", [1, 5])
def test_nothing_is_copied_with_the_session_s_own_buffers(package, isolation, rows):
    with load(package, policy=Policy(isolation=isolation), variant="fp32") as session:
        inputs, outputs = session.buffers(rows)
        for _ in range(2):
            inputs["image"][:] = images(rows)
            assert session.run(inputs, outputs=outputs)["scores"] is outputs["scores"]
        assert session.copied_bytes == 0
        np.testing.assert_array_equal(outputs["scores"], session.run(images(rows))["scores"])


def test_buffers_of_a_process_that_is_gone_still_work_as_arrays(package):
    with load(package, policy=Policy(isolation="process"), variant="fp32") as session:
        inputs, outputs = session.buffers(2)
        inputs["image"][:] = images(2)
        session.release()
        session.run(inputs, outputs=outputs)
        np.testing.assert_array_equal(outputs["scores"], session.run(images(2))["scores"])


def test_fp32_keeps_the_numbers_of_the_source(package):
    with load(package, variant="fp32") as session:
        outputs = session.run(images(3))
    np.testing.assert_allclose(
        outputs["scores"], run_directly(conv_classifier(), {"image": images(3)})["scores"], atol=1e-4
    )


def test_chosen_variant_is_loaded_without_a_name(package):
    with load(package) as session:
        assert session.variant.id == session.manifest.chosen


def test_unknown_variant_is_told_with_the_available_ones(package):
    with pytest.raises(OptionError, match=r"no variant 'fp64': available are fp32, int8"):
        load(package, variant="fp64")


def test_single_array_stands_for_the_only_input(package):
    with load(package) as session:
        np.testing.assert_array_equal(session.run(images())["scores"], session.run({"image": images()})["scores"])


def test_single_array_for_two_inputs_is_refused_with_their_names(two_inputs):
    with load(two_inputs) as session, pytest.raises(TensorError, match=r"a: float32\[N, 3\]; b: float32\[N, 3\]"):
        session.run(np.zeros((1, 3), np.float32))


def test_every_output_comes_under_its_name(two_inputs):
    a, b = np.array([[5, 6, 7]], np.float32), np.array([[1, 2, 3]], np.float32)
    with load(two_inputs) as session:
        outputs = session.run({"b": b, "a": a})
    np.testing.assert_array_equal(outputs["sum"], a + b)
    np.testing.assert_array_equal(outputs["difference"], a - b)


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({"picture": images()}, r"unknown input \['picture'\]: available inputs are image: float32\[N, 3, 8, 8\]"),
        ({}, r"missing input \['image'\]"),
        (images().astype(np.float64), r"'image' has dtype float64: expected float32"),
        (images()[0], r"'image' has shape \(3, 8, 8\): expected 4 axes"),
        (np.zeros((1, 3, 8, 9), np.float32), r"'image' has shape \(1, 3, 8, 9\): axis 3 must be 8"),
    ],
    ids=["unknown", "missing", "dtype", "rank", "axis"],
)
def test_wrong_input_is_told_before_anything_runs(package, feeds, message):
    with load(package) as session, pytest.raises(TensorError, match=message):
        session.run(feeds)


def test_session_still_runs_after_a_wrong_input(package):
    with load(package) as session:
        with pytest.raises(TensorError):
            session.run(images().astype(np.float64))
        assert session.run(images())["scores"].shape == (1, 4)


def test_array_that_is_no_contiguous_block_gives_the_same_numbers(package):
    strided = np.repeat(images(2), 2, axis=3)[:, :, :, ::2]
    with load(package) as session:
        np.testing.assert_array_equal(session.run(strided)["scores"], session.run(images(2))["scores"])


def test_caller_may_change_its_arrays_afterwards(package):
    given = images(2)
    with load(package) as session:
        first = session.run(given)["scores"]
        kept = first.copy()
        given[:] = 0
        session.run(given)
    np.testing.assert_array_equal(first, kept)


def test_closing_twice_is_harmless(package):
    session = load(package)
    session.close()
    session.close()


def test_closed_session_refuses_to_run(package):
    with load(package) as session:
        pass
    with pytest.raises(EngineError, match="closed"):
        session.run(images())


def test_session_says_what_it_takes_and_returns(package):
    with load(package) as session:
        assert [str(spec) for spec in session.inputs] == ["image: float32[N, 3, 8, 8]"]
        assert [str(spec) for spec in session.outputs] == ["scores: float32[N, 4]"]


def test_lean_session_returns_the_same_numbers(package):
    with load(package, lean=True, threads=1) as lean, load(package, threads=1) as usual:
        np.testing.assert_array_equal(lean.run(images(4))["scores"], usual.run(images(4))["scores"])


def test_altered_package_is_not_loaded(package, tmp_path):
    altered = shutil.copytree(package, tmp_path / "altered.sdl")
    data = bytearray((altered / "model.fp32.onnx").read_bytes())
    data[-20] ^= 1
    (altered / "model.fp32.onnx").write_bytes(data)
    with pytest.raises(PackageError, match=r"model\.fp32\.onnx"):
        load(altered)


def test_public_build_is_still_a_function_after_a_build(package):  # noqa: ARG001
    # A module of that name, once imported, would take the function's place.
    assert callable(sanderling.build)


def test_open_sessions_are_those_that_were_not_closed_oldest_first(package):
    before = open_sessions()
    first, second, third = (load(package, variant="fp32") for _ in range(3))
    second.close()
    second.close()
    assert [session for session in open_sessions() if session not in before] == [first, third]
    assert first.number < third.number
    assert first.opened_at.startswith(f"{__file__}:")
    del third  # nobody can use it any more: it is no leak
    gc.collect()
    assert [session for session in open_sessions() if session not in before] == [first]
    first.close()
    assert open_sessions() == before


def test_results_are_written_to_the_arrays_that_are_given(package):
    with load(package, variant="fp32") as session:
        scores = np.full((3, 4), 77, np.float32)
        found = session.run(images(3), {"scores": scores})
        assert found["scores"] is scores
        assert session.copied_bytes == 0
        np.testing.assert_array_equal(scores, session.run(images(3))["scores"])


def test_arrays_that_results_cannot_be_written_to_are_refused(package):
    with load(package, variant="fp32") as session:
        with pytest.raises(TensorError, match="output 'scores' has dtype float64: expected float32"):
            session.run(images(3), {"scores": np.empty((3, 4))})
        with pytest.raises(EngineError, match=r"output 'scores' becomes \[3,4\]: the array given for it has \[2,4\]"):
            session.run(images(3), {"scores": np.empty((2, 4), np.float32)})


def test_bytes_that_are_copied_are_counted(package):
    with load(package, variant="fp32") as session:
        session.run(images(3)[:, ::-1])
        assert session.copied_bytes == images(3).nbytes

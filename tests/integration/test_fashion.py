"""The two Fashion-MNIST networks, from their trained weights to INT8, judged on 2,000 labelled test images."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from sanderling.api import build, doctor, export, load, verify
from sanderling.workshop.targets.ascend.reference import difference, in_standard_onnx
from tests.models import run_directly

ROOT = Path(__file__).parents[2]
WEIGHTS = ROOT / "benchmarks" / "zoo" / "weights"
SLICE = ROOT / "tests" / "data" / "fashion_slice.npz"
NETS = ("cnn", "depthwise")


def normalized(images):
    """uint8 (N, 28, 28) to float32 (N, 1, 28, 28)."""
    return ((images[:, None].astype(np.float32) / np.float32(255)) - np.float32(0.2860)) / np.float32(0.3530)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Folder with ``calibration.npz`` (512 images) and ``evaluation.npz`` (2,000 images and their labels)."""
    folder = tmp_path_factory.mktemp("data")
    with np.load(SLICE) as arrays:
        np.savez(folder / "calibration.npz", input=normalized(arrays["calibration_images"]))
        np.savez(folder / "evaluation.npz", input=normalized(arrays["test_images"]), labels=arrays["test_labels"])
    return folder


@pytest.fixture(scope="module", params=NETS)
def result(request, data, tmp_path_factory):
    """The build of one network, with a budget of 0.8 points of top-1."""
    weights = WEIGHTS / f"fashion_{request.param}.safetensors"
    if not weights.is_file():
        pytest.skip(f"{weights.relative_to(ROOT)} is missing: python -m benchmarks.zoo.train_fashion writes it")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        return build(
            f"benchmarks.zoo.fashion:fashion_{request.param}",
            tmp_path_factory.mktemp(request.param) / f"{request.param}.sdl",
            weights=weights,
            inputs=["input=1,1,28,28"],
            dynamic=["batch"],
            calibration=data / "calibration.npz",
            evaluation=data / "evaluation.npz",
            budget="top1=0.8",
            repeats=20,
        )


def top1_percent(predictions, labels):
    return 100.0 * float((predictions == labels).mean())


def test_int8_loses_at_most_half_a_point(result):
    accuracy = result.manifest.variant("int8").accuracy

    assert (accuracy.metric, accuracy.samples) == ("top1", 2000)
    assert accuracy.drop <= 0.5
    assert result.manifest.variant("fp32").accuracy.value > 88


def test_int8_file_is_at_most_half_as_large(result):
    sizes = {variant.id: (result.path / variant.file).stat().st_size for variant in result.manifest.variants}

    assert sizes["int8"] <= 0.5 * sizes["fp32"]
    assert sizes == {variant.id: variant.size_bytes for variant in result.manifest.variants}


def test_chosen_variant_is_proved_to_be_inside_the_budget(result):
    chosen = result.manifest.variant(result.manifest.chosen)

    assert chosen.within_budget
    assert chosen.accuracy.drop_upper <= 0.8
    assert (result.manifest.budget.metric, result.manifest.budget.limit) == ("top1", 0.8)
    assert not result.budget_missed


def test_no_variant_is_inside_the_budget_on_its_measured_drop_alone(result):
    for variant in result.manifest.variants[1:]:
        assert variant.accuracy.drop_upper > variant.accuracy.drop
        assert variant.within_budget == (variant.accuracy.drop_upper <= 0.8)


@pytest.mark.parametrize("variant", ["fp32", "fp16", "int8"])
def test_accuracy_is_what_onnxruntime_alone_gives(result, data, variant):
    session = onnxruntime.InferenceSession(
        str(result.path / f"model.{variant}.onnx"), providers=["CPUExecutionProvider"]
    )
    with np.load(data / "evaluation.npz") as arrays:
        images, labels = arrays["input"], arrays["labels"]
    batches = [images[start : start + 8] for start in range(0, len(images), 8)]
    scores = np.concatenate([session.run(None, {"input": batch})[0] for batch in batches])

    printed = next(entry for entry in result.summary()["variants"] if entry["id"] == variant)
    assert printed["accuracy"]["value"] == pytest.approx(top1_percent(scores.argmax(axis=1), labels), abs=1e-9)


def test_fp32_accuracy_is_what_the_unsimplified_graph_gives(result, data):
    """The kept FP32 graph may differ in the last bits: at most one image in 2,000 may change its class."""
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    from benchmarks.zoo import fashion

    name = result.path.stem
    module = getattr(fashion, f"fashion_{name}")()
    module.load_state_dict(load_file(WEIGHTS / f"fashion_{name}.safetensors"))
    with np.load(data / "evaluation.npz") as arrays, torch.no_grad():
        scores = module.eval()(torch.from_numpy(arrays["input"])).numpy()
        expected = top1_percent(scores.argmax(axis=1), arrays["labels"])

    assert result.manifest.variant("fp32").accuracy.value == pytest.approx(expected, abs=0.05)


def test_package_verifies_and_repeats_its_accuracy(result, data):
    verified = verify(result.path, evaluation=data / "evaluation.npz")

    assert verified.passed
    for variant in result.manifest.variants:
        assert verified.accuracy[variant.id].value == variant.accuracy.value


def test_batches_are_answered_like_single_images(result, data):
    with np.load(data / "evaluation.npz") as arrays:
        images = arrays["input"][:32]
    with load(result.path, variant="fp32") as session:
        (together,) = session.run(images).values()

    alone = [
        next(iter(run_directly(result.path / "model.fp32.onnx", {"input": image[None]}).values())) for image in images
    ]
    np.testing.assert_allclose(together, np.concatenate(alone), rtol=1e-3, atol=1e-4)


def test_doctor_finds_no_fault_in_right_data_and_names_a_missing_division(result, data, tmp_path):
    found = doctor(result.path, data=data / "evaluation.npz")
    assert [finding.kind for finding in found.findings if finding.severity != "advice"] == []
    with np.load(data / "evaluation.npz") as arrays:
        np.savez(tmp_path / "raw.npz", input=(arrays["input"][:64] * np.float32(0.3530) + np.float32(0.2860)) * 255)
    faults = [finding.kind for finding in doctor(result.path, data=tmp_path / "raw.npz").findings]
    assert faults[0] == "input-scale"


def test_ascend_form_of_int8_equals_it_within_a_step(result, data, tmp_path):
    record = export(result.path, tmp_path / "out", target="ascend", variant="int8").record
    assert len(record["details"]["nodes_in_int8"]) >= 3
    assert all(proof["passed"] for proof in record["proofs"])

    with np.load(data / "evaluation.npz") as arrays:
        calls = [{"input": images} for images in np.split(arrays["input"][:500], 5)]
    qdq, deploy = onnx.load(result.path / "model.int8.onnx"), onnx.load(tmp_path / "out" / "model.onnx")
    assert difference(qdq, deploy, calls).steps <= 1.0
    scores = [
        np.concatenate([next(iter(run_directly(model, feeds).values())) for feeds in calls])
        for model in (qdq, in_standard_onnx(deploy))
    ]
    assert np.mean(scores[0].argmax(axis=1) == scores[1].argmax(axis=1)) >= 0.98

"""Graphs that were quantised elsewhere become packages whose INT8 variant is that graph."""

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

from sanderling.api import build, load, verify
from sanderling.core.errors import ModelError
from tests.integration.conftest import write_samples
from tests.models import conv_classifier, random_arrays, run_directly, save

QUICK = {"repeats": 3}
IMAGES = random_arrays({"image": (40, 3, 8, 8)}, seed=4)
FORMS = {
    "uint8 activations": {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8, "per_channel": True},
    "int8 activations": {"activation_type": QuantType.QInt8, "weight_type": QuantType.QInt8, "per_channel": True},
    "uint8 weights": {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QUInt8},
}


class Reader(CalibrationDataReader):
    """The images one by one."""

    def __init__(self):
        self._rows = iter(IMAGES["image"])

    def get_next(self):
        row = next(self._rows, None)
        return None if row is None else {"image": row[None]}


@pytest.fixture
def float_file(work):
    return save(conv_classifier(batch=1), work / "float.onnx")


@pytest.fixture
def quantized(work, float_file):
    """Quantise ``float.onnx`` with ONNX Runtime."""

    def run(form=QuantFormat.QDQ, **options):
        path = work / "quantized.onnx"
        quantize_static(float_file, path, Reader(), quant_format=form, **options)
        return path

    return run


@pytest.fixture
def evaluation(work):
    return write_samples(work / "evaluation.npz", count=60, seed=5)


def answers(model, images):
    return np.concatenate([run_directly(model, {"image": image[None]})["scores"] for image in images])


@pytest.mark.parametrize("form", FORMS)
def test_int8_variant_computes_what_the_source_does(out, quantized, evaluation, form):
    source = quantized(**FORMS[form])

    result = build(source, out / "model.sdl", evaluation=evaluation, **QUICK)

    assert [variant.id for variant in result.manifest.variants] == ["fp32", "int8"]
    np.testing.assert_array_equal(
        answers(result.path / "model.int8.onnx", IMAGES["image"]), answers(source, IMAGES["image"])
    )
    assert verify(result.path).passed


@pytest.mark.parametrize("form", FORMS)
def test_reconstructed_reference_is_said_to_be_one_and_is_close_to_the_float_model(
    out, quantized, evaluation, float_file, form
):
    result = build(quantized(**FORMS[form]), out / "model.sdl", evaluation=evaluation, **QUICK)

    said = [event for event in result.evidence.events if event.kind == "reference-reconstructed"]
    assert "--reference FLOAT.onnx" in said[0].reason
    graph = onnx.load(result.path / "model.fp32.onnx").graph
    assert not {"QuantizeLinear", "DequantizeLinear"} & {node.op_type for node in graph.node}
    expected = answers(float_file, IMAGES["image"])
    got = answers(result.path / "model.fp32.onnx", IMAGES["image"])
    assert np.abs(got - expected).max() < 0.05 * np.abs(expected).max()


def test_drop_is_measured_against_the_reference_that_is_named(out, quantized, evaluation, float_file):
    result = build(quantized(), out / "model.sdl", reference=float_file, evaluation=evaluation, **QUICK)

    assert [event.kind for event in result.evidence.events] == []
    with np.load(evaluation) as arrays:
        expected = answers(float_file, arrays["image"]).argmax(1)
        got = answers(result.path / "model.int8.onnx", arrays["image"]).argmax(1)
    changed = 100 * np.mean(expected != got)
    assert result.manifest.variant("int8").accuracy.drop == pytest.approx(changed)
    np.testing.assert_allclose(
        answers(result.path / "model.fp32.onnx", IMAGES["image"]),
        answers(float_file, IMAGES["image"]),
        rtol=1e-3,
        atol=1e-4,
    )


def test_our_own_int8_is_a_source_too(out, work, built, evaluation):
    source = work / "own.onnx"
    source.write_bytes((built.path / "model.int8.onnx").read_bytes())

    result = build(source, out / "model.sdl", evaluation=evaluation, **QUICK)

    images = random_arrays({"image": (5, 3, 8, 8)}, seed=6)
    with load(result.path, variant="int8") as session, load(built.path, variant="int8") as original:
        np.testing.assert_allclose(session.run(images)["scores"], original.run(images)["scores"], rtol=1e-5, atol=1e-5)
    with load(result.path, variant="fp32") as session, load(built.path, variant="fp32") as original:
        expected = original.run(images)["scores"]
        assert np.abs(session.run(images)["scores"] - expected).max() < 0.05 * np.abs(expected).max()


def test_quantised_source_can_get_a_dynamic_batch(out, quantized, evaluation):
    result = build(quantized(), out / "model.sdl", dynamic=["batch"], evaluation=evaluation, **QUICK)

    with load(result.path, variant="int8") as session:
        assert session.run(IMAGES)["scores"].shape == (40, 4)


def test_graph_of_integer_operators_needs_its_float_model(out, quantized, evaluation, float_file):
    source = quantized(QuantFormat.QOperator)

    with pytest.raises(ModelError, match=r"QLinearConv.*--reference FLOAT\.onnx"):
        build(source, out / "model.sdl", evaluation=evaluation, **QUICK)
    assert list(out.iterdir()) == []

    result = build(source, out / "model.sdl", reference=float_file, evaluation=evaluation, **QUICK)
    assert verify(result.path).passed


def test_dynamically_quantised_graph_is_built_with_its_float_model(out, work, evaluation, float_file):
    quantize_dynamic(float_file, work / "dynamic.onnx")

    result = build(work / "dynamic.onnx", out / "model.sdl", reference=float_file, evaluation=evaluation, **QUICK)

    assert result.manifest.variant("int8").accuracy.cosine["scores"] > 0.98


def test_command_takes_the_reference(sanderling_here, out, quantized, float_file):
    done = sanderling_here(
        "build", quantized(), "-o", out / "m.sdl", "--reference", float_file, "--repeats", "3", "--json"
    )

    assert done.code == 0, done.stderr
    assert [variant["id"] for variant in done.answer["variants"]] == ["fp32", "int8"]

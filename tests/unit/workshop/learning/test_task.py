"""What the graphs of a task promise each other: features, compressed backbones, folded adapters."""

import numpy as np
import onnx
import pytest

from sanderling.core.progress import Silent
from sanderling.core.tensor import random_feeds
from sanderling.model.graph import read_graph
from sanderling.model.tensors import read_safetensors
from sanderling.run.engines import engine
from sanderling.run.engines.base import EngineOptions
from sanderling.workshop.learning.apply import adapted_model
from sanderling.workshop.learning.forward import read_forward
from sanderling.workshop.learning.optimizers import STATES
from sanderling.workshop.learning.options import LearningOptions, parse_loss
from sanderling.workshop.learning.prepare import write_graphs_of
from sanderling.workshop.learning.task import fingerprint
from tests.unit.workshop.learning import conftest


def run(graph, feeds):
    executable = engine().load(graph, EngineOptions())
    found = executable.run(feeds)
    executable.close()
    return found


def changed(spec, folder, seed=3):
    """The task's parameters after some training, as good as any."""
    generator = np.random.default_rng(seed)
    first = read_safetensors(folder / spec.initial)
    return {
        name: (array + 0.1 * generator.standard_normal(array.shape)).astype(np.float32) for name, array in first.items()
    }


def named(prefix, arrays):
    return {f"{prefix}.{name}": array for name, array in arrays.items()}


@pytest.mark.parametrize("trainable", ["head", "full", "lora:r=2", "lora:r=2,head"])
@pytest.mark.parametrize("network", ["cnn", "bert"])
def test_merged_model_is_the_model_with_its_parameters_as_inputs(learn, network, trainable):
    spec, folder, _ = learn(network, trainable)
    parameters = changed(spec, folder)
    feeds = random_feeds(spec.inputs, batch=3, seed=5)
    merged = adapted_model(read_graph(folder / spec.model), spec, parameters)
    ours = run(merged.SerializeToString(), feeds)
    theirs = run(folder / spec.inference, {**feeds, **named("param", parameters)})
    for name, array in theirs.items():
        assert np.allclose(ours[name], array, rtol=0, atol=2e-5 * np.abs(array).max())


def test_adapters_change_nothing_at_first(learn):
    spec, folder, _ = learn("cnn", "lora:r=2")
    feeds = random_feeds(spec.inputs, batch=2)
    adapted = run(folder / spec.inference, {**feeds, **named("param", read_safetensors(folder / spec.initial))})
    for name, array in run(folder / spec.model, feeds).items():
        assert np.allclose(adapted[name], array, rtol=0, atol=1e-5 * np.abs(array).max())


@pytest.mark.parametrize(
    ("network", "trainable"), [("cnn", "head"), ("resnet", "head"), ("bert", "classifier"), ("mlp", "head")]
)
def test_steps_on_features_are_the_steps_on_samples(learn, network, trainable):
    spec, folder, events = learn(network, trainable)
    cut = spec.features
    assert cut is not None, events
    parameters = changed(spec, folder)
    feeds = random_feeds(spec.inputs, batch=3, seed=7)
    label = np.asarray([0, 4, 2])
    rest = {"label": label, **named("param", parameters)}
    before = named("acc", {name: np.ones_like(array) for name, array in parameters.items()})
    features = run(folder / cut.features, feeds)
    assert {name: array.shape[1:] for name, array in features.items()} == {s.name: s.shape[1:] for s in cut.tensors}
    for whole, part, more in ((spec.grad_step, cut.grad_step, before), (spec.eval, cut.eval, {})):
        expected = run(folder / whole, {**feeds, **rest, **more})
        found = run(folder / part, {**features, **rest, **more})
        assert all(np.allclose(found[name], array, atol=1e-6) for name, array in expected.items())
    size = sum(array.nbytes for array in features.values()) // 3
    assert size == cut.bytes_per_sample
    assert 0.3 <= cut.macs_share <= 1


def test_nothing_is_cut_off_where_it_does_not_pay(learn):
    spec, _, events = learn("cnn", "full")
    assert spec.features is None
    assert [event.reason for event in events if event.kind == "features-not-cut"]


@pytest.mark.parametrize(
    ("network", "trainable", "told"),
    [("frames", "second", "has 20 rows for 4 samples"), ("centred", "last", "depends on the other samples")],
)
def test_nothing_is_kept_that_is_not_of_one_sample_alone(learn, network, trainable, told):
    spec, folder, events = learn(network, trainable)
    assert spec.features is None
    assert told in next(event.reason for event in events if event.kind == "features-not-cut")
    assert not (folder / "learning" / "features.onnx").exists()
    assert spec.private.file is None  # neither are its gradients
    assert "sample" in spec.private.refused


@pytest.mark.parametrize(("backbone", "kind"), [("fp16", onnx.TensorProto.FLOAT16), ("int8", onnx.TensorProto.INT8)])
@pytest.mark.parametrize("network", ["resnet", "bert"])
def test_backbone_in_fewer_bytes_is_what_pytorch_computes_with_rounded_weights(learn, network, backbone, kind):
    spec, folder, _ = learn(network, "lora:r=2", backbone=backbone)
    assert spec.golden.error <= 1e-5
    graph = onnx.load(folder / spec.grad_step, load_external_data=False).graph
    stored = [tensor for tensor in graph.initializer if tensor.name.endswith(".stored")]
    assert stored
    assert {tensor.data_type for tensor in stored} == {kind}
    assert {tensor.name for tensor in stored} <= {
        value.name for value in graph.input
    }  # so that none is unfolded for good


def test_graphs_share_one_copy_of_the_weights(learn):
    spec, folder, _ = learn("resnet", "head", private=False)
    weights = sum(array.nbytes for array in initializers(folder / spec.model))
    assert (folder / "learning" / "weights.bin").stat().st_size < 1.2 * weights


def initializers(path):
    return [onnx.numpy_helper.to_array(tensor) for tensor in read_graph(path).graph.initializer]


def test_no_graph_names_a_place_on_the_machine_that_made_it(learn):
    spec, folder, _ = learn("cnn", "full")
    for name in (spec.grad_step, spec.eval, spec.inference, spec.model):
        graph = onnx.load(folder / name, load_external_data=False).graph
        assert not [node.name for node in graph.node if node.metadata_props or node.doc_string]


def test_what_is_frozen_is_said(learn):
    assert "dropout is off" in learn("mlp")[0].notes[0]
    assert "batch normalisation keeps its running statistics" in learn("cnn")[0].notes[0]


def test_checkpoints_of_another_loss_do_not_fit(learn):
    one, two = learn("mlp", "head", "cross_entropy"), learn("mlp", "head", "cross_entropy:smoothing=0.1")
    assert one[0].fingerprint != two[0].fingerprint
    assert one[0].fingerprint == learn("mlp", "head", "cross_entropy")[0].fingerprint


def test_checkpoints_of_other_small_weights_do_not_fit(learn):
    """Small weights are in the graphs themselves, not in the file that they share."""
    ours, source = learn("mlp", "head")[0], conftest.traced("mlp")
    model = onnx.ModelProto.FromString(source.model.SerializeToString())
    bias = next(tensor for tensor in model.graph.initializer if tensor.name == "1.bias")
    bias.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(bias) + 1, "1.bias"))
    written = [
        write_graphs_of(
            read_forward(each, source.parameters), LearningOptions(parse_loss("cross_entropy")), {}, seed=0,
            progress=Silent(),
        )
        for each in (source.model, model)
    ]  # fmt: skip
    assert written[0].weights_sha256 != written[1].weights_sha256
    assert fingerprint(ours.loss, ours.parameters, (), written[0].weights_sha256) == ours.fingerprint


def test_spec_names_files_that_are_there(learn):
    spec, folder, _ = learn("mlp", "head")
    files = [spec.initial, spec.golden.file, spec.private.file, *(graph.file for graph in spec.optimizers)]
    assert all((folder / name).is_file() for name in files)
    assert {graph.kind: graph.states for graph in spec.optimizers} == STATES

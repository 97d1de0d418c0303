"""Quantisation-aware training, from a factory and labelled data to a package."""

import json

import numpy as np
import onnx
import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional

from sanderling.api import finetune_quantized, verify
from tests.models import run_directly

NETS = """
import torch
from torch import nn


def small():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU6(inplace=True),
        nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(0.1), nn.Linear(32, 3),
    )


def picky():
    class Picky(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(64, 3)

        def forward(self, x):
            return self.layer(x.reshape(1, 64))

    return Picky()


def weightless():
    return nn.Sequential(nn.AvgPool2d(4), nn.Flatten())


def map_maker():
    return nn.Conv2d(1, 2, 3)
"""
SHAPE = ("--input", "x=1,1,8,8")
QUICK = ("--repeats", "3", "--epochs", "1", "--batch", "32")


def pictures(count, seed):
    """Bright left, bright right, or bright below, in noise: float32 (count, 1, 8, 8), and which it is."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 3, count)
    images = generator.normal(0, 1, (count, 1, 8, 8)).astype(np.float32)
    for image, label in zip(images, labels, strict=True):
        image[0, :, :4] += 1.5 * (label == 0)
        image[0, :, 4:] += 1.5 * (label == 1)
        image[0, 4:] += 1.5 * (label == 2)
    return images, labels


def write_pictures(path, count, seed, **others):
    images, labels = pictures(count, seed)
    np.savez(path, **{"x": images, "labels": labels, **others})
    return path


@pytest.fixture
def nets(work, monkeypatch, forget_modules):  # noqa: ARG001
    (work / "qat_nets.py").write_text(NETS)
    monkeypatch.syspath_prepend(str(work))
    import qat_nets

    return qat_nets


@pytest.fixture
def weights(work, nets):
    """A checkpoint of ``small``, trained for a moment."""
    torch.manual_seed(0)
    net = nets.small().train()
    images, labels = map(torch.from_numpy, pictures(960, 1))
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for chosen in torch.arange(960).split(64) * 3:
        loss = functional.cross_entropy(net(images[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    save_file(net.state_dict(), work / "small.safetensors")
    return work / "small.safetensors"


@pytest.fixture
def data(work):
    return write_pictures(work / "train.npz", 480, 2)


def test_trained_package_verifies_and_is_as_good_as_fp32(work, out, weights, data):
    result = finetune_quantized(
        "qat_nets:small",
        out / "model.sdl",
        data=data,
        inputs=["x=1,1,8,8"],
        weights=weights,
        epochs=3,
        batch=32,
        dynamic=["batch"],
        evaluation=write_pictures(work / "eval.npz", 600, 3),
        repeats=3,
    )

    reference, trained = result.manifest.variants
    assert (reference.id, trained.id, trained.accuracy.metric) == ("fp32", "int8", "top1")
    assert reference.accuracy.value > 80
    assert trained.accuracy.drop < 1.5
    assert trained.accuracy.drop_upper > trained.accuracy.drop
    assert trained.float_nodes == ()
    assert verify(result.path).passed

    training = result.evidence.finetuning
    assert (training.samples, training.held_out, len(training.epochs)) == (432, 48, 3)
    best = max(epoch.held_out_percent for epoch in training.epochs)
    assert training.epochs[training.kept - 1].held_out_percent == best
    assert "Training for INT8, 432 samples" in (result.path / "report.html").read_text()


def test_trained_graph_folds_batch_norm_and_rounds_a_convolution_with_its_activation_once(out, weights, data):
    result = finetune_quantized(
        "qat_nets:small", out / "m.sdl", data=data, inputs=["x=1,1,8,8"], weights=weights, epochs=1, repeats=3
    )

    graph = onnx.load(result.path / "model.int8.onnx").graph
    operators = [node.op_type for node in graph.node]
    assert "BatchNormalization" not in operators
    readers = {name: node.op_type for node in graph.node for name in node.input}
    assert [readers[node.output[0]] for node in graph.node if node.op_type == "Conv"] == ["Clip", "Relu"]
    weight_types = {tensor.data_type for tensor in graph.initializer if len(tensor.dims) > 1}
    assert weight_types == {onnx.TensorProto.INT8}


def test_fp32_variant_is_the_module_before_training(work, out, nets, weights, data):
    result = finetune_quantized(
        "qat_nets:small", out / "m.sdl", data=data, inputs=["x=1,1,8,8"], weights=weights, epochs=1, repeats=3
    )

    module = nets.small()
    module.load_state_dict(torch.load(work / "x.pt") if (work / "x.pt").exists() else _state(weights))
    images = pictures(1, 8)[0]
    with torch.no_grad():
        expected = module.eval()(torch.from_numpy(images)).numpy()
    (got,) = run_directly(result.path / "model.fp32.onnx", {"x": images}).values()
    np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)


def _state(path):
    from safetensors.torch import load_file

    return load_file(path)


def test_same_seed_gives_the_same_weights(out, weights, data):
    options = {"data": data, "inputs": ["x=1,1,8,8"], "weights": weights, "epochs": 1, "repeats": 3}
    first, again, other = (
        finetune_quantized("qat_nets:small", out / f"{number}.sdl", seed=seed, **options)
        for number, seed in enumerate((1, 1, 2))
    )

    hashes = [result.manifest.files["model.int8.onnx"].sha256 for result in (first, again, other)]
    assert hashes[0] == hashes[1]
    assert hashes[0] != hashes[2]


def test_command_prints_epochs_and_variants(sanderling_here, out, weights, data):
    target = ("--data", data, "--weights", weights, "-o", out / "m.sdl")

    done = sanderling_here("finetune-quantized", "qat_nets:small", *target, *SHAPE, *QUICK, "--json")

    assert done.code == 0, done.stderr
    assert "train, epoch 1 of 1\n" in done.stderr
    assert [variant["id"] for variant in done.answer["variants"]] == ["fp32", "int8"]
    (epoch,) = done.answer["finetuning"]["epochs"]
    assert epoch.keys() == {"loss", "held_out_percent", "seconds"}
    evidence = json.loads((out / "m.sdl" / "evidence.json").read_text())
    assert evidence["finetuning"] == done.answer["finetuning"]


# Refusals


@pytest.fixture
def refuses(refused_here, out, nets):  # noqa: ARG001
    """Training of ``qat_nets:FACTORY`` must refuse."""

    def run(factory, data, *options, says, code=2):
        target = ("--data", data, "-o", out / "m.sdl")
        return refused_here(
            "finetune-quantized", f"qat_nets:{factory}", *target, *SHAPE, *options, says=says, code=code
        )

    return run


def test_data_that_cannot_be_trained_on_is_refused(refuses, work):
    images, labels = pictures(80, 0)
    np.savez(work / "bare.npz", x=images)
    np.savez(work / "wrong.npz", x=images, labels=labels + 1)
    np.savez(work / "wide.npz", x=np.repeat(images, 2, axis=3), labels=labels)
    np.savez(work / "few.npz", x=images[:4], labels=labels[:4])

    refuses("small", "bare.npz", says=["bare.npz has no labels", "CSV"])
    refuses("small", "wrong.npz", says=["labels go from 1 to 3", "3 classes"])
    refuses("small", "wide.npz", says=["wide.npz", "(1, 1, 8, 16)"])
    refuses("small", "few.npz", says=["few.npz leaves 3 samples"])
    refuses("small", "none.npz", says=["none.npz", "does not exist"])


def test_modules_that_cannot_be_trained_are_refused(refuses, data, work):
    np.savez(work / "four.npz", x=pictures(80, 0)[0], labels=np.zeros(80, np.int64))

    refuses("picky", data, says=["cannot be captured for training", "fixed batch"])
    refuses("weightless", "four.npz", says=["no convolution and no linear layer"])
    refuses("map_maker", data, says=["only classifiers can be trained"])


def test_source_that_is_no_factory_is_refused(refused_here, classifier, data, out):
    options = ("--data", data, "-o", out / "m.sdl", "--input", "x=1,3,8,8")

    refused_here("finetune-quantized", classifier, *options, says="expected package.module:factory")


def test_training_that_diverges_says_where_and_writes_nothing(refuses, data):
    done = refuses("small", data, "--lr", "1e30", "--batch", "32", says=["the loss is", "batch", "row", "--lr"], code=1)

    assert done.answer["error"]["type"] == "NotMetError"


def test_missing_torchao_is_said_with_how_to_install_it(refused, nets, data, out):  # noqa: ARG001
    options = ("--data", data, "-o", out / "m.sdl", *SHAPE)

    refused(
        "finetune-quantized",
        "qat_nets:small",
        *options,
        code=3,
        without=["torchao"],
        says=["torchao", "pip install 'sanderling[qat]'"],
    )

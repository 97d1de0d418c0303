"""Quantisation-aware training, from a factory and labelled data to a package."""

import json
import re
import sys

import numpy as np
import onnx
import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional

from sanderling.api import finetune_quantized, verify
from sanderling.model.package import Package
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
EPOCH_KEYS = {"loss", "held_out_loss", "held_out_percent", "seconds"}
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder with the networks' code, on the path."""
    folder = tmp_path_factory.mktemp("nets")
    (folder / "qat_nets.py").write_text(NETS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield folder
    sys.modules.pop("qat_nets", None)


@pytest.fixture(scope="module")
def net(folder):  # noqa: ARG001
    """``small``, trained for a moment, in eval mode."""
    import qat_nets

    torch.manual_seed(0)
    module = qat_nets.small().train()
    images, labels = map(torch.from_numpy, pictures(960, 1))
    optimizer = torch.optim.Adam(module.parameters(), 1e-2)
    for chosen in torch.arange(960).split(64) * 3:
        loss = functional.cross_entropy(module(images[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return module.eval()


@pytest.fixture(scope="module")
def weights(folder, net):
    save_file(net.state_dict(), folder / "small.safetensors")
    return folder / "small.safetensors"


@pytest.fixture(scope="module")
def data(folder):
    return write_pictures(folder / "train.npz", 480, 2)


@pytest.fixture(scope="module")
def options(folder, weights, data):
    """Arguments of a training of ``small``."""
    return {
        "data": data,
        "evaluation": write_pictures(folder / "eval.npz", 600, 3),
        "inputs": ["x=1,1,8,8"],
        "weights": weights,
        "epochs": 3,
        "batch": 32,
        "dynamic": ["batch"],
        "repeats": 3,
    }


@pytest.fixture(scope="module")
def trained(folder, options):
    return finetune_quantized("qat_nets:small", folder / "trained.sdl", **options)


def test_trained_package_verifies_and_is_as_good_as_fp32(trained):
    reference, int8 = trained.manifest.variants

    assert (reference.id, int8.id, int8.accuracy.metric) == ("fp32", "int8", "top1")
    assert reference.accuracy.value > 80
    assert int8.accuracy.drop < 1.5
    assert int8.accuracy.drop_upper > int8.accuracy.drop
    assert int8.float_nodes == ()
    assert verify(trained.path).passed


def test_best_epoch_on_held_out_training_data_is_kept_and_reported(trained):
    training = trained.evidence.finetuning

    assert (training.samples, training.held_out, len(training.epochs)) == (432, 48, 3)
    least = min(epoch.held_out_loss for epoch in training.epochs)
    assert training.epochs[training.kept - 1].held_out_loss == least
    assert trained.evidence.evaluation_data == "600 samples of eval.npz"
    assert "Training for INT8, 432 samples" in (trained.path / "report.html").read_text()


def test_batch_norm_is_folded_and_a_convolution_rounded_with_its_activation_once(trained):
    graph = onnx.load(trained.path / "model.int8.onnx").graph

    assert "BatchNormalization" not in {node.op_type for node in graph.node}
    readers = {name: node.op_type for node in graph.node for name in node.input}
    assert [readers[node.output[0]] for node in graph.node if node.op_type == "Conv"] == ["Clip", "Relu"]
    weight_types = {tensor.data_type for tensor in graph.initializer if len(tensor.dims) > 1}
    assert weight_types == {onnx.TensorProto.INT8}


def test_fp32_variant_is_the_module_before_training(trained, net):
    images = pictures(5, 8)[0]
    with torch.no_grad():
        expected = net(torch.from_numpy(images)).numpy()

    (got,) = run_directly(trained.path / "model.fp32.onnx", {"x": images}).values()
    np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)


def test_interrupted_training_leaves_nothing(sanderling_here, out, weights, data, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(torch.optim.AdamW, "step", interrupted)
    target = ("--data", data, "--weights", weights, "-o", out / "m.sdl")

    done = sanderling_here("finetune-quantized", "qat_nets:small", *target, *SHAPE, *QUICK, "--json")

    assert (done.code, list(out.iterdir())) == (130, [])
    assert done.answer["error"]["type"] == "Interrupted"


def test_command_prints_epochs_and_repeats_the_weights_of_the_same_seed(sanderling_here, trained, out, options):
    files = ("--data", options["data"], "--eval", options["evaluation"], "--weights", options["weights"])
    more = ("--epochs", "3", "--batch", "32", "--dynamic", "batch", "--repeats", "3", "-o", out / "m.sdl", "--json")

    done = sanderling_here("finetune-quantized", "qat_nets:small", *files, *SHAPE, *more)

    assert done.code == 0, done.stderr
    assert "train, epoch 1 of 3\n" in done.stderr
    assert re.search(r"train, epoch 2 of 3 \(epoch 1: loss \d\.\d+, [\d.]+ % right", done.stderr)
    assert [variant["id"] for variant in done.answer["variants"]] == ["fp32", "int8"]
    assert [epoch.keys() for epoch in done.answer["finetuning"]["epochs"]] == [EPOCH_KEYS] * 3
    evidence = json.loads((out / "m.sdl" / "evidence.json").read_text())
    assert evidence["finetuning"] == done.answer["finetuning"]
    again = Package.open(out / "m.sdl").manifest.files["model.int8.onnx"]
    assert again.sha256 == trained.manifest.files["model.int8.onnx"].sha256


# Refusals


@pytest.fixture
def refuses(refused_here, out, folder):  # noqa: ARG001
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
    refuses("small", "few.npz", says=["few.npz leaves 4 samples"])
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
    done = refuses(
        "small", data, "--lr", "1e30", "--batch", "32", says=["the loss ", "batch 2 of epoch 1", "row", "--lr"], code=1
    )

    assert done.answer["error"]["type"] == "NotMetError"


def test_missing_torchao_is_said_with_how_to_install_it(refused, data, out):
    options = ("--data", data, "-o", out / "m.sdl", *SHAPE)

    refused(
        "finetune-quantized",
        "qat_nets:small",
        *options,
        code=3,
        without=["torchao"],
        says=["torchao", "pip install 'sanderling[qat]'"],
    )

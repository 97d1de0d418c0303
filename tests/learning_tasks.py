"""A small task made by hand, whose gradients are known: a frozen layer, and a softmax on top of it that is trained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import helper
from safetensors.numpy import save_file

from sanderling.core.arrays import write_npz
from sanderling.core.precision import Precision
from sanderling.core.tensor import TensorSpec
from sanderling.model.learning import (
    FeatureCut,
    GoldenGradients,
    LearningSpec,
    LossSpec,
    OptimizerGraph,
    PrivateStep,
    TrainableParameter,
)
from sanderling.model.manifest import Golden, Manifest, Source, Variant
from sanderling.model.package import file_entries, write_manifest
from tests.models import make_model, tensor

WIDTH, HIDDEN, CLASSES = 6, 5, 3
SHAPES = {"fc.weight": (HIDDEN, CLASSES), "fc.bias": (CLASSES,)}
SETTINGS = {"adamw": {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01}, "sgd": {"momentum": 0.9}}
STATES = {"adamw": ("m", "v"), "sgd": ("velocity",)}


class Nodes:
    """Collects nodes, each with one output of its own."""

    def __init__(self):
        self.nodes, self.constants = [], {}

    def __call__(self, operator, *inputs, to="", **attributes):
        output = to or f"t{len(self.nodes)}"
        named = [each if isinstance(each, str) else self.constant(each) for each in inputs]
        self.nodes.append(helper.make_node(operator, named, [output], output, **attributes))
        return output

    def constant(self, value):
        array = np.asarray(value)
        name = f"c{len(self.constants)}"
        self.constants[name] = array.astype(np.int64 if array.dtype.kind == "i" else np.float32)
        return name


def weights(seed=0):
    """The frozen layer, and the first values of the parameters."""
    generator = np.random.default_rng(seed)
    frozen = generator.standard_normal((WIDTH, HIDDEN)).astype(np.float32)
    parameters = {name: 0.3 * generator.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
    return frozen, parameters


def dataset(count=90, seed=1, noise=0.3):
    """Samples ``x`` around a centre for each class, and their classes as ``label``."""
    generator = np.random.default_rng(seed)
    centres = np.random.default_rng(7).standard_normal((CLASSES, WIDTH))
    label = np.arange(count) % CLASSES
    x = (centres[label] + noise * generator.standard_normal((count, WIDTH))).astype(np.float32)
    return {"x": x, "label": label.astype(np.int64)}


def gradients(parameters, x, label, *, frozen=None):
    """Loss, weight and sums of gradients by the formula, in float64."""
    hidden = np.maximum(x.astype(np.float64) @ (weights()[0] if frozen is None else frozen), 0)
    scores = hidden @ parameters["fc.weight"] + parameters["fc.bias"]
    logits = scores - scores.max(1, keepdims=True)
    chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    loss = -np.log(chances[np.arange(len(label)), label]).mean()
    error = chances - np.eye(CLASSES)[label]
    return loss, float(len(label)), {"fc.weight": hidden.T @ error, "fc.bias": error.sum(0)}


def make_task(folder: Path, *, name="tiny", batch="batch", seed=0, wrong=False, notes=(), classes=CLASSES) -> Path:
    """Write the task; with ``wrong``, the gradients of its graph are too large by a tenth."""
    path = folder / f"{name}.sdl"
    learning = path / "learning"
    learning.mkdir(parents=True)
    frozen, parameters = weights(seed)
    graphs = {
        "grad_step": _step(batch, frozen, wrong=wrong),
        "dp_grad_step": _step(batch, frozen, private=True),
        "features": _features(batch, frozen),
        "head_grad_step": _step(batch, None),
        "head_dp_grad_step": _step(batch, None, private=True),
        "head_eval": _eval(batch, None),
        "eval": _eval(batch, frozen),
        "inference": _inference(batch, frozen),
        "adamw": _adamw(),
        "sgd": _sgd(),
    }
    for graph, model in graphs.items():
        (learning / f"{graph}.onnx").write_bytes(model.SerializeToString())
    plain = _inference(batch, frozen, parameters)
    (path / "fp32.onnx").write_bytes(plain.SerializeToString())
    save_file(parameters, learning / "parameters.safetensors")
    golden = dataset(4 if batch == "batch" else batch, seed=5)
    loss, weight, sums = gradients(parameters, golden["x"], golden["label"], frozen=frozen)
    save_file(
        {
            "input.x": golden["x"],
            "label": golden["label"],
            "loss": np.asarray(loss, np.float32),
            "weight": np.asarray(weight, np.float32),
            **{f"grad.{name}": each.astype(np.float32) for name, each in sums.items()},
        },
        learning / "golden.safetensors",
    )
    _write(path, name, batch, golden, parameters, frozen, notes, classes)
    return path


def _write(path, name, batch, golden, parameters, frozen, notes, classes):
    scores = np.maximum(golden["x"] @ frozen, 0) @ parameters["fc.weight"] + parameters["fc.bias"]
    write_npz(path / "golden.npz", {"input/x": golden["x"][None], "fp32/scores": scores.astype(np.float32)[None]})
    inputs = (TensorSpec(name="x", dtype="float32", shape=(batch, WIDTH)),)
    size = (path / "fp32.onnx").stat().st_size
    spec = LearningSpec(
        fingerprint=f"{int(np.abs(frozen).sum() * 1e6):064x}",
        inputs=inputs,
        label=TensorSpec(name="label", dtype="int64", shape=(batch,)),
        classes=classes,
        loss=LossSpec(kind="cross_entropy"),
        trainable="head",
        parameters=tuple(TrainableParameter(name=each, shape=shape) for each, shape in SHAPES.items()),
        initial="learning/parameters.safetensors",
        grad_step="learning/grad_step.onnx",
        eval="learning/eval.onnx",
        inference="learning/inference.onnx",
        model="fp32.onnx",
        optimizers=tuple(
            OptimizerGraph(kind=kind, file=f"learning/{kind}.onnx", states=STATES[kind], settings=SETTINGS[kind])
            for kind in SETTINGS
        ),
        private=PrivateStep(file="learning/dp_grad_step.onnx", route="expanded"),
        features=FeatureCut(
            tensors=(TensorSpec(name="hidden", dtype="float32", shape=(batch, HIDDEN)),),
            features="learning/features.onnx",
            grad_step="learning/head_grad_step.onnx",
            eval="learning/head_eval.onnx",
            private=PrivateStep(file="learning/head_dp_grad_step.onnx", route="expanded"),
            macs_share=0.6,
            bytes_per_sample=4 * HIDDEN,
        ),
        golden=GoldenGradients(file="learning/golden.safetensors", error=1e-7),
        notes=notes,
    )
    manifest = Manifest(
        name=name,
        source=Source(format="onnx", name="by hand"),
        inputs=inputs,
        outputs=(TensorSpec(name="scores", dtype="float32", shape=(batch, CLASSES)),),
        variants=(
            Variant(id="fp32", precision=Precision.FP32, file="fp32.onnx", size_bytes=size, engines=("onnxruntime",)),
        ),
        chosen="fp32",
        golden=Golden(file="golden.npz", samples=1, tolerance={"fp32": 1e-5}),
        learning=spec,
        files=file_entries(path),
    )
    write_manifest(path, manifest)


def _parameters():
    return [tensor(f"param.{name}", shape) for name, shape in SHAPES.items()]


def _forward(add, frozen):
    hidden = "hidden" if frozen is None else add("Relu", add("MatMul", "x", frozen))
    return hidden, add("Add", add("MatMul", hidden, "param.fc.weight"), "param.fc.bias")


def _inputs(batch, frozen):
    first = tensor("hidden", [batch, HIDDEN]) if frozen is None else tensor("x", [batch, WIDTH])
    return [first, tensor("label", [batch], "int64")]


def _loss(add, scores):
    """Loss of each sample, and the difference of chances and truth."""
    logs = add("LogSoftmax", scores, axis=-1)
    truth = add("OneHot", "label", np.array([CLASSES]), np.array([0.0, 1.0]), axis=-1)
    own = add("Neg", add("ReduceSum", add("Mul", logs, truth), np.array([1]), keepdims=0))
    return own, add("Sub", add("Softmax", scores, axis=-1), truth)


def _rows(add):
    """Number of samples, float32 of shape ()."""
    return add("Squeeze", _cast(add, add("Shape", "label")))


def _cast(add, value):
    output = f"t{len(add.nodes)}"
    add.nodes.append(helper.make_node("Cast", [value], [output], output, to=1))
    return output


def _step(batch, frozen, *, private=False, wrong=False):
    add = Nodes()
    hidden, scores = _forward(add, frozen)
    own, error = _loss(add, scores)
    inputs = [*_inputs(batch, frozen), *_parameters()]
    outputs = [tensor("loss", []), tensor("weight", [])]
    if private:
        squares = add("ReduceSum", add("Mul", error, error), np.array([1]), keepdims=1)
        inner = add("ReduceSum", add("Mul", hidden, hidden), np.array([1]), keepdims=1)
        norm = add("Sqrt", add("Mul", squares, add("Add", inner, np.float32(1.0))))
        add("Squeeze", norm, np.array([1]), to="grad_norm")
        share = add("Min", add("Div", "clip_norm", add("Add", norm, np.float32(1e-12))), np.float32(1.0))
        mask = add("Unsqueeze", "sample_mask", np.array([1]))
        error = add("Mul", error, add("Mul", share, mask))
        add("ReduceSum", "sample_mask", to="weight", keepdims=0)
        total = add("ReduceSum", add("Mul", own, "sample_mask"), keepdims=0)
        add("Div", total, "weight", to="loss")
        inputs += [tensor("sample_mask", [batch]), tensor("clip_norm", [])]
        outputs.append(tensor("grad_norm", [batch]))
    else:
        add("Identity", _rows(add), to="weight")
        add("ReduceMean", own, to="loss", keepdims=0)
    if wrong:
        error = add("Mul", error, np.float32(1.1))
    add("Add", "acc.fc.weight", add("MatMul", add("Transpose", hidden, perm=[1, 0]), error), to="acc.out.fc.weight")
    add("Add", "acc.fc.bias", add("ReduceSum", error, np.array([0]), keepdims=0), to="acc.out.fc.bias")
    inputs += [tensor(f"acc.{name}", shape) for name, shape in SHAPES.items()]
    outputs += [tensor(f"acc.out.{name}", shape) for name, shape in SHAPES.items()]
    return make_model(add.nodes, inputs, outputs, add.constants)


def _eval(batch, frozen):
    add = Nodes()
    _, scores = _forward(add, frozen)
    own, _ = _loss(add, scores)
    add("Identity", scores, to="output.scores")
    add("Identity", _rows(add), to="weight")
    add("ReduceMean", own, to="loss", keepdims=0)
    outputs = [tensor("loss", []), tensor("weight", []), tensor("output.scores", [batch, CLASSES])]
    return make_model(add.nodes, [*_inputs(batch, frozen), *_parameters()], outputs, add.constants)


def _inference(batch, frozen, parameters=None):
    add = Nodes()
    _, scores = _forward(add, frozen)
    add("Identity", scores, to="scores")
    constants = {**add.constants, **{f"param.{name}": each for name, each in (parameters or {}).items()}}
    inputs = [tensor("x", [batch, WIDTH]), *([] if parameters else _parameters())]
    return make_model(add.nodes, inputs, [tensor("scores", [batch, CLASSES])], constants)


def _features(batch, frozen):
    add = Nodes()
    add("Relu", add("MatMul", "x", frozen), to="hidden")
    return make_model(add.nodes, [tensor("x", [batch, WIDTH])], [tensor("hidden", [batch, HIDDEN])], add.constants)


def _optimizer(kind, rule):
    """``rule`` for the scaled gradients, on any piece of the parameters."""
    add = Nodes()
    rule(add, add("Mul", "grad", "grad_scale"))
    scalars = ["lr", "grad_scale", "step", *SETTINGS[kind]]
    inputs = [tensor(each, ["length"]) for each in ("param", "grad", *STATES[kind])]
    inputs += [tensor(each, []) for each in scalars]
    outputs = [tensor(f"{each}.out", ["length"]) for each in ("param", *STATES[kind])]
    return make_model(add.nodes, inputs, outputs, add.constants)


def _blend(add, old, new, beta, to):
    rest = add("Sub", np.float32(1.0), beta)
    return add("Add", add("Mul", old, beta), add("Mul", new, rest), to=to)


def _adamw():
    def rule(add, gradient):
        m = _blend(add, "m", gradient, "beta1", "m.out")
        v = _blend(add, "v", add("Mul", gradient, gradient), "beta2", "v.out")
        first, second = (
            add("Div", moment, add("Sub", np.float32(1.0), add("Pow", beta, "step")))
            for moment, beta in ((m, "beta1"), (v, "beta2"))
        )
        way = add("Div", first, add("Add", add("Sqrt", second), "eps"))
        way = add("Add", way, add("Mul", "param", "weight_decay"))
        add("Sub", "param", add("Mul", way, "lr"), to="param.out")

    return _optimizer("adamw", rule)


def _sgd():
    def rule(add, gradient):
        velocity = add("Add", add("Mul", "velocity", "momentum"), gradient, to="velocity.out")
        add("Sub", "param", add("Mul", velocity, "lr"), to="param.out")

    return _optimizer("sgd", rule)

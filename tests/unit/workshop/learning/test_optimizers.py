"""Update graphs against torch.optim."""

import numpy as np
import onnxruntime
import pytest
import torch

from sanderling.model.learning import TrainableParameter
from sanderling.workshop.learning.optimizers import SETTINGS, STATES, optimizer_graph

SHAPES = {"w": (4, 3), "b": (3,), "s": ()}


def trained(kind, settings, gradients, clip=np.inf, scale=1.0):
    """Parameters after one update for each set of gradients."""
    parameters = [TrainableParameter(name=name, shape=shape) for name, shape in SHAPES.items()]
    session = onnxruntime.InferenceSession(optimizer_graph(kind, parameters).SerializeToString())
    state = {f"param.{name}": value for name, value in first().items()}
    state |= {
        f"{prefix}.{name}": np.zeros(shape, np.float32) for prefix in STATES[kind] for name, shape in SHAPES.items()
    }
    for step, found in enumerate(gradients, start=1):
        scalars = {"lr": 0.05, "grad_scale": scale, "clip_norm": clip, "step": step, **SETTINGS[kind], **settings}
        feeds = {name: np.asarray(value, np.float32) for name, value in scalars.items()}
        feeds |= {f"grad.{name}": value for name, value in found.items()} | state
        names = [output.name for output in session.get_outputs()]
        results = dict(zip(names, session.run(None, feeds), strict=True))
        norm = results.pop("grad_norm")
        state = {name.replace(".out", "", 1): np.asarray(value) for name, value in results.items()}
    return {name: state[f"param.{name}"] for name in SHAPES}, float(norm)


def first():
    generator = np.random.default_rng(0)
    return {name: np.asarray(generator.standard_normal(shape), np.float32) for name, shape in SHAPES.items()}


def some_gradients(count=5):
    generator = np.random.default_rng(1)
    return [
        {name: np.asarray(generator.standard_normal(shape), np.float32) for name, shape in SHAPES.items()}
        for _ in range(count)
    ]


def by_torch(make, gradients, clip=None, scale=1.0):
    leaves = {name: torch.tensor(value, requires_grad=True) for name, value in first().items()}
    optimizer = make(list(leaves.values()))
    for found in gradients:
        for name, leaf in leaves.items():
            leaf.grad = torch.tensor(found[name]) * scale
        norm = torch.nn.utils.clip_grad_norm_(list(leaves.values()), clip if clip is not None else float("inf"))
        optimizer.step()
    return {name: leaf.detach().numpy() for name, leaf in leaves.items()}, float(norm)


def close(ours, theirs):
    return all(np.allclose(ours[name], theirs[name], rtol=0, atol=2e-6) for name in SHAPES)


@pytest.mark.parametrize("settings", [{}, {"weight_decay": 0.3, "beta1": 0.8, "beta2": 0.95, "eps": 1e-3}])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_adamw_is_pytorchs(settings, clip):
    def make(leaves):
        known = {**SETTINGS["adamw"], **settings}
        betas = (known["beta1"], known["beta2"])
        return torch.optim.AdamW(leaves, 0.05, betas, known["eps"], known["weight_decay"])

    ours, norm = trained("adamw", settings, some_gradients(), clip=clip or np.inf)
    theirs, other = by_torch(make, some_gradients(), clip)
    assert close(ours, theirs)
    assert np.isclose(norm, other)


def test_epsilon_of_adamw_is_kept():
    """With gradients near 1e-8 it halves the step; an exporter that drops it is off by a factor."""
    tiny = [{name: np.full(shape, 1e-8, np.float32) for name, shape in SHAPES.items()}]
    ours, _ = trained("adamw", {"weight_decay": 0.0}, tiny)
    moved = first()["b"] - ours["b"]
    assert np.allclose(moved, 0.025, rtol=1e-3)


@pytest.mark.parametrize(
    "settings",
    [{}, {"momentum": 0.0, "dampening": 0.5}, {"momentum": 0.8, "dampening": 0.3, "weight_decay": 0.1}],
)
def test_sgd_is_pytorchs(settings):
    known = {**SETTINGS["sgd"], **settings}
    ours, _ = trained("sgd", settings, some_gradients(), scale=0.25)
    theirs, _ = by_torch(lambda leaves: torch.optim.SGD(leaves, 0.05, **known), some_gradients(), scale=0.25)
    assert close(ours, theirs)

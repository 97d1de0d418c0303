"""Update graphs against torch.optim."""

import numpy as np
import pytest
import torch

from sanderling.learn.graphs import UpdateGraph, Vector
from sanderling.model.learning import OptimizerGraph, TrainableParameter
from sanderling.run.engines import engine
from sanderling.run.engines.base import EngineOptions
from sanderling.workshop.learning.optimizers import SETTINGS, STATES, optimizer_graph

SHAPES = {"w": (4, 3), "b": (3,), "s": ()}
PARAMETERS = tuple(TrainableParameter(name=name, shape=shape) for name, shape in SHAPES.items())


def trained(kind, settings, gradients, clip=np.inf, scale=1.0):
    """Parameters after one update for each set of gradients, and the last norm."""
    graph = OptimizerGraph(kind=kind, file="", states=STATES[kind], settings=SETTINGS[kind])
    executable = engine("onnxruntime").load(optimizer_graph(kind).SerializeToString(), EngineOptions(threads=1))
    update = UpdateGraph(graph, executable, {**graph.settings, **settings}, PARAMETERS)
    state = update.new_state(Vector(PARAMETERS, first()))
    for found in gradients:
        norm = update.update(state, Vector(PARAMETERS, found), rate=0.05, grad_scale=scale, clip_norm=clip)
    return state.parameters, norm


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


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_update_is_the_same_in_pieces_that_end_inside_a_parameter(kind, monkeypatch):
    whole, norm = trained(kind, {}, some_gradients(), clip=0.5)
    monkeypatch.setattr("sanderling.learn.graphs._PIECE", 5)
    pieces, other = trained(kind, {}, some_gradients(), clip=0.5)

    assert np.allclose(pieces.flat, whole.flat, rtol=0, atol=1e-6)
    assert np.isclose(norm, other)

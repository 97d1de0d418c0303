"""The same step by PyTorch: what is trained, forward, backward and AdamW, all eager."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from sanderling.core.tensor import Array
from sanderling.model.learning import LearningSpec


class LoraLinear(nn.Module):
    """A linear layer, frozen, with an adapter beside it."""

    def __init__(self, base: nn.Linear, rank: int, scale: float) -> None:
        super().__init__()
        self.base, self.scale = base, scale
        self.a = nn.Parameter(torch.randn(rank, base.in_features) * base.in_features**-0.5)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in) to (..., out)."""
        y: Tensor = self.base(x) + self.scale * functional.linear(functional.linear(x, self.a), self.b)
        return y


class LoraConv(nn.Module):
    """A convolution, frozen, with an adapter beside it: its own kernel with few channels, then one of 1×1."""

    def __init__(self, base: nn.Conv2d, rank: int, scale: float) -> None:
        super().__init__()
        self.base, self.scale = base, scale
        groups, inner = base.groups, base.in_channels // base.groups
        self.a = nn.Parameter(torch.randn(groups * rank, inner, *base.kernel_size) * 0.1)
        self.b = nn.Parameter(torch.zeros(base.out_channels, rank, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, in, H, W) to (N, out, H', W')."""
        base = self.base
        few = functional.conv2d(x, self.a, None, base.stride, base.padding, base.dilation, base.groups)
        y: Tensor = base(x) + self.scale * functional.conv2d(few, self.b, groups=base.groups)
        return y


def adapt(module: nn.Module, spec: LearningSpec) -> list[nn.Parameter]:
    """Freeze all but what a task trains, with adapters where the task has them; returns what is trained."""
    for parameter in module.parameters():
        parameter.requires_grad = False
    trained = []
    for adapter in spec.adapters:
        owner, _, name = adapter.layer.rpartition(".")
        parent = module.get_submodule(owner)
        base = module.get_submodule(adapter.layer)
        wrapped: LoraLinear | LoraConv
        if isinstance(base, nn.Linear):
            wrapped = LoraLinear(base, adapter.rank, adapter.scale)
        else:
            assert isinstance(base, nn.Conv2d)
            wrapped = LoraConv(base, adapter.rank, adapter.scale)
        parent._modules[name] = wrapped
        trained += [wrapped.a, wrapped.b]
    adapters = {name for adapter in spec.adapters for name in (adapter.a, adapter.b)}
    for entry in spec.parameters:
        if entry.name not in adapters:
            parameter = _parameter(module, entry.name)
            parameter.requires_grad = True
            trained.append(parameter)
    return trained


def eager_step(module: nn.Module, spec: LearningSpec, batch: Mapping[str, Array]) -> Callable[[], float]:
    """A call that makes one update, as ``Trainer.step`` does."""
    trained = adapt(module, spec)
    optimizer = torch.optim.AdamW(trained, lr=1e-3)
    inputs = [torch.from_numpy(batch[entry.name]) for entry in spec.inputs]
    label = torch.from_numpy(batch["label"])

    def step() -> float:
        logits = module(*inputs)
        if spec.loss.shift:
            loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), label[:, 1:].flatten())
        else:
            loss = functional.cross_entropy(logits, label)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        return float(loss.detach())

    return step


def _parameter(module: nn.Module, name: str) -> nn.Parameter:
    """A parameter by its name before adapters were put in."""
    owner, _, last = name.rpartition(".")
    found = module.get_submodule(owner)
    return (found.base if isinstance(found, LoraLinear | LoraConv) else found).get_parameter(last)

"""What needs PyTorch of a task: the forward pass as a graph, and the true gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

from sanderling.core.errors import ModelError, OptionError
from sanderling.core.tensor import Array
from sanderling.model.learning import Adapter, LossSpec
from sanderling.model.manifest import Source
from sanderling.workshop.export import torch_export, torch_source
from sanderling.workshop.export.torch_export import quiet
from sanderling.workshop.learning.losses import class_axis
from sanderling.workshop.options import BuildOptions

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Traced:
    """A module and its forward pass.

    Attributes:
        module: in eval mode.
        model: its graph; initialisers have the parameters' names.
        parameters: names of its float parameters; one that is shared counts once.
        aliases: other names of shared parameters, to the name that counts.
        free_batch: whether it takes any number of rows.
        untrained_rows: of embedding tables by name, the row of the padding, which has no gradient.
        notes: what was frozen or switched off.
    """

    module: nn.Module
    source: Source
    model: onnx.ModelProto
    parameters: tuple[str, ...]
    aliases: dict[str, str]
    free_batch: bool
    untrained_rows: dict[str, int]
    notes: tuple[str, ...]


def trace(options: BuildOptions) -> Traced:
    """Load the module and export its forward pass as it is.

    The exporter's rewriting is off: it folds weights, and lets small constants such as an epsilon vanish.

    Raises:
        OptionError: the source is none of a module, or an input is missing.
        ModelError: PyTorch cannot export it.
        WeightsError: the checkpoint does not fit.
    """
    module, source = torch_source.load_module(options, Path(options.source))
    if not isinstance(module, nn.Module):
        raise OptionError(
            f"'{options.source}' is an exported program: a task needs package.module:factory, or a pickled module"
        )
    module.eval()
    names = [name for name, value in module.named_parameters() if value.is_floating_point()]
    wrong = [
        name for name, value in module.named_parameters() if value.is_floating_point() and value.dtype != torch.float32
    ]
    if wrong:
        raise ModelError(f"parameter '{wrong[0]}' is not float32: a task is prepared from a float32 module")
    rows = {
        f"{path}.weight".lstrip("."): part.padding_idx
        for path, part in module.named_modules()
        if isinstance(part, nn.Embedding) and part.padding_idx is not None
    }
    aliases = _aliases(module)
    model = _with_one_name(torch_export.to_onnx(module, options, rewrite=False), aliases)
    return Traced(module, source, model, tuple(names), aliases, options.dynamic_batch, rows, _notes(module))


def _with_one_name(model: onnx.ModelProto, aliases: Mapping[str, str]) -> onnx.ModelProto:
    """A shared parameter under the name that counts, whichever the exporter chose; changed in place."""
    kept: dict[str, onnx.TensorProto] = {}
    for tensor in model.graph.initializer:
        tensor.name = aliases.get(tensor.name, tensor.name)
        kept.setdefault(tensor.name, tensor)
    if len(kept) < len(model.graph.initializer):
        copies = [onnx.TensorProto.FromString(tensor.SerializeToString()) for tensor in kept.values()]
        del model.graph.initializer[:]
        model.graph.initializer.extend(copies)
    for node in model.graph.node:
        for place, name in enumerate(node.input):
            if name in aliases:
                node.input[place] = aliases[name]
    return model


def _aliases(module: nn.Module) -> dict[str, str]:
    first: dict[int, str] = {}
    aliases = {}
    for name, value in module.named_parameters(remove_duplicate=False):
        aliases[name] = first.setdefault(id(value), name)
    return {name: own for name, own in aliases.items() if name != own}


def _notes(module: nn.Module) -> tuple[str, ...]:
    """What eval mode changed: said, so that nobody believes that it trains."""
    notes = []
    parts = list(module.modules())
    dropouts = sum(1 for part in parts if isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0)
    norms = sum(1 for part in parts if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.track_running_stats)
    if dropouts:
        notes.append(f"dropout is off while the device trains: {dropouts} layers")
    if norms:
        notes.append(f"batch normalisation keeps its running statistics as they are: {norms} layers")
    return tuple(notes)


@dataclass(frozen=True)
class Batch:
    """A batch of arrays, and labels."""

    inputs: dict[str, Array]
    label: Array


@dataclass(frozen=True)
class Reference:
    """What the true gradients are taken of.

    Attributes:
        traced: the module.
        loss: computed by torch.nn.functional, not by our nodes.
        adapters: folded into their weights before the forward pass.
        rounded: frozen weights that are computed with in the place of the module's own.
        dtype: that weights, inputs and everything between are computed in.
    """

    traced: Traced
    loss: LossSpec
    adapters: Sequence[Adapter] = ()
    rounded: Mapping[str, Array] = field(default_factory=dict)
    dtype: torch.dtype = torch.float64

    def alone(self, batch: Batch, row: int) -> Batch:
        """One sample as a batch; of a module whose batch is fixed, as often as it has rows."""
        count = 1 if self.free else len(batch.label)
        return Batch(
            {name: _again(array, row, count) for name, array in batch.inputs.items()}, batch.label[[row] * count]
        )

    def positions(self, batch: Batch) -> float:
        """By how much the gradient of a batch of one sample's sum is more than that of its own mean."""
        rows = len(batch.label)
        if self.loss.kind != "cross_entropy" or batch.label.ndim == 1:
            return float(rows)
        label = batch.label[:, 1:] if self.loss.shift else batch.label
        return float(max(1, int((label[0] != self.loss.ignore_index).sum())) * rows)

    def in_float32(self) -> Reference:
        """The same, as a device computes."""
        return replace(self, dtype=torch.float32)

    @property
    def free(self) -> bool:
        """Whether the module takes any number of rows."""
        return self.traced.free_batch


def _again(array: Array, row: int, count: int) -> Array:
    return np.ascontiguousarray(array[[row] * count])


def true_gradients(reference: Reference, batch: Batch, parameters: Mapping[str, Array]) -> dict[str, Array]:
    """PyTorch's own loss and gradients, by eager autograd; in float32 where the module is made for that alone.

    Args:
        reference: module, loss and adapters.
        batch: inputs in the order of ``forward()``.
        parameters: values to differentiate at; adapters' among them.

    Returns:
        float32: ``loss``, ``weight`` and for each parameter ``grad.NAME`` = weight · ∂loss/∂NAME.
    """
    try:
        return _gradients(reference, batch, parameters)
    except RuntimeError:  # its own constants meet no other dtype
        if reference.dtype == torch.float32:
            raise
        return _gradients(reference.in_float32(), batch, parameters)


def _gradients(reference: Reference, batch: Batch, parameters: Mapping[str, Array]) -> dict[str, Array]:
    arrays = {name: torch.from_numpy(np.array(array)) for name, array in parameters.items()}
    values = {name: value.to(reference.dtype).requires_grad_() for name, value in arrays.items()}
    total, weight = _loss_sum(reference, batch, values)
    gradients = torch.autograd.grad(total, list(values.values()), allow_unused=True)
    found = {
        f"grad.{name}": (torch.zeros_like(value) if gradient is None else gradient).detach().numpy()
        for (name, value), gradient in zip(values.items(), gradients, strict=True)
    }
    mean = total.detach() / weight if float(weight) else torch.zeros(())
    scalars = {"loss": mean.numpy().reshape(()), "weight": weight.numpy().reshape(())}
    return {name: array.astype(np.float32) for name, array in (scalars | found).items()}


def _loss_sum(reference: Reference, batch: Batch, values: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    module, dtype = reference.traced.module, reference.dtype
    own = {name: value.detach() for name, value in (*module.named_parameters(), *module.named_buffers())}
    own |= {name: torch.from_numpy(array) for name, array in reference.rounded.items()}
    state = {name: _as(value, dtype) for name, value in own.items()} | dict(values)
    for adapter in reference.adapters:
        weight = state[adapter.weight]
        change = _product(adapter, state.pop(adapter.a), state.pop(adapter.b), weight)
        state[adapter.weight] = weight + adapter.scale * change
    for alias, counted in reference.traced.aliases.items():
        state[alias] = state[counted]
    arguments = tuple(_as(torch.from_numpy(array), dtype) for array in batch.inputs.values())
    with quiet():
        returned = functional_call(module, state, arguments)
    leaves, _ = torch.utils._pytree.tree_flatten(returned)
    output = next(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
    return LOSSES[reference.loss.kind](reference.loss, output, _as(torch.from_numpy(batch.label), dtype))


def _as(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Floats in another width; integers and booleans stay."""
    return value.to(dtype) if value.is_floating_point() else value


def _product(adapter: Adapter, a: torch.Tensor, b: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """b · a in the shape of the weight, group by group."""
    groups = adapter.groups
    left = b.reshape(groups, -1, adapter.rank)
    right = a.reshape(groups, adapter.rank, -1)
    product = left @ right
    return product.reshape(weight.shape) if adapter.rows_are_outputs else product[0].T


def _cross_entropy(loss: LossSpec, output: torch.Tensor, label: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    axis = class_axis(tuple(output.shape))
    output = output.movedim(axis, -1)
    if loss.shift:
        output, label = output[:, :-1], label[:, 1:]
    output, label = output.reshape(-1, output.shape[-1]), label.reshape(-1)
    weights = torch.tensor(loss.class_weights, dtype=output.dtype) if loss.class_weights else None
    total = functional.cross_entropy(
        output,
        label,
        weights,
        reduction="sum",
        ignore_index=loss.ignore_index,
        label_smoothing=loss.label_smoothing,
    )
    counted = label[label != loss.ignore_index]
    weight = torch.tensor(float(len(counted))) if weights is None else weights[counted].sum()
    return total, weight


def _mean_times(
    function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> Callable[[LossSpec, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """PyTorch's mean over all elements, times the number of samples."""

    def total(loss: LossSpec, output: torch.Tensor, label: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: ARG001
        return function(output, label) * len(output), torch.tensor(float(len(output)))

    return total


def _cosine(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return (1 - functional.cosine_similarity(output, label, dim=1)).mean()


def _contrastive(loss: LossSpec, output: torch.Tensor, label: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample by sample, as equation 2 of Khosla et al. 2020 is written."""
    z = functional.normalize(output, dim=1)
    total, counted = output.new_zeros(()), 0
    for i in range(len(z)):
        others = [j for j in range(len(z)) if j != i]
        fellows = [j for j in others if label[j] == label[i]]
        if not fellows:
            continue
        near = z[others] @ z[i] / loss.temperature
        share = near - near.logsumexp(0)
        total = total - share[[others.index(j) for j in fellows]].mean()
        counted += 1
    return total, torch.tensor(float(counted))


LOSSES: dict[str, Callable[[LossSpec, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]] = {
    "cross_entropy": _cross_entropy,
    "mse": _mean_times(functional.mse_loss),
    "bce": _mean_times(functional.binary_cross_entropy_with_logits),
    "cosine": _mean_times(_cosine),
    "contrastive": _contrastive,
}

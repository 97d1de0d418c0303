"""Train a PyTorch module with rounding to eight bits in its forward pass, and export it as a QDQ graph.

Source: B. Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
Inference", CVPR 2018; torchao's PT2E quantisation.
"""

from __future__ import annotations

import copy
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor
from torch.nn import functional

from sanderling.core.errors import DataError, ModelError, NotMetError, OptionError, UnavailableError, first_line
from sanderling.core.files import cache_folder
from sanderling.core.machine import usable_cores
from sanderling.core.progress import Progress
from sanderling.measure.accuracy import classifier_classes
from sanderling.measure.samples import Samples, check_labels
from sanderling.model.cost import graph_cost
from sanderling.model.graph import input_specs, output_specs
from sanderling.workshop.evidence import Epoch, Finetuning
from sanderling.workshop.export import torch_export, torch_source
from sanderling.workshop.export.source import Exported
from sanderling.workshop.material import gather
from sanderling.workshop.options import BuildOptions, TrainingOptions

# Importing torchao makes this folder, in the temporary one unless it is told otherwise.
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder() / "inductor"))
try:
    with torch_export.quiet():
        from torchao.quantization.pt2e import (
            disable_observer,
            enable_observer,
        )
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_qat_pt2e

        from sanderling.workshop.quantize.qat_annotation import EightBitQuantizer, fold_norms
except ImportError as error:
    raise UnavailableError(
        f"quantisation-aware training needs torchao: pip install 'sanderling[qat]' ({first_line(error)})"
    ) from error

_CAPTURED_BATCH = 4
_LEAST_SAMPLES = 8
_HELD_OUT_SHARE = 0.1
_MOST_HELD_OUT = 2000
_RANGES_FROZEN_FROM = 2 / 3  # of all steps
_LARGEST_GRADIENT = 1.0
_ONE_THREAD_BELOW_MACS = 50_000_000  # smaller models' threads mostly wait for each other
_TOLERANCE = 5e-2


@dataclass(frozen=True)
class _Data:
    """Training samples and those held out of them to choose the best epoch."""

    training: Samples
    held_out: Samples

    @staticmethod
    def divide(samples: Samples, seed: int) -> _Data:
        order = np.random.default_rng(seed).permutation(len(samples))
        held_out = min(_MOST_HELD_OUT, max(1, round(len(samples) * _HELD_OUT_SHARE)))
        return _Data(samples.pick(np.sort(order[held_out:])), samples.pick(np.sort(order[:held_out])))


def train(options: BuildOptions, training: TrainingOptions, progress: Progress) -> Exported:
    """Load a module, export it as it is, train it in eight bits, and export it again.

    Raises:
        OptionError: the source is no factory, or an option it needs is missing.
        ModelError: the module cannot be exported, captured, or trained in eight bits.
        DataError: no labels, or data that does not fit.
        NotMetError: the loss is not finite.
    """
    if ":" not in options.source:
        raise OptionError(f"source '{options.source}' cannot be trained: expected package.module:factory and --weights")
    progress.stage("load PyTorch module")
    module, source = torch_source.load_module(options, Path(options.source))
    assert isinstance(module, torch.nn.Module)
    progress.stage("export to ONNX")
    reference = torch_export.to_onnx(module, options)
    progress.stage("compare ONNX with PyTorch")
    check = torch_export.compare(module, reference, options)
    material = gather(options, input_specs(reference), output_specs(reference), progress)
    assert material.calibration is not None
    _check_data(material.calibration, reference, options)
    data = _Data.divide(material.calibration, options.seed)
    threads = options.threads or (1 if graph_cost(reference).macs < _ONE_THREAD_BELOW_MACS else usable_cores())
    with _threads(threads):
        progress.stage("capture the module")
        prepared = _prepare(module, options)
        names = [spec.name for spec in options.inputs]
        epochs, kept = _Trainer(prepared, module, names, data, training, options.seed, progress).train()
        progress.stage("convert to INT8")
        model, error = _converted(prepared, options)
    record = Finetuning(
        samples=len(data.training),
        held_out=len(data.held_out),
        learning_rate=training.learning_rate,
        batch=training.batch,
        distillation=training.distillation,
        threads=threads,
        epochs=tuple(epochs),
        kept=kept,
        relative_error=error,
    )
    return Exported(model, source, check, reference=reference, material=material, finetuning=record)


def _check_data(samples: Samples, reference: onnx.ModelProto, options: BuildOptions) -> None:
    name = options.calibration.name if options.calibration else ""
    outputs = output_specs(reference)
    classes = classifier_classes(outputs)
    if classes is None:
        raise DataError(
            f"only classifiers can be trained: the outputs are {'; '.join(map(str, outputs))}, expected one float "
            "output of shape (N, classes)"
        )
    if samples.labels is None:
        raise DataError(
            f"{name} has no labels, which training needs: give an array 'labels' in the .npz, a folder for each class, "
            "or a CSV with a column 'label'"
        )
    if samples.whole:
        raise DataError(f"input '{min(samples.whole)}' has no batch axis: training needs one in every input")
    check_labels(samples, classes)
    if len(samples) < _LEAST_SAMPLES:
        raise DataError(
            f"{name} leaves {len(samples)} samples to train on: at least {_LEAST_SAMPLES} are needed, and thousands "
            "are better"
        )


def _prepare(module: torch.nn.Module, options: BuildOptions) -> torch.fx.GraphModule:
    """The module's graph with BatchNorm folded into convolutions and rounding wherever eight bits will be.

    Raises:
        ModelError: the module cannot be captured with a batch that changes, or nothing in it has an eight-bit form.
    """
    sized = tuple(spec.model_copy(update={"shape": (_CAPTURED_BATCH, *spec.shape[1:])}) for spec in options.inputs)
    arguments = tuple(torch_export.tensors(sized, None, options.seed))
    axis = torch.export.Dim("batch", min=1)
    try:
        with torch_export.quiet():
            program = torch.export.export(
                copy.deepcopy(module), arguments, dynamic_shapes=tuple({0: axis} for _ in arguments)
            )
            captured = program.module()
            fold_norms(captured)
            prepared: torch.fx.GraphModule = prepare_qat_pt2e(captured, EightBitQuantizer())
    except Exception as error:
        raise ModelError(
            f"the module cannot be captured for training: {type(error).__name__}: {first_line(error)}; look for "
            "branches on data and for a fixed batch size in forward()"
        ) from error
    if not any(
        isinstance(child, torch.nn.Module) and hasattr(child, "fake_quant_enabled") for child in prepared.modules()
    ):
        raise ModelError("the module has no convolution and no linear layer: there is nothing to train in eight bits")
    return prepared


def _converted(prepared: torch.fx.GraphModule, options: BuildOptions) -> tuple[onnx.ModelProto, float]:
    """The trained graph as ONNX with Q/DQ nodes, and its relative error against PyTorch's.

    Raises:
        ModelError: it cannot be converted or exported, or disagrees with PyTorch.
    """
    try:
        with torch_export.quiet():
            converted = convert_pt2e(prepared)
    except Exception as error:
        raise ModelError(
            f"the trained module cannot be converted: {type(error).__name__}: {first_line(error)}"
        ) from error
    model = torch_export.to_onnx(converted, options)
    return model, torch_export.compare(converted, model, options, tolerance=_TOLERANCE).relative_error


class _Trainer:
    """One training run."""

    def __init__(
        self,
        student: torch.fx.GraphModule,
        teacher: torch.nn.Module,
        inputs: list[str],
        data: _Data,
        options: TrainingOptions,
        seed: int,
        progress: Progress,
    ) -> None:
        self._student, self._teacher, self._inputs, self._data = student, teacher, inputs, data
        self._options, self._progress = options, progress
        self._generator = np.random.default_rng(seed)
        count = len(data.training)
        self._count = min(count, options.samples) if options.samples else count
        self._batches = math.ceil(self._count / options.batch)
        self._steps = options.epochs * self._batches
        self._ranges_frozen_from = int(_RANGES_FROZEN_FROM * self._steps)
        self._step = 0
        self._optimizer = torch.optim.AdamW(student.parameters(), options.learning_rate, weight_decay=0.0)
        self._schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self._optimizer, self._steps)

    def train(self) -> tuple[list[Epoch], int]:
        """Train, and leave the weights of the epoch that is best on the held-out samples in place.

        Raises:
            NotMetError: the loss is not finite.
        """
        epochs: list[Epoch] = []
        best: dict[str, Any] = {}
        kept, told = 0, ""
        for number in range(1, self._options.epochs + 1):
            self._progress.stage(f"train, epoch {number} of {self._options.epochs}{told}", self._batches)
            start = time.perf_counter()
            loss = self._epoch(number)
            percent, held_out_loss = self._judge()
            seconds = round(time.perf_counter() - start, 1)
            epochs.append(Epoch(loss=loss, held_out_loss=held_out_loss, held_out_percent=percent, seconds=seconds))
            told = f" (epoch {number}: loss {loss:.4f}, {percent:.2f} % right on held-out data)"
            if not best or held_out_loss < epochs[kept - 1].held_out_loss:
                best, kept = copy.deepcopy(self._student.state_dict()), number
        self._progress.stage(f"keep the weights of epoch {kept}{told}")
        self._student.load_state_dict(best)
        return epochs, kept

    def _epoch(self, number: int) -> float:
        self._student.apply(disable_observer if self._step >= self._ranges_frozen_from else enable_observer)
        order = self._generator.permutation(len(self._data.training))[: self._count]
        total = 0.0
        for batch in range(self._batches):
            if self._step == self._ranges_frozen_from:
                self._student.apply(disable_observer)
            rows = order[batch * self._options.batch : (batch + 1) * self._options.batch]
            where = f"batch {batch + 1} of epoch {number}"
            loss = self._finite_loss(self._data.training.pick(rows), where)
            self._optimizer.zero_grad()
            torch.autograd.backward(loss)
            torch.nn.utils.clip_grad_norm_(self._student.parameters(), _LARGEST_GRADIENT)
            self._optimizer.step()
            self._schedule.step()
            self._step += 1
            total += loss.item()
            self._progress.advance()
        return total / self._batches

    def _finite_loss(self, samples: Samples, where: str) -> Tensor:
        """The loss, or a clear end where training diverged."""
        try:
            loss = self._loss(samples)
            problem = "" if math.isfinite(loss.item()) else f"the loss is {loss.item()}"
        except RuntimeError as error:  # torchao cannot round what is not finite
            problem = f"the loss cannot be computed: {first_line(error)}"
        if problem:
            raise NotMetError(
                f"{problem}, in {where} (samples {', '.join(samples.names[:3])}, …): training diverged, and nothing is "
                f"written; give a smaller --lr than {self._options.learning_rate:g}"
            )
        return loss

    def _loss(self, samples: Samples) -> Tensor:
        inputs, labels = self._tensors(samples)
        scores = _scores(self._student(*inputs))
        share = self._options.distillation
        loss = (1 - share) * functional.cross_entropy(scores, labels)
        if share:
            with torch.no_grad():
                wanted = _scores(self._teacher(*inputs)).softmax(1)
            loss = loss + share * functional.kl_div(scores.log_softmax(1), wanted, reduction="batchmean")
        return loss

    @torch.no_grad()
    def _judge(self) -> tuple[float, float]:
        """Percent of right predictions, and the loss, on the held-out samples, which leave the ranges alone."""
        self._student.apply(disable_observer)
        right, loss = 0, 0.0
        for start in range(0, len(self._data.held_out), self._options.batch):
            rows = np.arange(start, min(start + self._options.batch, len(self._data.held_out)))
            samples = self._data.held_out.pick(rows)
            inputs, labels = self._tensors(samples)
            right += int((_scores(self._student(*inputs)).argmax(1) == labels).sum())
            loss += self._loss(samples).item() * len(rows)
        return 100.0 * right / len(self._data.held_out), loss / len(self._data.held_out)

    def _tensors(self, samples: Samples) -> tuple[list[Tensor], Tensor]:
        """Inputs in the order of the module's arguments, and int64 labels (N,)."""
        assert samples.labels is not None
        feeds = next(samples.batches(len(samples)))
        inputs = [torch.from_numpy(np.ascontiguousarray(feeds[name])) for name in self._inputs]
        return inputs, torch.from_numpy(samples.labels)


def _scores(outputs: Any) -> Tensor:  # noqa: ANN401 - whatever forward() returns
    """The one tensor among the outputs, float (N, classes)."""
    leaves, _ = torch.utils._pytree.tree_flatten(outputs)
    found: Tensor = next(leaf for leaf in leaves if isinstance(leaf, Tensor))
    return found


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)

"""What several targets need: golden vectors run by what was written, and graphs that an engine is asked about."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx

from sanderling.core.errors import EngineError, ModelError, OptionError
from sanderling.core.statistics import relative_error
from sanderling.core.tensor import Array, Feeds
from sanderling.measure.golden import Runs, wrong_outputs
from sanderling.measure.samples import Samples
from sanderling.model.graph import all_nodes, write_graph
from sanderling.model.package import GoldenVectors, Package
from sanderling.run.engines import engine
from sanderling.run.engines.base import EngineOptions
from sanderling.run.isolated import Worker
from sanderling.workshop.targets.base import Proof, Refusal

_LOAD_S = 600.0


def golden_proof(runs: Runs, package: Package, variant: str, *, on: str) -> Proof:
    """Run every golden input, and hold the outputs against the variant's own, as ``measure.golden`` does.

    Where they are further from them than the tolerance, and right because they are as close to FP32's, no limit is
    told: ``what`` says so.
    """
    golden, tolerance = package.golden(), package.manifest.golden.tolerance[variant]
    made = _Made([runs.run(golden.call(index)) for index in range(len(golden))])
    wrong = wrong_outputs(made, golden, variant, tolerance)
    error = _largest_error(made, golden, variant)
    what = f"{len(golden)} golden calls of variant '{variant}', relative error"
    if wrong is not None:
        return Proof(f"{what} ({wrong})", on, error, tolerance, passed=False)
    if error <= tolerance:
        return Proof(what, on, error, tolerance, passed=True)
    return Proof(f"{what} (as close to FP32 as the variant itself)", on, error, None, passed=True)


def agreement_proof(runs: Runs, reference: Runs, samples: Samples, limit: float, *, on: str) -> Proof:
    """Share of samples, in percent, whose first class is that of the reference.

    Raises:
        OptionError: the first output has no classes: it is not (rows, classes).
    """
    equal = []
    for feeds in samples.batches(1):
        expected = next(iter(reference.run(feeds).values()))
        if expected.ndim != 2:
            raise OptionError(f"no classes to compare: the first output has shape {list(expected.shape)}")
        got = next(iter(runs.run(feeds).values()))
        equal.append(np.array_equal(expected.argmax(axis=-1), got.argmax(axis=-1)))
    value = 100 * sum(equal) / len(equal)
    what = f"first class of {len(equal)} samples equal to ONNX Runtime's, percent"
    return Proof(what, on, value, limit, passed=value >= limit)


def engine_refusals(name: str, model: onnx.ModelProto, options: EngineOptions) -> tuple[Refusal, ...]:
    """Let an engine load the graph, in a process of its own, and say what it does not take.

    Raises:
        UnavailableError: the engine is not installed.
    """
    engine(name)
    with tempfile.TemporaryDirectory() as folder, Worker() as worker:
        file = Path(folder) / "model.onnx"
        write_graph(model, file)
        try:
            worker.load(name, file, options, timeout_s=_LOAD_S).close()
        except (ModelError, EngineError) as error:
            return (refusal_of(error, model, file),)
    return ()


def refusal_of(error: Exception, model: onnx.ModelProto, file: Path | None = None) -> Refusal:
    """A refusal in words, with the nodes of the operator that it names; ``file`` is what it calls the graph."""
    told = str(error).replace(str(file), "the graph") if file else str(error)
    words = set(re.findall(r"\w+", told))
    nodes = [node for node in all_nodes(model.graph) if node.op_type in words]
    named = [node for node in nodes if node.name and node.name in told] or nodes
    operators = sorted({node.op_type for node in named})
    names = tuple(node.name or node.output[0] for node in named)
    return Refusal(", ".join(operators) or "graph", names or (model.graph.name,), told)


class _Made:
    """Outputs that were computed before, given back in their order."""

    def __init__(self, outputs: list[dict[str, Array]]) -> None:
        self.outputs = outputs
        self._next = 0

    def run(self, feeds: Feeds) -> dict[str, Array]:  # noqa: ARG002 - the calls come in the same order
        self._next += 1
        return self.outputs[self._next - 1]


def _largest_error(made: _Made, golden: GoldenVectors, variant: str) -> float:
    expected: Mapping[str, Array] = golden.outputs[variant]
    return max(
        relative_error(array, np.stack([outputs[name] for outputs in made.outputs]))
        for name, array in expected.items()
        if all(name in outputs and outputs[name].shape == array.shape[1:] for outputs in made.outputs)
    )

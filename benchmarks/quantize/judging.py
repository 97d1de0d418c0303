"""What the product and its peer are judged by alike: the share of INT8, and agreement, also photo by photo."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from sanderling.core.progress import Silent
from sanderling.measure.accuracy import compare_outputs, evaluation_batch, judge
from sanderling.measure.latency import time_interleaved
from sanderling.measure.samples import SampleReader, Samples
from sanderling.model.cost import graph_cost
from sanderling.model.package import Package
from sanderling.run.engines import DEFAULT_ENGINE, engine
from sanderling.run.engines.base import EngineOptions, Executable
from sanderling.workshop.variants import float_nodes

_WARMUP, _REPEATS, _SECONDS = 10, 200, 20.0


def int8_share(path: Path) -> float:
    """Share of the multiply–accumulates whose node reads dequantised values and weights, in [0, 1]."""
    graph = onnx.load(path)
    cost = graph_cost(graph)
    floats = set(float_nodes(graph))
    return 1 - sum(node.macs for node in cost.nodes if node.name in floats) / cost.macs


def read_samples(package: Package, data: Path) -> Samples:
    """Samples as the package's preprocessing makes them."""
    manifest = package.manifest
    return SampleReader(manifest.inputs, manifest.preprocessing, None, Silent()).read(data)


def agreement(files: Mapping[str, Path], samples: Samples) -> dict[str, dict[str, Any]]:
    """Agreement of each graph with ``fp32``, one of them: as a whole with its bound, and photo by photo."""
    with _loaded(files) as loaded:
        reference = loaded["fp32"]
        records = compare_outputs(
            reference.run,
            {name: executable.run for name, executable in loaded.items()},
            samples,
            batch=evaluation_batch(reference.inputs),
            classify=True,
            progress=Silent(),
        )
    expected = records.pop("fp32")
    photos = [_photo(name) for name in samples.names]
    return {
        name: {
            **judge(record, expected, None, metric="agreement", seed=0).model_dump(),
            "photos": _by_photo(photos, record.predicted() == expected.predicted()),
        }
        for name, record in records.items()
    }


def latencies(files: Mapping[str, Path], samples: Samples, engine_name: str) -> dict[str, float]:
    """Median milliseconds of a call of each graph on an engine, one of each in turn."""
    feeds = samples.one(0)
    with _loaded(files, engine_name) as loaded:
        calls = {name: partial(executable.run, feeds) for name, executable in loaded.items()}
        timings = time_interleaved(calls, warmup=_WARMUP, repeats=_REPEATS, seconds=_SECONDS)
    return {name: timing.latency().p50 for name, timing in timings.items()}


def variant_files(package: Package) -> dict[str, Path]:
    """Path of each variant's graph."""
    return {variant.id: package.file(variant.file) for variant in package.manifest.variants}


@contextmanager
def _loaded(files: Mapping[str, Path], engine_name: str = DEFAULT_ENGINE) -> Iterator[dict[str, Executable]]:
    with ExitStack() as stack:
        loaded = {name: engine(engine_name).load(path, EngineOptions()) for name, path in files.items()}
        for executable in loaded.values():
            stack.callback(executable.close)
        yield loaded


def _photo(name: str) -> str:
    """Which photo a crop named ``0012-coffee.png`` is of."""
    return Path(name).stem.partition("-")[2]


def _by_photo(photos: list[str], agreed: np.ndarray) -> dict[str, float]:
    """Percent agreement on the crops of each photo."""
    counts = Counter(photos)
    right = Counter(photo for photo, same in zip(photos, agreed, strict=True) if same)
    return {photo: 100 * right[photo] / count for photo, count in sorted(counts.items())}

"""Time of an update: forward, backward and AdamW, by the task's graphs and by eager PyTorch in turn."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.learn.cases import DIALECT, FASHION, MINILM, RESNET, Case, prepare_case, random_batch
from benchmarks.learn.eager import eager_step
from sanderling.core.statistics import percentiles
from sanderling.learn import Trainer
from sanderling.measure.latency import time_interleaved

THREADS = 1
_CASES = (FASHION, RESNET, MINILM, DIALECT)
_REPEATS, _SECONDS = 40, 12.0


def measure(folder: Path) -> list[dict[str, Any]]:
    """Time both for each model and each way of training; the ratio is the median over pairs of neighbours."""
    rows = []
    for index, case in enumerate(_CASES):
        for kind, trainable in (("head", "head"), ("lora", case.lora), ("full", "full")):
            rows.append(measure_case(case, kind, trainable, folder / f"steps-{index}-{kind}.sdl"))
            print(f"{case.name}, {kind}: {rows[-1]['ratio']:.2f}", flush=True)
    return rows


def measure_case(case: Case, kind: str, trainable: str, package: Path) -> dict[str, Any]:
    """Time one task against PyTorch on the same batch."""
    torch.set_num_threads(THREADS)
    spec = prepare_case(case, trainable, package)
    batch = random_batch(spec, case.batch)
    eager = eager_step(case.factory(), spec, batch)
    with Trainer(package, threads=THREADS) as trainer:
        calls = {"sanderling": lambda: trainer.step(batch), "torch": eager}
        timings = time_interleaved(calls, warmup=2, repeats=_REPEATS, seconds=_SECONDS)
        processor_ms = {name: _processor_ms(call) for name, call in calls.items()}
    ours, theirs = (np.array(timings[name].samples_ms) for name in ("sanderling", "torch"))
    return {
        "model": case.name,
        "trainable": kind,
        "batch": case.batch,
        "threads": THREADS,
        "repeats": len(ours),
        "sanderling_ms": percentiles(ours),
        "torch_ms": percentiles(theirs),
        "ratio": float(np.median(ours / theirs)),
        "processor_ms": processor_ms,
    }


def _processor_ms(call: Any, repeats: int = 8) -> float:  # noqa: ANN401 - any call
    """Median processor time of a call, which other programs on the machine change less."""
    spent = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        spent.append(1e3 * (time.process_time() - start))
    return float(np.median(spent))

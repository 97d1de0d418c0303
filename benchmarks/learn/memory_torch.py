"""The same steps by PyTorch, in its own process: ``python -m benchmarks.learn.memory_torch train TASK ROWS STEPS``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from benchmarks.learn.cases import MINILM, random_batch
from benchmarks.learn.eager import eager_step
from benchmarks.learn.memory_device import peak_bytes
from sanderling.model.learning import LearningSpec


def main() -> None:
    """Do the steps, and print the peak."""
    package, rows, steps = Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(1)
    manifest = json.loads((package / "manifest.json").read_text("utf-8"))
    spec = LearningSpec.model_validate(manifest["learning"])
    step = eager_step(MINILM.factory(), spec, random_batch(spec, rows))
    for _ in range(steps):
        step()
    print(json.dumps({"peak_bytes": peak_bytes()}))


if __name__ == "__main__":
    main()

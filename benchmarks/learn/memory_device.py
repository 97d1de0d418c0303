"""A process as a device has it: ``python -m benchmarks.learn.memory_device infer|train|features TASK ROWS STEPS``.

It imports no PyTorch, which it proves at its end.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from sanderling.core.tensor import random_feeds
from sanderling.learn import Trainer
from sanderling.learn.task import open_task


def main() -> None:
    """Do the steps, and print the peak."""
    role, package, rows, steps = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    if role == "infer":
        _infer(package, rows, steps)
    else:
        _train(package, rows, steps, on_features=role == "features")
    assert "torch" not in sys.modules
    print(json.dumps({"peak_bytes": peak_bytes()}))


def peak_bytes() -> int:
    """Most memory that this program was resident with; ``ru_maxrss`` begins with what its starter had."""
    status = Path("/proc/self/status").read_text("ascii").splitlines()
    return int(next(line for line in status if line.startswith("VmHWM")).split()[1]) << 10


def _infer(package: Path, rows: int, steps: int) -> None:
    task = open_task(package, engine_name="onnxruntime", threads=1)
    executable = task.load(task.package.manifest.variants[0].file)
    feeds = random_feeds(task.package.manifest.inputs, batch=rows)
    for _ in range(steps):
        executable.run(feeds)
    executable.close()


def _train(package: Path, rows: int, steps: int, *, on_features: bool) -> None:
    with Trainer(package, threads=1, on_features=on_features) as trainer:
        batch = random_feeds(trainer.task.inputs, batch=rows)
        batch["label"] = np.zeros((rows,), np.int64)
        for _ in range(steps):
            trainer.step(batch)


if __name__ == "__main__":
    main()

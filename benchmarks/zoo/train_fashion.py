"""Trains the two Fashion-MNIST networks on one CPU thread and records how well they do.

Run from the repository root::

    python -m benchmarks.zoo.train_fashion [--net cnn|depthwise|all] [--epochs N] [--seed 0]
"""

import argparse
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.zoo.fashion import fashion_cnn, fashion_depthwise
from benchmarks.zoo.fashion_data import load_fashion_mnist, normalize
from benchmarks.zoo.training import TrainingRecord, parameter_groups, write_record, write_weights

NETS: dict[str, Callable[[], nn.Module]] = {"cnn": fashion_cnn, "depthwise": fashion_depthwise}
EPOCHS = {"cnn": 18, "depthwise": 10}  # six to nine minutes each on one thread
BATCH_SIZE = 128
MAX_LEARNING_RATE = 5e-3
WEIGHT_DECAY = 0.05
MAX_SHIFT_PX = 2

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class FashionRecord(TrainingRecord):
    """What ``weights/training.json`` says about one network."""

    test_accuracy: float
    test_images: int


def main() -> None:
    """Train the networks named on the command line and write ``weights/``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo.train_fashion", description=__doc__)
    parser.add_argument("--net", choices=[*NETS, "all"], default="all")
    parser.add_argument("--epochs", type=int, help=f"default: {EPOCHS}")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in NETS if arguments.net == "all" else [arguments.net]:
        record = train_and_save(name, epochs=arguments.epochs or EPOCHS[name], seed=arguments.seed)
        print(f"{name}: test accuracy {record.test_accuracy:.2%} after {record.seconds:.0f} s")


def train_and_save(name: str, *, epochs: int, seed: int) -> FashionRecord:
    """Train one network, write its safetensors file and its entry in ``training.json``.

    Args:
        name: a key of ``NETS``.
        epochs: passes over the 60,000 training images.
        seed: of weights, order and augmentation.
    """
    started_s = time.perf_counter()
    torch.manual_seed(seed)
    model = NETS[name]()
    train(model, *load_fashion_mnist("train"), epochs=epochs, seed=seed)
    test_images, test_labels = load_fashion_mnist("t10k")
    record = FashionRecord(
        test_accuracy=measure_accuracy(model, test_images, test_labels),
        test_images=len(test_images),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        epochs=epochs,
        seed=seed,
        threads=torch.get_num_threads(),
        torch_version=torch.__version__,
        seconds=round(time.perf_counter() - started_s, 1),
        command=f"python -m benchmarks.zoo.train_fashion --net {name} --epochs {epochs} --seed {seed}",
    )
    write_weights(f"fashion_{name}", model.state_dict())
    write_record(f"fashion_{name}", record)
    return record


def train(model: nn.Module, images: Images, labels: Labels, *, epochs: int, seed: int) -> None:
    """Train in place with AdamW on a one-cycle schedule; leaves ``model`` in eval mode.

    Args:
        model: maps float32 (N, 1, 28, 28) to logits (N, 10).
        images: uint8, shape (N, 28, 28).
        labels: int64, shape (N,).
        epochs: passes over ``images``.
        seed: of order and augmentation.
    """
    generator = np.random.default_rng(seed)
    model.train()
    optimizer = torch.optim.AdamW(parameter_groups(model, WEIGHT_DECAY))
    steps = math.ceil(len(images) / BATCH_SIZE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, MAX_LEARNING_RATE, epochs=epochs, steps_per_epoch=steps)
    for epoch in range(epochs):
        started_s = time.perf_counter()
        losses = []
        for inputs, targets in _batches(images, labels, generator):
            loss = functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        seconds = time.perf_counter() - started_s
        print(f"epoch {epoch + 1}/{epochs}: loss {np.mean(losses):.4f}, {seconds:.0f} s", flush=True)
    model.eval()


@torch.no_grad()
def measure_accuracy(model: nn.Module, images: Images, labels: Labels) -> float:
    """Compute the share of images whose largest logit is at their label.

    Args:
        model: in eval mode.
        images: uint8, shape (N, 28, 28).
        labels: int64, shape (N,).
    """
    correct = 0
    for start in range(0, len(images), 1000):
        logits: Tensor = model(torch.from_numpy(normalize(images[start : start + 1000])))
        correct += int((logits.argmax(1).numpy() == labels[start : start + 1000]).sum())
    return correct / len(images)


def augment(images: Images, generator: np.random.Generator) -> Images:
    """Mirror half of the images and shift each by up to 2 pixels; uint8 (N, 28, 28) both ways."""
    count, height, width = images.shape
    padded = np.pad(images, ((0, 0), (MAX_SHIFT_PX, MAX_SHIFT_PX), (MAX_SHIFT_PX, MAX_SHIFT_PX)))
    shifts = generator.integers(0, 2 * MAX_SHIFT_PX + 1, (2, count, 1))
    rows = shifts[0] + np.arange(height)  # (N, 28)
    columns = shifts[1] + np.arange(width)
    mirrored = generator.random(count) < 0.5
    columns[mirrored] = columns[mirrored, ::-1]
    shifted: Images = padded[np.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]
    return shifted


def _batches(images: Images, labels: Labels, generator: np.random.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    order = generator.permutation(len(images))
    for start in range(0, len(order), BATCH_SIZE):
        chosen = order[start : start + BATCH_SIZE]
        inputs = torch.from_numpy(normalize(augment(images[chosen], generator)))
        # Twice as fast on CPU, and the layout spreads from here. `contiguous` would leave the strides
        # of one-channel images as they are.
        yield inputs.to(memory_format=torch.channels_last), torch.from_numpy(labels[chosen])


if __name__ == "__main__":
    main()

"""Trains the network for easy-VQA on one CPU thread and records how well it does.

Run from the repository root::

    python -m benchmarks.zoo.train_vqa [--epochs N] [--seed 0] [--resume]

Colours are learned first, shapes late and all at once: the loss stays above 0.25 until about the twelfth pass.
"""

import argparse
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from benchmarks.zoo.easy_vqa_data import Questions, normalize, read_questions
from benchmarks.zoo.training import TrainingRecord, parameter_groups, read_records, write_record, write_weights
from benchmarks.zoo.vqa import WEIGHTS, VqaNet, vqa_net

EPOCHS = 30  # six to eight minutes on one thread
PICTURES_A_BATCH = 64
MAX_LEARNING_RATE = 3e-3
WEIGHT_DECAY = 0.02
MAX_SHIFT_PX = 4


@dataclass(frozen=True, kw_only=True)
class VqaRecord(TrainingRecord):
    """What ``weights/training.json`` says about the network."""

    test_accuracy: float
    test_questions: int


def main() -> None:
    """Train and write ``weights/``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo.train_vqa", description=__doc__)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", action="store_true", help="Go on from the weights that are there.")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    record = train_and_save(epochs=arguments.epochs, seed=arguments.seed, resume=arguments.resume)
    print(f"vqa: test accuracy {record.test_accuracy:.2%} after {record.seconds:.0f} s")


def train_and_save(*, epochs: int, seed: int, resume: bool = False) -> VqaRecord:
    """Train, write the safetensors file and the entry in ``training.json``.

    Args:
        epochs: passes over the 4,000 training pictures, each with all of its questions.
        seed: of weights, order and augmentation.
        resume: go on from the weights that are there; the record counts both.
    """
    started_s = time.perf_counter()
    torch.manual_seed(seed)
    model = vqa_net()
    before = read_records()[WEIGHTS.stem] if resume else None
    if before is not None:
        model.load_state_dict(load_file(WEIGHTS))
    command = f"python -m benchmarks.zoo.train_vqa --epochs {epochs} --seed {seed}{' --resume' if resume else ''}"
    train(model, read_questions("train"), epochs=epochs, seed=seed)
    test = read_questions("test")
    record = VqaRecord(
        test_accuracy=measure_accuracy(model, test),
        test_questions=len(test.texts),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        epochs=epochs + (before["epochs"] if before else 0),
        seed=seed,
        threads=torch.get_num_threads(),
        torch_version=torch.__version__,
        seconds=round(time.perf_counter() - started_s + (before["seconds"] if before else 0.0), 1),
        command=f"{before['command']} && {command}" if before else command,
    )
    write_weights(WEIGHTS.stem, model.state_dict())
    write_record(WEIGHTS.stem, record)
    return record


def train(model: VqaNet, data: Questions, *, epochs: int, seed: int) -> None:
    """Train in place with AdamW on a one-cycle schedule; leaves ``model`` in eval mode.

    A picture's features are computed once for all of its questions.
    """
    generator = np.random.default_rng(seed)
    model.train()
    optimizer = torch.optim.AdamW(parameter_groups(model, WEIGHT_DECAY))
    steps = math.ceil(len(data.images) / PICTURES_A_BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, MAX_LEARNING_RATE, epochs=epochs, steps_per_epoch=steps)
    for epoch in range(epochs):
        started_s, losses = time.perf_counter(), []
        for pixels, ids, owners, targets in _batches(data, generator):
            scores = model.fusion(model.vision(pixels)[owners], model.text(ids))
            loss = functional.cross_entropy(scores, targets)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        seconds = time.perf_counter() - started_s
        print(f"epoch {epoch + 1}/{epochs}: loss {np.mean(losses):.4f}, {seconds:.0f} s", flush=True)
    model.eval()


@torch.no_grad()
def measure_accuracy(model: VqaNet, data: Questions) -> float:
    """Compute the share of questions whose largest score is that of their answer; ``model`` is in eval mode."""
    parts = [model.vision(torch.from_numpy(normalize(rows))) for rows in np.array_split(data.images, 10)]
    scores = model.fusion(torch.cat(parts)[torch.from_numpy(data.pictures)], model.text(torch.from_numpy(data.ids)))
    return float((scores.argmax(1).numpy() == data.answers).mean())


def augment(images: NDArray[np.uint8], generator: np.random.Generator) -> NDArray[np.uint8]:
    """Mirror, turn upside down and shift by up to 4 pixels, edges repeated: all shapes stay what they are."""
    count, height, width, _ = images.shape
    pad = (MAX_SHIFT_PX, MAX_SHIFT_PX)
    padded = np.pad(images, ((0, 0), pad, pad, (0, 0)), mode="edge")
    shifts = generator.integers(0, 2 * MAX_SHIFT_PX + 1, (2, count, 1))
    rows, columns = shifts[0] + np.arange(height), shifts[1] + np.arange(width)
    for axis in (rows, columns):
        turned = generator.random(count) < 0.5
        axis[turned] = axis[turned, ::-1]
    shifted: NDArray[np.uint8] = padded[np.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]
    return shifted


def _batches(data: Questions, generator: np.random.Generator) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Pixels, and the questions about them: ids, which picture of the batch each is about, answers."""
    order = generator.permutation(len(data.images))
    for start in range(0, len(order), PICTURES_A_BATCH):
        chosen = order[start : start + PICTURES_A_BATCH]
        places = np.full(len(data.images), -1)
        places[chosen] = np.arange(len(chosen))
        asked = np.flatnonzero(places[data.pictures] >= 0)
        pixels = torch.from_numpy(normalize(augment(data.images[chosen], generator)))
        yield (
            pixels.to(memory_format=torch.channels_last),
            torch.from_numpy(data.ids[asked]),
            torch.from_numpy(places[data.pictures[asked]]),
            torch.from_numpy(data.answers[asked]),
        )


if __name__ == "__main__":
    main()

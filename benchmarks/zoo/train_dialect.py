"""Trains the network for spoken words on American English alone, and records how well it does in four accents.

Run from the repository root; needs Debian's ``espeak-ng`` and PyPI's ``scipy``::

    python -m benchmarks.zoo.train_dialect [--epochs N] [--seed 0]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.zoo.dialect import MELS, Dialect
from benchmarks.zoo.dialect_data import (
    ACCENTS,
    SOURCE_ACCENT,
    TEST_VOICES,
    TRAINING_VOICES,
    Recordings,
    record,
    speak,
    utterances,
    with_noise,
)
from benchmarks.zoo.training import TrainingRecord, write_record, write_weights

EPOCHS = 16
PER_WORD = 5  # utterances of each voice
TEST_PER_WORD = 2
_BATCH = 64
_TEST_SEED = 1_000
_MAX_LEARNING_RATE = 6e-3
_WEIGHT_DECAY = 0.02
_SMOOTHING = 0.05
_NOISES = 3  # in which each utterance is heard
_STRETCHES = tuple(np.linspace(0.86, 1.16, 13).tolist())
_WIDEST_MASK = 6  # bands, and twice as many steps of time

Spectrograms = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class DialectRecord(TrainingRecord):
    """What ``weights/training.json`` says about the network."""

    test_accuracy: dict[str, float]
    test_utterances: int
    training_utterances: int


def main() -> None:
    """Train, and write ``weights/``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo.train_dialect", description=__doc__)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    started_s = time.perf_counter()
    torch.manual_seed(arguments.seed)
    generator = np.random.default_rng(arguments.seed)
    model = Dialect()
    said = utterances(SOURCE_ACCENT, TRAINING_VOICES, PER_WORD, generator)
    spectrograms = spectrograms_in_noise(model, speak(said), generator)
    labels = np.array([one.label for one in said], np.int64)
    train(model, spectrograms, labels, epochs=arguments.epochs, generator=generator)
    tests = {accent: sounds_of_test(accent) for accent in ACCENTS}
    accuracy = {accent: measure_accuracy(model, recordings) for accent, recordings in tests.items()}
    found = DialectRecord(
        test_accuracy=accuracy,
        test_utterances=len(tests[SOURCE_ACCENT].labels),
        training_utterances=len(said),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        epochs=arguments.epochs,
        seed=arguments.seed,
        threads=torch.get_num_threads(),
        torch_version=torch.__version__,
        seconds=round(time.perf_counter() - started_s, 1),
        command=f"python -m benchmarks.zoo.train_dialect --epochs {arguments.epochs} --seed {arguments.seed}",
    )
    write_weights("dialect", model.state_dict())
    write_record("dialect", found)
    print(json.dumps(accuracy))


@torch.no_grad()
def spectrograms_in_noise(
    model: Dialect, spoken: Sequence[NDArray[np.float32]], generator: np.random.Generator
) -> Spectrograms:
    """Each word in three noises, as the network's own first layer hears it: float32 (3, n, 40, 98)."""
    found = []
    for _ in range(_NOISES):
        parts = []
        for start in range(0, len(spoken), _BATCH):
            sounds = np.stack([with_noise(word, generator) for word in spoken[start : start + _BATCH]])
            parts.append(model.spectrogram(torch.from_numpy(sounds))[:, 0].numpy())
        found.append(np.concatenate(parts))
    return np.stack(found)


def sounds_of_test(accent: str) -> Recordings:
    """What voices say that the network was not trained on."""
    generator = np.random.default_rng(_TEST_SEED)
    return record(utterances(accent, TEST_VOICES, TEST_PER_WORD, generator), generator)


def train(
    model: Dialect,
    spectrograms: Spectrograms,
    labels: NDArray[np.int64],
    *,
    epochs: int,
    generator: np.random.Generator,
) -> None:
    """Train in place with AdamW on a one-cycle schedule; leaves ``model`` in eval mode.

    Args:
        model: to be trained.
        spectrograms: float32, shape (noises, n, 40, 98).
        labels: int64, shape (n,).
        epochs: passes over the utterances.
        generator: of order and augmentation.
    """
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=_WEIGHT_DECAY)
    steps = epochs * (len(labels) // _BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _MAX_LEARNING_RATE, total_steps=steps)
    warps = warp_matrices()
    for epoch in range(epochs):
        started_s, losses = time.perf_counter(), []
        order = generator.permutation(len(labels))
        for start in range(0, len(order) - _BATCH + 1, _BATCH):
            chosen = order[start : start + _BATCH]
            batch = spectrograms[generator.integers(0, len(spectrograms), len(chosen)), chosen]
            logits = model.classify(torch.from_numpy(augment(batch, warps, generator)[:, None]))
            loss = functional.cross_entropy(logits, torch.from_numpy(labels[chosen]), label_smoothing=_SMOOTHING)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        print(f"epoch {epoch + 1}/{epochs}: {np.mean(losses):.4f}, {time.perf_counter() - started_s:.1f} s", flush=True)
    model.eval()


def augment(batch: Spectrograms, warps: Spectrograms, generator: np.random.Generator) -> Spectrograms:
    """Stretch frequencies as a longer or shorter throat does, and silence a band and a moment.

    Source: Jaitly and Hinton 2013 (vocal tract length perturbation); Park et al. 2019 (SpecAugment).
    """
    warped: Spectrograms = warps[generator.integers(0, len(warps), len(batch))] @ batch
    for one in warped:
        band, moment = generator.integers(0, _WIDEST_MASK + 1), generator.integers(0, 2 * _WIDEST_MASK + 1)
        low, first = generator.integers(0, MELS - band + 1), generator.integers(0, one.shape[1] - moment + 1)
        one[low : low + band] = 0
        one[:, first : first + moment] = 0
    return warped


@torch.no_grad()
def measure_accuracy(model: nn.Module, recordings: Recordings) -> float:
    """Share of the sounds whose largest logit is at their label."""
    right = 0
    for start in range(0, len(recordings.labels), _BATCH):
        logits: Tensor = model(torch.from_numpy(recordings.sounds[start : start + _BATCH]))
        right += int((logits.argmax(1).numpy() == recordings.labels[start : start + _BATCH]).sum())
    return right / len(recordings.labels)


def warp_matrices(stretches: Sequence[float] = _STRETCHES) -> Spectrograms:
    """A matrix (40, 40) for each stretch, that reads band b at b · stretch, between its neighbours."""
    bands = np.arange(MELS)
    matrices = np.zeros((len(stretches), MELS, MELS), np.float32)
    for matrix, stretch in zip(matrices, stretches, strict=True):
        places = np.clip(bands * stretch, 0, MELS - 1)
        low = np.floor(places).astype(int)
        matrix[bands, low] = 1 - (places - low)
        matrix[bands, np.minimum(low + 1, MELS - 1)] += places - low
    return matrices


if __name__ == "__main__":
    main()

"""Which samples are in the next batch: shuffled epochs that can be taken up anywhere, and Poisson sampling."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sanderling.core.errors import OptionError

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Position:
    """How far training has come in its data: ``batch`` micro-batches of ``epoch`` are done."""

    epoch: int = 0
    batch: int = 0


def epoch_order(count: int, *, seed: int, epoch: int) -> Indices:
    """The order of an epoch: a permutation that depends on nothing but its arguments, so that none is ever stored.

    Args:
        count: of samples.
        seed: of the training.
        epoch: from 0.

    Returns:
        int64, shape (count,).
    """
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, epoch))))
    return generator.permutation(count).astype(np.int64)


def micro_batches(order: Indices, size: int, *, is_fixed: bool) -> list[Indices]:
    """Cut an epoch's order into micro-batches.

    Args:
        order: of the epoch.
        size: of a micro-batch, above 0.
        is_fixed: whether the graph takes only whole ones: the last, shorter one is left out then, in every epoch other
            samples.
    """
    cut = [order[start : start + size] for start in range(0, len(order), size)]
    return cut[:-1] if is_fixed and cut and len(cut[-1]) < size else cut


def poisson_sample(count: int, probability: float) -> Indices:
    """Take each sample by itself with the same probability, by the random numbers of the operating system.

    Privacy amplification by sampling holds for this sampling, not for shuffled epochs.

    Args:
        count: of samples.
        probability: in (0, 1].

    Returns:
        int64, ascending; it may be empty.

    Source: Abadi et al., Deep Learning with Differential Privacy (CCS 2016), section 3.
    """
    if not 0 < probability <= 1:
        raise OptionError(f"a sampling probability is {probability:g}: expected more than 0 and at most 1")
    drawn = np.frombuffer(os.urandom(8 * count), np.uint64) >> np.uint64(11)  # 53 bits, which float64 holds exactly
    return np.flatnonzero(drawn.astype(np.float64) < probability * 2.0**53).astype(np.int64)


def padded(indices: Indices, size: int) -> Iterator[tuple[Indices, npt.NDArray[np.float32]]]:
    """Cut into pieces of exactly ``size``, with a mask that is 0 where a piece is filled up.

    Yields:
        Indices, int64 of shape (size,), and the mask, float32 of the same shape.
    """
    for start in range(0, len(indices), size):
        piece = indices[start : start + size]
        mask = np.zeros(size, np.float32)
        mask[: len(piece)] = 1.0
        yield np.concatenate([piece, np.zeros(size - len(piece), np.int64)]), mask

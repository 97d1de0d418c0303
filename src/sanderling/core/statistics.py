"""Percentiles, distances between outputs, and confidence bounds on a drop in accuracy."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sanderling.core.tensor import Array

CONFIDENCE = 0.95
SQNR_CAP_DB = 200.0
_ROUNDING = 5e-7
_BOOTSTRAP_REPEATS = 20_000
_MEAN_REPEATS = 2_000
_BLOCK_ELEMENTS = 1 << 20


def percentiles(values: Sequence[float] | Array) -> dict[str, float]:
    """Return ``{"p50", "p95", "p99", "min", "mean"}`` of ``values`` (at least one), in their unit."""
    array = np.asarray(values, dtype=np.float64)
    p50, p95, p99 = np.percentile(array, [50, 95, 99])
    return {
        "p50": float(p50),
        "p95": float(p95),
        "p99": float(p99),
        "min": float(array.min()),
        "mean": float(array.mean()),
    }


def sqnr_db(signal: float, noise: float) -> float:
    """Signal-to-quantisation-noise ratio in decibels, in [-200, 200].

    Args:
        signal: Σr² of the reference r.
        noise: Σ(r − q)² of what was quantised; not finite counts as the worst.
    """
    if not math.isfinite(noise):
        return -SQNR_CAP_DB
    ratio = 10.0 * (math.log10(max(signal, 1e-30)) - math.log10(max(noise, 1e-30)))
    return min(max(ratio, -SQNR_CAP_DB), SQNR_CAP_DB)


def relative_error(reference: Array, other: Array, *, scale: float = 0.0) -> float:
    """Largest absolute difference over the largest absolute reference value; infinite on NaN or shape mismatch.

    Where the reference is not finite, the other must be equal there (an attention mask may hold -inf). Differences up
    to 5e-7, four roundings of float32 numbers around 1, are not counted: a sigmoid that is 0 everywhere has no scale.

    Args:
        reference: what is expected.
        other: what is compared with it.
        scale: of the same output on other inputs, used when it is larger than the reference's own.
    """
    if reference.shape != other.shape:
        return math.inf
    if reference.size == 0:
        return 0.0
    x, y = reference.astype(np.float64), other.astype(np.float64)
    finite = np.isfinite(x)
    if not np.array_equal(x[~finite], y[~finite], equal_nan=True) or not np.isfinite(y[finite]).all():
        return math.inf
    if not finite.any():
        return 0.0
    largest = max(float(np.abs(x[finite]).max()), scale, 1e-6)
    return max(float(np.abs(x[finite] - y[finite]).max()) - _ROUNDING, 0.0) / largest


def binomial_upper(successes: int, trials: int, *, confidence: float = CONFIDENCE) -> float:
    """One-sided exact upper bound on a proportion.

    Source: Clopper and Pearson, Biometrika 26 (1934) 404.
    """
    if not 0 <= successes <= trials or trials == 0:
        raise ValueError(f"need 0 <= successes <= trials and trials > 0, got {successes} of {trials}")
    if successes == trials:
        return 1.0
    low, high = successes / trials, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if _binomial_cdf(successes, trials, middle) > 1 - confidence:
            low = middle
        else:
            high = middle
    return high


def _binomial_cdf(successes: int, trials: int, probability: float) -> float:
    if probability <= 0.0:
        return 1.0
    if probability >= 1.0:
        return 0.0
    log_p, log_q = math.log(probability), math.log1p(-probability)
    log_n = math.lgamma(trials + 1)
    return math.fsum(
        math.exp(log_n - math.lgamma(k + 1) - math.lgamma(trials - k + 1) + k * log_p + (trials - k) * log_q)
        for k in range(successes + 1)
    )


def paired_drop_upper(lost: int, won: int, trials: int, *, seed: int = 0, confidence: float = CONFIDENCE) -> float:
    """Upper bound on the drop (lost − won) / trials between two classifiers on the same samples.

    The bound is a high point of a Bayesian bootstrap with one more sample lost. Without that sample it would see no
    risk where nothing was lost; with it, and nothing won, it is the exact Clopper–Pearson bound.

    Args:
        lost: samples that the reference got right and the other wrong.
        won: samples that the reference got wrong and the other right.
        trials: all samples.
        seed: of the bootstrap's generator.
        confidence: with which the bound holds.

    Returns:
        A fraction in [-1, 1].

    Source: Rubin, "The Bayesian Bootstrap", Annals of Statistics 9 (1981) 130; Clopper and Pearson 1934.
    """
    if won == 0:
        return binomial_upper(lost, trials, confidence=confidence)
    generator = np.random.default_rng(seed)
    shares = generator.dirichlet([lost + 1, won, max(trials - lost - won, 1e-9)], _BOOTSTRAP_REPEATS)
    return float(np.quantile(shares[:, 0] - shares[:, 1], confidence))


def mean_upper(values: npt.NDArray[np.float64], *, seed: int = 0, confidence: float = CONFIDENCE) -> float:
    """Upper bootstrap bound on the mean of ``values``, shape (n,)."""
    generator = np.random.default_rng(seed)
    block = max(1, _BLOCK_ELEMENTS // len(values))  # resampled in blocks, so that memory does not grow with n
    means = [
        values[generator.integers(0, len(values), size=(min(block, _MEAN_REPEATS - start), len(values)))].mean(axis=1)
        for start in range(0, _MEAN_REPEATS, block)
    ]
    return float(np.quantile(np.concatenate(means), confidence))


def samples_needed(limit: float, *, confidence: float = CONFIDENCE) -> int:
    """Least number of samples with which a bound can get down to ``limit`` (a share, > 0) when nothing is lost.

    Source: Clopper and Pearson, Biometrika 26 (1934) 404, for no successes.
    """
    return math.ceil(math.log(1 - confidence) / math.log1p(-min(limit, 1 - 1e-9)))


def sign_test(won: int, lost: int) -> float:
    """Chance that at least ``won`` of ``won + lost`` fair coins fall that way, in [0, 1]."""
    if won + lost == 0:
        return 1.0
    return 1.0 - _binomial_cdf(won - 1, won + lost, 0.5) if won <= lost else _binomial_cdf(lost, won + lost, 0.5)


def fitted_slope(values: Sequence[float]) -> tuple[float, float, float]:
    """Least-squares slope of ``values`` against their position, with its 95 % confidence interval.

    Args:
        values: at least four, equally spaced.

    Returns:
        Slope per step, lower and upper end.
    """
    y = np.asarray(values, dtype=np.float64)
    x = np.arange(len(y), dtype=np.float64)
    x -= x.mean()
    slope = float((x * y).sum() / np.square(x).sum())
    rest = y - y.mean() - slope * x
    freedom = len(y) - 2
    error = math.sqrt(float(np.square(rest).sum()) / freedom / float(np.square(x).sum()))
    reach = _student_quantile(freedom) * error
    return slope, slope - reach, slope + reach


def _student_quantile(freedom: int) -> float:
    """The 97.5 % point of Student's t.

    Source: Cornish–Fisher expansion, Abramowitz and Stegun 26.7.5; within 2 % from two degrees of freedom on.
    """
    z: float = 1.959963985
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / float(freedom ** (place + 1)) for place, term in enumerate(terms))

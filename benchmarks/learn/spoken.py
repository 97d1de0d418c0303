"""Words in another accent: a device adapts to 48 utterances of one voice, and is tested on other voices.

The speech is synthetic, by espeak-ng. A seed chooses the voice that the device hears, what it says, and the order of
training. Beside the 48 utterances the device keeps some sounds of the first training, so that it forgets less.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.learn.cases import DIALECT, prepare_case
from benchmarks.learn.statistics import mean_interval
from benchmarks.zoo.dialect_data import (
    CARIBBEAN,
    HEARD_PER_WORD,
    PLAYED,
    REPLAYED_VOICES,
    SOURCE_ACCENT,
    TEST_VOICES,
    WORDS,
    Recordings,
    other_voices,
    without_voice,
    write_adaptation,
    write_words,
)
from sanderling.api import learn_run
from sanderling.learn import Trainer

TRAINABLE = "full"
RECIPE: Mapping[str, Any] = {"epochs": 10, "batch": 16, "learning_rate": 1e-3, "schedule": "cosine"}
SEEDS: Mapping[str, int] = {CARIBBEAN: 5, "en-gb-scotland": 3, "en-gb-x-rp": 3}


def measure(folder: Path) -> dict[str, Any]:
    """Adapt to each accent as often as ``SEEDS`` says.

    Raises:
        FileNotFoundError: ``espeak-ng`` is not installed.
    """
    package = folder / "dialect.sdl"
    prepare_case(DIALECT, TRAINABLE, package, labels=write_words(folder / "words.txt"))
    source = other_voices(SOURCE_ACCENT)
    runs = {}
    for accent, seeds in SEEDS.items():
        target = other_voices(accent)
        runs[accent] = [adapt(package, folder, accent, seed, source, target) for seed in range(seeds)]
    return {
        "trainable": TRAINABLE,
        "recipe": dict(RECIPE),
        "words": len(WORDS),
        "utterances": HEARD_PER_WORD * len(WORDS),
        "played": len(PLAYED),
        "replayed": REPLAYED_VOICES * len(WORDS),
        "test_voices": len(TEST_VOICES) - 1,
        "accents": {accent: {"runs": found, **summary(found)} for accent, found in runs.items()},
    }


def adapt(
    package: Path, folder: Path, accent: str, seed: int, source: Recordings, target: Recordings
) -> dict[str, Any]:
    """One device: its voice, what it learns from, and how it does on other voices before and after."""
    voice = TEST_VOICES[seed % len(TEST_VOICES)]
    heard = write_adaptation(folder / f"{accent}-{seed}", accent, voice, seed)
    target, known = without_voice(target, voice), without_voice(source, voice)
    before = {"target": accuracy(package, target), "source": accuracy(package, known)}
    checkpoint = folder / f"{accent}-{seed}.safetensors"
    start = time.perf_counter()
    learn_run(package, heard, checkpoint=checkpoint, seed=seed, threads=1, **RECIPE)
    seconds = time.perf_counter() - start
    after = {"target": accuracy(package, target, checkpoint), "source": accuracy(package, known, checkpoint)}
    gap = before["source"] - before["target"]
    found = {
        "seed": seed,
        "voice": voice,
        "before": before,
        "after": after,
        "gap_closed": (after["target"] - before["target"]) / gap,
        "forgotten_points": 100 * (before["source"] - after["source"]),
        "seconds": round(seconds, 1),
    }
    print(accent, found, flush=True)
    return found


def accuracy(package: Path, recordings: Recordings, checkpoint: Path | None = None) -> float:
    """Share of words that are recognised, with the first parameters or those of a checkpoint."""
    with Trainer(package, threads=1) as trainer:
        if checkpoint is not None:
            trainer.load(checkpoint)
        found = trainer.evaluate({"sound": recordings.sounds, "label": recordings.labels}).accuracy
    assert found is not None
    return found


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over the runs, with 95 % intervals."""
    return {
        "source_before": mean_interval([run["before"]["source"] for run in runs]),
        "target_before": mean_interval([run["before"]["target"] for run in runs]),
        "target_after": mean_interval([run["after"]["target"] for run in runs]),
        "gap_closed": mean_interval([run["gap_closed"] for run in runs]),
        "forgotten_points": mean_interval([run["forgotten_points"] for run in runs]),
    }

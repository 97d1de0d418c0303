"""Pictures with questions, and pictures by texts: `python -m benchmarks.multimodal.run [--folder DIR] [--rounds N]`.

Builds both packages into DIR (a temporary folder without it), unless they are there, and measures them. All
comparisons take turns in one process; ratios are medians over the rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.multimodal import table
from benchmarks.zoo.easy_vqa_data import read_questions, write_csv
from sanderling.api import build_multimodal
from sanderling.core.machine import describe_machine, usable_cores
from sanderling.core.statistics import percentiles
from sanderling.core.tensor import Feeds, random_feeds
from sanderling.demo.photos import CALIBRATION, EVALUATION, find_photos
from sanderling.model.multimodal import MATCHING, QUESTIONS
from sanderling.model.package import Package
from sanderling.run.branches import Branches
from sanderling.run.features import Content
from sanderling.tasks.matching import Matcher
from sanderling.tasks.multimodal import Answerer

RESULTS = Path(__file__).with_name("results.json")
BUDGET = "top1=0.5"
CALIBRATION_QUESTIONS = 4000
SEARCHES = {
    "a cup of coffee": "coffee.png",
    "a kitten": "chelsea.png",
    "a spaceship at launch": "rocket.jpg",
    "a motorbike": "motorcycle_left.png",
    "a buddhist temple": "china.jpg",
    "a blossom": "flower.jpg",
    "a person in a space suit": "astronaut.png",
}
_WARM = 10


def main() -> None:
    """Measure, write `results.json`, and the page from it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--folder", type=Path, help="For the packages; those that are there are not built again.")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        questions, search = _built(folder)
        results = {
            "command": "python -m benchmarks.multimodal.run",
            "machine": describe_machine().model_dump(),
            "rounds": arguments.rounds,
            "cores": usable_cores(),
            "answers": _answers(questions),
            "again": {variant: _again(questions, variant, arguments.rounds) for variant in ("fp32", "int8")},
            "at_once": _at_once(search, arguments.rounds),
            "searches": _searches(search, folder / "photos"),
        }
    arguments.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if arguments.out == RESULTS:
        table.main()


def _built(folder: Path) -> tuple[Path, Path]:
    questions, search = folder / "vqa.sdl", folder / "search.sdl"
    if not questions.exists():
        build_multimodal(
            "benchmarks.zoo.vqa:vqa_branches",
            questions,
            task=QUESTIONS,
            calibration=write_csv(folder / "train.csv", "train", limit=CALIBRATION_QUESTIONS),
            evaluation=write_csv(folder / "test.csv", "test"),
            budget=BUDGET,
        )
    if not search.exists():
        factory = "benchmarks.zoo.composed_search:composed_branches"
        build_multimodal(factory, search, task=MATCHING, precision="fp32", repeats=10)
    return questions, search


def _answers(path: Path) -> dict[str, Any]:
    """What the build found on all of the test questions."""
    manifest = Package.open(path).manifest
    assert manifest.multimodal is not None
    return {
        "chosen": manifest.chosen,
        "budget": BUDGET,
        "variants": {
            variant.id: {
                "branches": manifest.multimodal.variants[variant.id],
                "size_bytes": variant.size_bytes,
                "top1": variant.accuracy.value,
                "drop": variant.accuracy.drop,
                "drop_upper": variant.accuracy.drop_upper,
                "confidence": variant.accuracy.confidence,
                "questions": variant.accuracy.samples,
                "first_ms": variant.latency_ms.p50 if variant.latency_ms else None,
            }
            for variant in manifest.variants
            if variant.accuracy is not None
        },
    }


def _again(path: Path, variant: str, rounds: int) -> dict[str, Any]:
    """A question about a picture that was never seen, and another one about it, from files as a user asks."""
    data = read_questions("test")
    first: list[float] = []
    second: list[float] = []
    with Answerer(path, variant=variant) as answerer:
        for number in range(rounds + _WARM):
            answerer.branches.cache.clear()
            own = np.flatnonzero(data.pictures == number % len(data.files))[:2]
            times = [_timed(partial(answerer.ask, data.files[data.pictures[row]], [data.texts[row]])) for row in own]
            if len(times) == 2 and number >= _WARM:
                first.append(times[0])
                second.append(times[1])
    return {
        "first_ms": percentiles(first),
        "second_ms": percentiles(second),
        "ratio": statistics.median(y / x for x, y in zip(first, second, strict=True)),
        "pairs": len(first),
    }


def _at_once(path: Path, rounds: int) -> dict[str, Any]:
    """Two balanced branches at once, and one after the other with a thread or with all cores for each."""
    package = Package.open(path)
    ways: dict[str, dict[str, Any]] = {
        "at once, 1 thread each": {"threads": 1, "at_once": True},
        "in turn, 1 thread": {"threads": 1, "at_once": False},
        "in turn, all cores": {"threads": usable_cores(), "at_once": False},
    }
    opened = {name: Branches(package, cache_bytes=0, **options) for name, options in ways.items()}
    try:
        feeds = {
            leaf.name: random_feeds(opened["in turn, 1 thread"].sessions[leaf.name].inputs)
            for leaf in opened["in turn, 1 thread"].spec.leaves
        }
        calls: dict[str, Callable[[], object]] = {
            name: partial(branches.leaves, [_contents(feeds)]) for name, branches in opened.items()
        }
        calls |= {
            f"{leaf} alone": partial(opened["in turn, 1 thread"].features, leaf, [_contents(feeds)[leaf]])
            for leaf in feeds
        }
        times = _in_turn(calls, rounds)
    finally:
        for branches in opened.values():
            branches.close()
    together = times["at once, 1 thread each"]
    return {
        "ms": {name: percentiles(values) for name, values in times.items()},
        "speedup": {
            name: statistics.median(x / y for x, y in zip(times[name], together, strict=True)) for name in ways
        },
    }


def _contents(feeds: Mapping[str, Feeds]) -> dict[str, Content]:
    return {name: Content(name.encode(), partial(dict, own)) for name, own in feeds.items()}


def _in_turn(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + _WARM):
        for name, call in calls.items():
            elapsed = _timed(call)
            if number >= _WARM:
                times[name].append(elapsed)
    return times


def _searches(path: Path, folder: Path) -> list[dict[str, Any]]:
    """At which place of real photos the one comes that a text means."""
    photos = find_photos([*CALIBRATION, *EVALUATION])
    folder.mkdir(exist_ok=True)
    for photo in photos:
        link = folder / photo.name
        if not link.exists():
            link.write_bytes(photo.read_bytes())
    with Matcher(path, keep=False) as matcher:
        library = matcher.read(folder)
        return list(_places(matcher, library, len(photos)))


def _places(matcher: Matcher, library: Any, count: int) -> Iterator[dict[str, Any]]:  # noqa: ANN401 - a Library
    for text, wanted in SEARCHES.items():
        found = matcher.match(library, text, top=count)
        names: Sequence[str] = [Path(match.file).name for match in found]
        yield {"text": text, "wanted": wanted, "place": names.index(wanted) + 1, "first": names[0], "of": len(names)}


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


if __name__ == "__main__":
    main()

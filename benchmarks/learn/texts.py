"""Which part of Python's standard library a docstring is of: MiniLM with adapters, and with a new last layer alone."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.build.texts import docstrings
from benchmarks.learn.cases import MINILM, TEXT_CLASSES, TEXT_TOKENS, prepare_case
from benchmarks.zoo.minilm import minilm_file
from sanderling.api import learn_run
from sanderling.core.tensor import Array
from sanderling.learn import Trainer

MODULES = ("asyncio", "email", "http", "importlib", "logging", "multiprocessing", "unittest", "urllib")
TRAINED, TESTED = 20, 20  # texts of each module
RECIPE: Mapping[str, Any] = {"epochs": 6, "batch": 8, "learning_rate": 2e-3, "schedule": "cosine:warmup=6"}
assert len(MODULES) == TEXT_CLASSES


def measure(folder: Path) -> list[dict[str, Any]]:
    """Train a last layer, then adapters with it, on the same texts.

    Raises:
        FileNotFoundError: MiniLM's weights are not installed.
    """
    data, tests = write_texts(folder / "texts.npz")
    rows = []
    for kind, trainable in (("head", "head"), ("lora", MINILM.lora)):
        package, checkpoint = folder / f"texts-{kind}.sdl", folder / f"texts-{kind}.safetensors"
        spec = prepare_case(MINILM, trainable, package)
        start = time.perf_counter()
        learn_run(package, data, checkpoint=checkpoint, threads=0, **RECIPE)
        seconds = time.perf_counter() - start
        with Trainer(package) as trainer:
            before = trainer.evaluate(tests).accuracy
            trainer.load(checkpoint)
            after = trainer.evaluate(tests).accuracy
        trained = sum(int(np.prod(parameter.shape)) for parameter in spec.parameters)
        rows.append(
            {
                "trainable": kind,
                "parameters": trained,
                "classes": len(MODULES),
                "trained": TRAINED * len(MODULES),
                "tested": len(tests["label"]),
                "before": before,
                "after": after,
                "seconds": round(seconds, 1),
            }
        )
        print("texts", rows[-1], flush=True)
    return rows


def write_texts(path: Path) -> tuple[Path, dict[str, Array]]:
    """Texts to train on in an ``.npz``, and other ones to test with."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(minilm_file("tokenizer.json")))
    tokenizer.enable_truncation(TEXT_TOKENS)
    tokenizer.enable_padding(length=TEXT_TOKENS)
    generator = np.random.default_rng(0)
    parts: dict[str, list[tuple[str, int]]] = {"train": [], "test": []}
    for label, module in enumerate(MODULES):
        found = sorted({_without_name(text, module) for text in docstrings(module)})
        chosen = [found[index] for index in generator.permutation(len(found))[: TRAINED + TESTED]]
        parts["train"] += [(text, label) for text in chosen[:TRAINED]]
        parts["test"] += [(text, label) for text in chosen[TRAINED:]]
    arrays = {name: _encoded(tokenizer, texts) for name, texts in parts.items()}
    np.savez(path, allow_pickle=False, **arrays["train"])
    return path, arrays["test"]


def _without_name(text: str, module: str) -> str:
    """A text that does not name its module: that would be too easy."""
    return " ".join(word for word in text.split() if module not in word.lower())


def _encoded(tokenizer: Any, texts: list[tuple[str, int]]) -> dict[str, Array]:  # noqa: ANN401 - of tokenizers
    encoded = tokenizer.encode_batch([text for text, _ in texts])
    return {
        "input_ids": np.array([text.ids for text in encoded], np.int64),
        "attention_mask": np.array([text.attention_mask for text in encoded], np.int64),
        "token_type_ids": np.array([text.type_ids for text in encoded], np.int64),
        "label": np.array([label for _, label in texts], np.int64),
    }

"""A model of sentences that is a table: each token has a vector, and a sentence has the mean of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from tests.models import make_model, save, tensor

WIDTH, LONGEST = 4, 8
WORDS = ("[PAD]", "[UNK]", "a", "small", "large", "bird", "fish", "swims")


def table(words: int = len(WORDS)) -> np.ndarray:
    """The vectors of the words, float32, shape (words, 4)."""
    return np.random.default_rng(3).normal(size=(words, WIDTH)).astype(np.float32)


def sentence_model(path: Path, *, words: int = len(WORDS)) -> Path:
    """``input_ids`` and ``attention_mask`` (N, 8) to ``vectors`` (N, 8, 4)."""
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["found"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["weights"]),
        helper.make_node("Mul", ["found", "weights"], ["vectors"]),
    ]
    inputs = [tensor(name, ["N", LONGEST], "int64") for name in ("input_ids", "attention_mask")]
    outputs = [tensor("vectors", ["N", LONGEST, WIDTH])]
    return save(make_model(nodes, inputs, outputs, {"table": table(words), "last": np.array([2])}), path)


def word_tokenizer(path: Path, words: tuple[str, ...] = WORDS) -> Path:
    """A tokenizer that has these words; it cuts and fills up unless it is told not to."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.enable_padding(length=LONGEST)
    tokenizer.enable_truncation(4)
    tokenizer.save(str(path))
    return path

"""Sentence embeddings of all-MiniLM-L6-v2, from its published weights to a package that embeds texts."""

from __future__ import annotations

import numpy as np
import pytest

from sanderling.api import build
from sanderling.tasks.embeddings import Embedder

torch = pytest.importorskip("torch")

from benchmarks.zoo.minilm import minilm, minilm_file  # noqa: E402 - they need torch

TOKENS = 32
TEXTS = ("How do I reset my password?", "I forgot my login credentials", "The weather is sunny today")


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    try:
        weights, tokenizer = minilm_file(), minilm_file("tokenizer.json")
    except FileNotFoundError as error:
        pytest.skip(str(error))
    names = ("input_ids", "attention_mask", "token_type_ids")
    return build(
        "benchmarks.zoo.minilm:minilm",
        tmp_path_factory.mktemp("minilm") / "minilm.sdl",
        weights=weights,
        inputs=[f"{name}=1,{TOKENS}:int64" for name in names],
        dynamic=["batch"],
        precision="fp32",
        repeats=1,
        task="embeddings",
        tokenizer=tokenizer,
    ).path


def reference(text):
    """The module's own embedding of a text that is not filled up."""
    from safetensors.torch import load_file
    from tokenizers import Tokenizer

    model = minilm()
    model.load_state_dict(load_file(minilm_file()), strict=False)
    tokenizer = Tokenizer.from_file(str(minilm_file("tokenizer.json")))
    tokenizer.no_padding()
    ids = torch.tensor([tokenizer.encode(text).ids])
    with torch.no_grad():
        return model(ids, torch.ones_like(ids), torch.zeros_like(ids))[0].numpy()


def test_minilm_embeds_texts_as_its_module_does(package):
    with Embedder(package) as embedder:
        found = embedder.embed(TEXTS)
    np.testing.assert_allclose(found, np.stack([reference(text) for text in TEXTS]), atol=1e-4)
    near, far = found[0] @ found[1], found[0] @ found[2]
    assert near > far + 0.3

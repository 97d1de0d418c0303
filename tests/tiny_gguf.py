"""A Llama of two layers with random weights as a whole GGUF file: what it writes has no sense, and comes quickly."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.language_models import CONTEXT, VOCABULARY

_WIDTH, _INNER, _HEADS, _KEY_HEADS, _LAYERS = 64, 96, 4, 2, 2
_SPECIAL, _ORDINARY = 3, 1  # tokenizer.ggml.token_type


def tiny_gguf(path: Path, folder: Path) -> Path:
    """Write the file, with the tokenizer of a Hugging Face folder that `language_folder` made."""
    from gguf import GGUFWriter

    told = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    names = [name for name, _ in sorted(told["model"]["vocab"].items(), key=lambda entry: entry[1])]
    special = {entry["id"] for entry in told["added_tokens"]}
    writer = GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_file_type(0)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(_LAYERS)
    writer.add_feed_forward_length(_INNER)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_KEY_HEADS)
    writer.add_rope_dimension_count(_WIDTH // _HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(names + [f"<unused {number}>" for number in range(len(names), VOCABULARY)])
    writer.add_token_types([_SPECIAL if number in special else _ORDINARY for number in range(VOCABULARY)])
    writer.add_token_merges([" ".join(pair) for pair in told["model"]["merges"]])
    writer.add_bos_token_id(3)
    writer.add_eos_token_id(2)
    writer.add_chat_template((folder / "chat_template.jinja").read_text(encoding="utf-8"))
    for name, shape in _shapes().items():
        random = np.random.default_rng(len(name) + sum(map(ord, name)))
        values = np.ones(shape) if len(shape) == 1 else random.normal(size=shape) / 8
        writer.add_tensor(name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _shapes() -> dict[str, tuple[int, ...]]:
    """By name as the file has them, (outputs, inputs)."""
    keys = _WIDTH // _HEADS * _KEY_HEADS
    layer = {
        "attn_norm": (_WIDTH,),
        "attn_q": (_WIDTH, _WIDTH),
        "attn_k": (keys, _WIDTH),
        "attn_v": (keys, _WIDTH),
        "attn_output": (_WIDTH, _WIDTH),
        "ffn_norm": (_WIDTH,),
        "ffn_gate": (_INNER, _WIDTH),
        "ffn_up": (_INNER, _WIDTH),
        "ffn_down": (_WIDTH, _INNER),
    }
    found: dict[str, tuple[int, ...]] = {"token_embd.weight": (VOCABULARY, _WIDTH), "output_norm.weight": (_WIDTH,)}
    for number in range(_LAYERS):
        found |= {f"blk.{number}.{name}.weight": shape for name, shape in layer.items()}
    return found

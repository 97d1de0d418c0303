"""A Llama of two layers with random weights, as a package: what it writes has no sense, and comes quickly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from sanderling.core.precision import Precision
from sanderling.model.manifest import Golden, Manifest, Source, Variant
from sanderling.model.package import Package, file_entries, write_manifest
from sanderling.model.text import TextSpec

CONTEXT = 256
_TEXT = "the quick brown fox jumps over the lazy dog. what is the capital of France? Paris. hello world, how are you?"
_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tiny_text_package(folder: Path, *, name: str = "chat") -> Path:
    """A package with the variant ``fp32``; its tokens are bytes and a few words."""
    package, variant = folder / f"{name}.sdl", folder / f"{name}.sdl" / "variants" / "fp32"
    vocabulary = _save_model(folder / "model")
    builder = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", folder / "model", "-o", variant]
    options = ["-p", "fp32", "-e", "cpu", "-c", folder / "cache", "--extra_options", "prune_lm_head=true"]
    subprocess.run([*map(str, builder + options)], check=True, capture_output=True, timeout=120)
    files = file_entries(package)
    manifest = Manifest(
        name=name,
        source=Source(format="onnx", name="random"),
        inputs=(),
        outputs=(),
        variants=(
            Variant(
                id="fp32",
                precision=Precision.FP32,
                file="variants/fp32/model.onnx",
                size_bytes=sum(entry.size_bytes for entry in files.values()),
                engines=("onnxruntime", "genai"),
            ),
        ),
        chosen="fp32",
        golden=Golden(file="variants/fp32/model.onnx", samples=0, tolerance={}),
        text=TextSpec(
            architecture="llama", context_length=CONTEXT, vocabulary=vocabulary, bos_id=1, eos_ids=(2,), adds_bos=False
        ),
        files=files,
    )
    write_manifest(package, manifest)
    return Package.open(package).path


def _save_model(folder: Path) -> int:
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        [_TEXT] * 5, trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, special_tokens=special)
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=special[1], eos_token=special[2], pad_token=special[0]
    )
    fast.chat_template = _TEMPLATE
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(fast),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return len(fast)

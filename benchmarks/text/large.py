"""1.4 billion parameters in four bits against llama.cpp's Q4_0: `python -m benchmarks.text.large --peer PYTHON`.

The shape is Qwen2's, the weights are random: only speed and memory mean something. Both sides are made here, in a
folder that needs 14 GB and is removed at the end (or kept with ``--keep DIR``, and used again). One thread each, in
turn; times are processor seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.text import table, turns
from benchmarks.text.ours import Variant
from benchmarks.text.run import Contender
from sanderling.core.machine import describe_machine
from sanderling.model.text import TextSpec
from sanderling.run.text.engines import text_engine

RESULTS = Path(__file__).with_name("large.json")
_PEER = Path(__file__).with_name("peer.py")
_VOCABULARY = 65_536
_SHAPE = {
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "vocab_size": _VOCABULARY,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}
_Q4_0_BLOCK, _Q4_0_BYTES = 32, 18


def main() -> None:
    """Make both, measure them, write `large.json`, and the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peer", help="Python with llama-cpp-python.")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="Folder for the two models.")
    arguments = parser.parse_args()
    with _workplace(arguments.keep) as folder:
        contenders = {"int4": Contender([sys.executable, "-m", "benchmarks.text.large", "--ours", str(_ours(folder))])}
        if arguments.peer:
            contenders["llama.cpp Q4_0"] = Contender([arguments.peer, str(_PEER), str(_theirs(folder))])
        rows = _measured(contenders, arguments.rounds)
        for name, contender in contenders.items():
            rows[name]["peak_rss_bytes"] = contender.ask(do="memory")
            contender.end()
    results = {
        "command": "python -m benchmarks.text.large --peer PYTHON",
        "machine": describe_machine().model_dump(),
        "shape": _SHAPE,
        "rounds": arguments.rounds,
        "contenders": rows,
    }
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    table.main()


@contextlib.contextmanager
def _workplace(kept: Path | None) -> Iterator[Path]:
    if kept is None:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
    else:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept


def _measured(contenders: Mapping[str, Contender], rounds: int) -> dict[str, dict[str, Any]]:
    """Tokens a processor second, medians; nothing warms up but the first turn, which loads the weights."""
    prompt = np.random.default_rng(0).integers(3, _VOCABULARY - 1, turns.PROMPT_TOKENS).tolist()
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
    for number in range(rounds):
        for name, contender in contenders.items():
            taken[name].append(contender.ask(do="turn", prompt=prompt))
            sys.stderr.write(f"round {number + 1} of {rounds}: {name}\n")
    return {
        name: {
            "prefill_tokens_per_s": turns.PROMPT_TOKENS / statistics.median(turn["prefill_s"] for turn in rows),
            "decode_tokens_per_s": 1 / statistics.median(turn["short_s"] for turn in rows),
            "decode_long_tokens_per_s": 1 / statistics.median(turn["long_s"] for turn in rows),
        }
        for name, rows in taken.items()
    }


def _ours(folder: Path) -> Path:
    """The variant's folder: converted, and every product in four bits."""
    from sanderling.workshop.text.conversion import convert
    from sanderling.workshop.text.decoder import DATA, GRAPH, Decoder
    from sanderling.workshop.text.mixer import Mixer
    from sanderling.workshop.text.search import forms_of
    from sanderling.workshop.text.source import find_source
    from sanderling.workshop.text.storage import Form

    target = folder / "int4"
    if (target / "spec.json").is_file():
        return target
    source, converted = folder / "source", folder / "float"
    for made in (source, converted, target):
        made.mkdir()
    _random_folder(source)
    spec = convert(find_source(str(source)), converted)
    decoder = Decoder(converted)
    mixer = Mixer(decoder, target)
    mixer.write(forms_of(decoder, Form.BLOCKS_4_WIDE))
    mixer.close()
    for path in converted.iterdir():
        if path.name not in (GRAPH, DATA):
            (target / path.name).write_bytes(path.read_bytes())
    (converted / DATA).unlink()
    (target / "spec.json").write_text(spec.model_dump_json(), encoding="utf-8")
    return target


def _random_folder(folder: Path) -> None:
    """A Hugging Face folder with random weights, and a tokenizer of single characters."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    config = AutoConfig.for_model("qwen2", **_SHAPE, bos_token_id=0, eos_token_id=1, pad_token_id=0)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)  # type: ignore[no-untyped-call]
    words = {chr(33 + number): number for number in range(94)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="!"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    wrapped = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, bos_token="!", eos_token='"', pad_token="!"
    )
    wrapped.save_pretrained(folder)


def _theirs(folder: Path) -> Path:
    """A GGUF file of the same shape whose tables are Q4_0 of random codes."""
    from gguf import GGMLQuantizationType, GGUFWriter

    path = folder / "q4_0.gguf"
    if path.is_file():
        return path
    hidden, inner, kv = _SHAPE["hidden_size"], _SHAPE["intermediate_size"], 128 * _SHAPE["num_key_value_heads"]
    writer = GGUFWriter(path.with_suffix(".part"), "qwen2")
    writer.add_context_length(_SHAPE["max_position_embeddings"])
    writer.add_embedding_length(hidden)
    writer.add_block_count(_SHAPE["num_hidden_layers"])
    writer.add_feed_forward_length(inner)
    writer.add_head_count(_SHAPE["num_attention_heads"])
    writer.add_head_count_kv(_SHAPE["num_key_value_heads"])
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(_VOCABULARY)
    writer.add_tokenizer_model("no_vocab")
    random = np.random.default_rng(0)

    def table(name: str, rows: int, depth: int) -> None:
        blocks = random.integers(0, 256, (rows, depth // _Q4_0_BLOCK, _Q4_0_BYTES), np.uint8)
        blocks[..., :2] = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
        writer.add_tensor(name, blocks.reshape(rows, -1), raw_dtype=GGMLQuantizationType.Q4_0)

    table("token_embd.weight", _VOCABULARY, hidden)
    writer.add_tensor("output_norm.weight", np.ones(hidden, np.float32))
    for layer in range(_SHAPE["num_hidden_layers"]):
        block = f"blk.{layer}"
        for name, rows, depth in (
            ("attn_q", hidden, hidden), ("attn_k", kv, hidden), ("attn_v", kv, hidden), ("attn_output", hidden, hidden),
            ("ffn_gate", inner, hidden), ("ffn_up", inner, hidden), ("ffn_down", hidden, inner),
        ):  # fmt: skip
            table(f"{block}.{name}.weight", rows, depth)
        for name, size in (("attn_q", hidden), ("attn_k", kv), ("attn_v", kv)):
            writer.add_tensor(f"{block}.{name}.bias", np.zeros(size, np.float32))
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"{block}.{name}.weight", np.ones(hidden, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    path.with_suffix(".part").rename(path)
    return path


def _serve(folder: Path) -> None:
    spec = TextSpec.model_validate_json((folder / "spec.json").read_text(encoding="utf-8"))
    turns.serve(Variant(text_engine().load(folder, spec, threads=1)))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--ours"]:
        _serve(Path(sys.argv[2]))
    else:
        main()

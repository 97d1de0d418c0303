"""From a source to a float graph with its tokenizer, in a process of its own: PyTorch's memory is gone afterwards.

The graph is written by onnxruntime-genai's model builder.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from sanderling.core import errors
from sanderling.core.errors import EngineError, ModelError, SanderlingError, UnavailableError, first_line
from sanderling.measure.texts import choice_texts
from sanderling.model.text import TextSpec
from sanderling.run.commands import run_command
from sanderling.workshop.text.source import TextSource, read_config

REFERENCE = "reference.npz"
REFERENCE_TOKENS = 96
_TIMEOUT_S = 3600
_NEEDED = ("torch", "transformers", "safetensors", "onnxruntime_genai")
_ENDS = ("<|im_end|>", "<end_of_turn>", "<|eot_id|>", "<|end|>", "<|endoftext|>", "</s>")
_COPIED = ("*.json", "*.model", "*.txt", "*.jinja")
_FROM_GGUF = ("quantization_config", "_pre_quantization_dtype")


def convert(source: TextSource, folder: Path) -> TextSpec:
    """Write the float graph, its weights, the tokenizer and the engine's configuration into ``folder``.

    Raises:
        ModelError: the source cannot be converted.
        UnavailableError: a package that is needed is not installed.
        EngineError: the converting process ended without an answer, or took more than an hour.
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UnavailableError(f"language models need {', '.join(missing)}: pip install 'sanderling[text-build]'")
    request = json.dumps({"source": str(source.path), "format": source.format, "folder": str(folder)})
    quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TQDM_DISABLE": "1"}
    try:
        done = run_command(
            [sys.executable, "-m", __name__, request], timeout_s=_TIMEOUT_S, variables={**os.environ, **quiet}
        )
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"{source.name}: the conversion took more than {_TIMEOUT_S} s") from error
    try:
        answer = json.loads(done.stdout)
    except ValueError as error:
        told = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise EngineError(f"{source.name}: the converting process ended early, perhaps for memory: {told}") from error
    if "error" in answer:
        raise getattr(errors, answer["error"])(answer["message"])
    return TextSpec.model_validate(answer)


def _answer(request: dict[str, str]) -> dict[str, Any]:
    source, folder = Path(request["source"]), Path(request["folder"])
    try:
        prepared = folder.with_name(f"{folder.name}.source")
        prepared.mkdir()
        if request["format"] == "gguf":
            _unpack_gguf(source, prepared)
        else:
            _link_folder(source, prepared)
        tokenizer = _checked_tokenizer(source, prepared)
        _build(prepared, folder)
        _keep_reference(prepared, tokenizer, folder / REFERENCE)
        shutil.rmtree(prepared)
        return _spec(folder, tokenizer).model_dump()
    except SanderlingError as error:
        return {"error": type(error).__name__, "message": str(error)}
    except Exception as error:  # noqa: BLE001 - whatever three libraries raise for a source is the source's fault
        reason = f"{type(error).__name__}: {first_line(error)}"
        return {"error": "ModelError", "message": f"{source.name} cannot be converted: {reason}"}


def _unpack_gguf(file: Path, folder: Path) -> None:
    """Write a GGUF file as a Hugging Face folder with float weights."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = AutoConfig.from_pretrained(str(file.parent), gguf_file=file.name)
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    loaded = load_gguf_checkpoint(  # type: ignore[no-untyped-call]
        str(file), return_tensors=True, model_to_load=empty, torch_dtype=torch.float32
    )
    tensors = {name: tensor.contiguous() for name, tensor in loaded["tensors"].items()}
    wanted = {name for name, _ in empty.named_parameters()}
    absent = sorted(wanted - tensors.keys())
    if absent and not (absent == ["lm_head.weight"] and config.tie_word_embeddings):
        raise ModelError(f"{file.name} has no weights for {', '.join(absent[:3])}")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    for name in _FROM_GGUF:
        if hasattr(config, name):
            delattr(config, name)
    config.architectures = [type(empty).__name__]
    config.save_pretrained(folder)
    AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name).save_pretrained(folder)


def _link_folder(source: Path, folder: Path) -> None:
    """Make a folder with the source's small files, and links to its weights."""
    for pattern in _COPIED:
        for path in source.glob(pattern):
            shutil.copyfile(path, folder / path.name)
    for path in source.glob("*.safetensors"):
        (folder / path.name).symlink_to(path.resolve())


def _checked_tokenizer(source: Path, folder: Path) -> Any:  # noqa: ANN401 - untyped
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    rows = int(read_config(folder)["vocab_size"])
    highest = max(tokenizer.get_vocab().values(), default=-1)
    if not 0 <= highest < rows:
        raise ModelError(
            f"{source.name}: the tokenizer does not match the model: its ids go up to {highest}, "
            f"the vocabulary has {rows} entries"
        )
    return tokenizer


def _build(source: Path, folder: Path) -> None:
    from onnxruntime_genai.models.builder import create_model, parse_extra_options

    where = ("", str(source), str(folder), "fp32", "cpu", str(folder))
    # A cache that keeps only a window cannot go back to an earlier token, which conversations do.
    wanted = ["prune_lm_head=true", "windowed_kv_cache=false", "hf_token=false"]
    options = parse_extra_options(*where, wanted)
    _flatten_rotation(options["hf_details"]["hf_config"])
    create_model(*where, **options)


def _flatten_rotation(config: Any) -> None:  # noqa: ANN401 - untyped
    """Say how positions are rotated in the words that the model builder reads.

    transformers keeps one entry a kind of layer where there are several (Gemma 3); the builder looks for that of the
    layers with full attention, and for the base frequency of the others under an older name.
    """
    kinds = getattr(config, "rope_parameters", None) or {}
    if "full_attention" not in kinds:
        return
    config.rope_parameters = dict(kinds["full_attention"])
    config.rope_theta = kinds["full_attention"]["rope_theta"]
    config.rope_local_base_freq = kinds["sliding_attention"]["rope_theta"]


def _keep_reference(source: Path, tokenizer: Any, path: Path) -> None:  # noqa: ANN401 - untyped
    """Write what PyTorch computes for a text: its ids, and the scores of the token after it."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(str(source), dtype=torch.float32)
    ids = tokenizer(choice_texts()["prose"])["input_ids"][:REFERENCE_TOKENS]
    with torch.inference_mode():
        logits = model(torch.tensor([ids])).logits[0, -1]
    np.savez(path, ids=np.asarray(ids, dtype=np.int64), logits=logits.numpy())


def _spec(folder: Path, tokenizer: Any) -> TextSpec:  # noqa: ANN401 - untyped
    told = json.loads((folder / "genai_config.json").read_text(encoding="utf-8"))["model"]
    ends = told["eos_token_id"]
    eos = list(ends) if isinstance(ends, list) else [ends]
    known, template = tokenizer.get_vocab(), tokenizer.chat_template or ""
    eos += [known[end] for end in _ENDS if end in known and end in template]
    bos = tokenizer.bos_token_id
    return TextSpec(
        architecture=told["type"],
        context_length=told["context_length"],
        vocabulary=told["vocab_size"],
        bos_id=bos,
        eos_ids=tuple(dict.fromkeys(eos)),
        adds_bos=bos is not None and tokenizer("a")["input_ids"][:1] == [bos],
        chat_template=bool(template),
    )


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        found = _answer(json.loads(sys.argv[1]))
    sys.stdout.write(json.dumps(found))

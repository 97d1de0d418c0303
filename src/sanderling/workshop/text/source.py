"""What a language model is built from, checked before anything long begins."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sanderling.core.errors import ModelError, UnavailableError, first_line
from sanderling.core.files import sha256_of

ARCHITECTURES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "SmolLM3ForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "GemmaForCausalLM",
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "PhiForCausalLM",
    "Phi3ForCausalLM",
)
GGUF_ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model")
_PICKLED = ("*.bin", "*.pt", "*.pth")


@dataclass(frozen=True)
class TextSource:
    """A folder as Hugging Face's libraries write it, or a GGUF file."""

    path: Path
    format: Literal["huggingface", "gguf"]
    sha256: str | None = None

    @property
    def name(self) -> str:
        """The file's or folder's own name."""
        return self.path.resolve().name


def find_source(source: str) -> TextSource:
    """Look at a source.

    Raises:
        ModelError: it is neither, is not whole, has an architecture that is not built, or holds only pickled weights.
        UnavailableError: it is a GGUF file, and the package that reads it is not installed.
    """
    path = Path(source)
    if path.is_dir():
        _check_folder(path)
        return TextSource(path, "huggingface")
    if not path.is_file():
        raise ModelError(f"{source} does not exist: expected a Hugging Face folder or a GGUF file")
    _check_gguf(path)
    return TextSource(path, "gguf", sha256_of(path))


def read_config(folder: Path) -> dict[str, Any]:
    """A folder's ``config.json``.

    Raises:
        ModelError: it is missing, or no JSON object.
    """
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{folder} has no readable config.json: expected a Hugging Face folder") from error
    except ValueError as error:
        raise ModelError(f"{folder / 'config.json'} is no JSON: {first_line(error)}") from error
    if not isinstance(config, dict):
        raise ModelError(f"{folder / 'config.json'} is no JSON object")
    return config


def _check_folder(folder: Path) -> None:
    config = read_config(folder)
    named = config.get("architectures") or ["none"]
    if named[0] not in ARCHITECTURES:
        raise ModelError(f"{folder} has the architecture {named[0]}: available are {', '.join(ARCHITECTURES)}")
    if config.get("quantization_config"):
        raise ModelError(f"{folder} is quantised already: build from the model that it was made of")
    if not any(folder.glob("*.safetensors")):
        pickled = any(path for pattern in _PICKLED for path in folder.glob(pattern))
        found = "only pickled weights, which could run code" if pickled else "no weights"
        raise ModelError(f"{folder} has {found}: expected *.safetensors")
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        raise ModelError(f"{folder} has no tokenizer: expected {' or '.join(_TOKENIZERS)}")


def _check_gguf(path: Path) -> None:
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise UnavailableError("GGUF files are read with gguf: pip install 'sanderling[text-build]'") from error
    with path.open("rb") as stream:
        magic = stream.read(4)
    if magic != b"GGUF":
        raise ModelError(f"{path} is no GGUF file: it begins with {magic!r}; expected a Hugging Face folder or GGUF")
    try:
        reader = GGUFReader(path)
        architecture = str(reader.fields["general.architecture"].contents())
        named = {tensor.name: tensor for tensor in reader.tensors}
        tokens = reader.fields.get("tokenizer.ggml.tokens")
    except Exception as error:
        raise ModelError(f"{path} is not a whole GGUF file, it may be cut short: {first_line(error)}") from error
    if architecture not in GGUF_ARCHITECTURES:
        raise ModelError(f"{path} has the architecture '{architecture}': available are {', '.join(GGUF_ARCHITECTURES)}")
    if tokens is None:
        raise ModelError(f"{path} has no tokenizer: build from a GGUF file of the whole model")
    table = named.get("token_embd.weight")
    if table is None:
        raise ModelError(f"{path} has no token_embd.weight: build from a GGUF file of the whole model")
    rows = int(table.shape[1])
    if len(tokens.data) > rows:
        raise ModelError(
            f"{path}: the tokenizer does not match the model: it has {len(tokens.data)} tokens, the embedding {rows}"
        )

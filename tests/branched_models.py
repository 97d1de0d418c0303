"""Small models of several branches with random weights: a network that answers, and CLIP and SigLIP as folders."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np

from sanderling.workshop.multimodal import Branch, BranchedModel

SIDE_PX = 16
LONGEST = 8
WIDTH = 12
WORDS = ("[PAD]", "[UNK]", "?", "a", "color", "green", "is", "red", "the", "there", "what")
ANSWERS = ("red", "green", "yes", "no")
QUESTIONS = ("what color is the", "is there a red ?", "is there a green ?")
_PREPROCESS = json.dumps({"resize": "stretch"})


def answering_branches(*, width: int = WIDTH, answers: int = len(ANSWERS), seed: int = 0) -> BranchedModel:
    """Branches for questions; with another width the fusion does not fit."""
    import torch
    from torch import nn

    torch.manual_seed(seed)

    class Question(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(len(WORDS), WIDTH)
            self.head = nn.Linear(WIDTH, WIDTH)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.head(self.embedding(ids).mean(1)))

    class Fusion(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(2 * width, answers)

        def forward(self, picture: torch.Tensor, question: torch.Tensor) -> torch.Tensor:
            return self.head(torch.cat([picture, question], 1))

    vision = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 49, WIDTH)).eval()
    return BranchedModel(
        branches=(
            Branch("vision", "picture", vision, (f"pixels=1,3,{SIDE_PX},{SIDE_PX}",), preprocess=_PREPROCESS),
            Branch("text", "text", Question().eval(), (f"ids=1,{LONGEST}:int64",), tokenizer=WORDS, lower=True),
            Branch(
                "fusion",
                "fusion",
                Fusion().eval(),
                (f"picture=1,{width}", f"question=1,{width}"),
                takes={"picture": "vision", "question": "text"},
            ),
        ),
        answers=ANSWERS[:answers] if answers <= len(ANSWERS) else ANSWERS,
    )


def no_branches() -> BranchedModel:
    """A model without any."""
    return BranchedModel(branches=(), answers=ANSWERS)


def no_model() -> int:
    """What is no model."""
    return 1


def picture(path: Path, *, seed: int = 0, size: int = 20) -> Path:
    """Write a picture of noise around one colour."""
    from PIL import Image

    generator = np.random.default_rng(seed)
    base = generator.integers(0, 256, (1, 1, 3))
    noise = generator.integers(-20, 21, (size, size, 3))
    Image.fromarray(np.clip(base + noise, 0, 255).astype(np.uint8)).save(path)
    return path


def questions_csv(folder: Path, *, pictures: int = 12, name: str = "questions.csv") -> Path:
    """Write pictures, and a CSV of every question about each of them."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["picture", "question", "answer"])
        for number in range(pictures):
            file = picture(folder / f"{number}.png", seed=number)
            for at, question in enumerate(QUESTIONS):
                writer.writerow([file.name, question, ANSWERS[(number + at) % len(ANSWERS)]])
    return path


def clip_folder(folder: Path, kind: str = "clip") -> Path:
    """Write a CLIP or SigLIP of two layers with random weights, as transformers saves it."""
    import torch
    from transformers import AutoConfig, AutoModel

    torch.manual_seed(0)
    small = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    text: dict[str, Any] = {**small, "vocab_size": len(WORDS) + 2, "max_position_embeddings": LONGEST}
    text |= {"eos_token_id": len(WORDS) + 1, "bos_token_id": len(WORDS), "pad_token_id": 0}
    config = AutoConfig.for_model(
        kind, text_config=text, vision_config={**small, "image_size": SIDE_PX, "patch_size": 8}, projection_dim=WIDTH
    )
    AutoModel.from_config(config).save_pretrained(folder)
    _write_tokenizer(folder / "tokenizer.json")
    settings = {"image_mean": [0.5] * 3, "image_std": [0.25] * 3, "resample": 3, "do_center_crop": kind == "clip"}
    settings["size"] = {"shortest_edge": SIDE_PX} if kind == "clip" else {"height": SIDE_PX, "width": SIDE_PX}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    (folder / "tokenizer_config.json").write_text(json.dumps({"pad_token": "[PAD]"}))
    return folder


def _write_tokenizer(path: Path) -> None:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    words = (*WORDS, "<s>", "</s>")
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", len(WORDS)), ("</s>", len(WORDS) + 1)]
    )
    tokenizer.save(str(path))

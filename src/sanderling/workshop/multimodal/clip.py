"""CLIP and SigLIP as Hugging Face folders have them: two towers, and how likely a picture and a text match."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sanderling.core.errors import ModelError, UnavailableError, first_line
from sanderling.core.json_text import json_object
from sanderling.workshop.export.torch_export import quiet
from sanderling.workshop.multimodal.branches import Branch, BranchedModel

if TYPE_CHECKING:
    import torch

KINDS = ("clip", "siglip")
_RESAMPLE = {0: "nearest", 2: "bilinear", 3: "bicubic"}  # Pillow's numbers


def read_clip(folder: Path) -> BranchedModel:
    """Read a folder with config.json, weights, preprocessor_config.json and tokenizer.json.

    Raises:
        ModelError: something is missing or broken, or it is another kind of model.
        UnavailableError: transformers is not installed.
    """
    config = _read_json(folder, "config.json")
    kind = config.get("model_type")
    if kind not in KINDS:
        raise ModelError(f"{folder.name} is a model of type {kind!r}: available are {', '.join(KINDS)}")
    preprocess = _preprocessing(_read_json(folder, "preprocessor_config.json"))
    tokenizer = folder / "tokenizer.json"
    if not tokenizer.is_file():
        raise ModelError(f"{folder.name} has no tokenizer.json: save its fast tokenizer into it")
    model = _load(folder)
    picture, text = _towers(model, kind)
    side, longest = model.config.vision_config.image_size, model.config.text_config.max_position_embeddings
    ids = (f"input_ids=1,{longest}:int64",)
    inputs = ids if kind == "siglip" else (*ids, f"attention_mask=1,{longest}:int64")
    score: Literal["softmax", "sigmoid"] = "sigmoid" if kind == "siglip" else "softmax"
    return BranchedModel(
        branches=(
            Branch("picture", "picture", picture, (f"pixels=1,3,{side},{side}",), preprocess=preprocess),
            Branch("text", "text", text, inputs, tokenizer=tokenizer, filling=_filling(model, folder)),
        ),
        scale=float(model.logit_scale.detach().exp()),
        bias=float(model.logit_bias.detach()) if kind == "siglip" else 0.0,
        score=score,
    )


def _load(folder: Path) -> Any:  # noqa: ANN401 - transformers is untyped here
    try:
        from transformers import AutoModel
    except ImportError as error:
        raise UnavailableError(
            "a Hugging Face folder needs transformers: pip install 'sanderling[text-build]'"
        ) from error
    try:
        with quiet():
            return AutoModel.from_pretrained(
                folder, local_files_only=True, use_safetensors=True, attn_implementation="eager", dtype="float32"
            ).eval()
    except Exception as error:
        raise ModelError(f"{folder.name} cannot be loaded: {type(error).__name__}: {first_line(error)}") from error


def _towers(model: Any, kind: str) -> tuple[torch.nn.Module, torch.nn.Module]:  # noqa: ANN401 - as above
    """The two towers as modules that return features alone."""
    from torch import Tensor, nn

    class PictureTower(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tower = model.vision_model
            self.head = model.visual_projection if kind == "clip" else nn.Identity()

        def forward(self, pixels: Tensor) -> Tensor:
            features: Tensor = self.head(self.tower(pixel_values=pixels).pooler_output)
            return features

    class TextTower(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tower = model.text_model
            self.head = model.text_projection if kind == "clip" else nn.Identity()

        def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
            features: Tensor = self.head(self.tower(input_ids=input_ids, attention_mask=attention_mask).pooler_output)
            return features

    return PictureTower().eval(), TextTower().eval()


def _preprocessing(config: dict[str, Any]) -> str:
    """The JSON of ``--preprocess`` that does what a preprocessor_config.json says."""
    size, crop = config.get("size", 224), config.get("crop_size")
    fields: dict[str, Any] = {
        "mean": config.get("image_mean", [0.0] * 3) if config.get("do_normalize", True) else [0.0] * 3,
        "std": config.get("image_std", [1.0] * 3) if config.get("do_normalize", True) else [1.0] * 3,
        "scale": config.get("rescale_factor", 1 / 255),
    }
    resample = config.get("resample", 3)
    if resample not in _RESAMPLE:
        raise ModelError(f"preprocessor_config.json says resample {resample}: available are {sorted(_RESAMPLE)}")
    fields["interpolation"] = _RESAMPLE[resample]
    shortest = size.get("shortest_edge") if isinstance(size, dict) else size
    if shortest is not None and (config.get("do_center_crop", crop is not None)):
        fields |= {"resize": "shorter", "resize_to": int(shortest)}
    else:
        fields["resize"] = "stretch"
    return json.dumps(fields)


def _filling(model: Any, folder: Path) -> int:  # noqa: ANN401 - as above
    """The id that fills up a text: the tokenizer's own, as its folder says, else the model's."""
    settings = folder / "tokenizer_config.json"
    name = json_object(settings.read_text("utf-8"), str(settings)).get("pad_token") if settings.is_file() else None
    name = name.get("content") if isinstance(name, dict) else name
    if isinstance(name, str):
        from sanderling.run.text.tokenizer import read_tokenizer

        found = read_tokenizer(folder / "tokenizer.json").token_to_id(name)
        if found is not None:
            return int(found)
    return int(model.config.text_config.pad_token_id or 0)


def _read_json(folder: Path, name: str) -> dict[str, Any]:
    path = folder / name
    if not path.is_file():
        raise ModelError(f"{folder.name} has no {name}: expected a folder as transformers saves a CLIP or SigLIP")
    return json_object(path.read_text(encoding="utf-8", errors="replace"), str(path))

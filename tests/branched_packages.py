"""Packages of several branches that were not built: three tiny graphs, joined by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from sanderling.core.arrays import write_npz
from sanderling.core.precision import Precision
from sanderling.measure.multimodal_golden import golden_outputs
from sanderling.model.manifest import Golden, Manifest, Source, Variant
from sanderling.model.multimodal import BranchSpec, MultimodalSpec, TokenizerSpec
from sanderling.model.package import GoldenVectors, Package, file_entries, write_manifest
from sanderling.model.preprocessing import Preprocessing
from sanderling.run.composite import NAME, variant_file
from tests.models import conv_classifier, make_model, random_arrays, tensor
from tests.unit.run.guard.packages import package_of

WORDS = ("[PAD]", "[UNK]", "?", "is", "it", "what", "color", "red", "green")
ANSWERS = ("red", "green", "yes", "no")
LONGEST, WIDTH, SIDE_PX = 6, 4, 8


def answering_package(folder: Path, *, name: str = "vqa", fusion_width: int = WIDTH) -> Package:
    """Pictures 8×8 and questions of up to six words to four answers, in ``fp32`` and another ``int8``."""
    branches = {
        "vision": BranchSpec(name="vision", modality="picture", folder="branches/vision.sdl"),
        "text": _text_spec(),
        "fusion": BranchSpec(
            name="fusion",
            modality="fusion",
            folder="branches/fusion.sdl",
            takes={"picture": "vision", "question": "text"},
        ),
    }
    shapes = {"picture": (1, fusion_width), "question": (1, fusion_width)}
    _leaves(folder)
    package_of(
        folder / "branches/fusion.sdl",
        {"fp32": _fusion(fusion_width), "int8": _fusion(fusion_width)},
        [random_arrays(shapes, seed=3)],
        name="fusion",
    )
    return _joined(folder, name, "visual-question-answering", tuple(branches.values()), labels=ANSWERS)


def matching_package(folder: Path, *, name: str = "clip", score: str = "softmax") -> Package:
    """The same two towers without a fusion."""
    branches = (BranchSpec(name="vision", modality="picture", folder="branches/vision.sdl"), _text_spec())
    _leaves(folder)
    return _joined(folder, name, "image-text-matching", branches, score=score)


def picture(path: Path, *, seed: int = 0, size: int = 12) -> Path:
    """Write a picture of noise."""
    from PIL import Image

    pixels = np.random.default_rng(seed).integers(0, 256, (size, size, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def write_words(path: Path) -> Path:
    """Write a tokenizer of ``WORDS``."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(path))
    return path


def _text_spec() -> BranchSpec:
    tokenizer = TokenizerSpec(file="text.tokenizer.json", longest=LONGEST, unknown=1, lower=True)
    return BranchSpec(name="text", modality="text", folder="branches/text.sdl", tokenizer=tokenizer)


def _leaves(folder: Path) -> None:
    (folder / "branches").mkdir(parents=True)
    write_words(folder / "text.tokenizer.json")
    vision = package_of(
        folder / "branches/vision.sdl",
        {"fp32": conv_classifier(classes=WIDTH), "int8": conv_classifier(classes=WIDTH, seed=1)},
        [random_arrays({"image": (1, 3, SIDE_PX, SIDE_PX)}, seed=1)],
        name="vision",
    )
    preprocessing = Preprocessing(width=SIDE_PX, height=SIDE_PX, resize="stretch")
    write_manifest(vision.path, vision.manifest.model_copy(update={"preprocessing": preprocessing}))
    ids = np.array([[5, 6, 2, 0, 0, 0]], np.int64)
    package_of(folder / "branches/text.sdl", {"fp32": _text(0), "int8": _text(1)}, [{"ids": ids}], name="text")


def _text(seed: int) -> onnx.ModelProto:
    table = np.random.default_rng(seed).normal(size=(len(WORDS), WIDTH)).astype(np.float32)
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["found"]),
        helper.make_node("ReduceMean", ["found", "axes"], ["features"], keepdims=0),
    ]
    weights = {"table": table, "axes": np.array([1], np.int64)}
    return make_model(nodes, [tensor("ids", ["N", LONGEST], "int64")], [tensor("features", ["N", WIDTH])], weights)


def _fusion(width: int) -> onnx.ModelProto:
    weight = np.random.default_rng(5).normal(size=(2 * width, len(ANSWERS))).astype(np.float32)
    nodes = [
        helper.make_node("Concat", ["picture", "question"], ["joined"], axis=1),
        helper.make_node("MatMul", ["joined", "weight"], ["scores"]),
    ]
    inputs = [tensor(name, ["N", width]) for name in ("picture", "question")]
    return make_model(nodes, inputs, [tensor("scores", ["N", len(ANSWERS)])], {"weight": weight})


def _joined(
    folder: Path,
    name: str,
    task: str,
    branches: tuple[BranchSpec, ...],
    *,
    labels: tuple[str, ...] | None = None,
    score: str = "cosine",
) -> Package:
    variants = {each: {branch.name: each for branch in branches} for each in ("fp32", "int8")}
    spec = MultimodalSpec(task=task, branches=branches, variants=variants, scale=10.0, score=score)
    for each, chosen in variants.items():
        (folder / variant_file(each)).write_text(json.dumps(chosen))
    opened = {branch.name: Package.open(folder / branch.folder).manifest for branch in branches}
    ends = ["fusion"] if "fusion" in opened else ["vision", "text"]
    manifest = Manifest(
        name=name,
        source=Source(format="torch.module", name="tests:branches"),
        inputs=_renamed(opened, ["vision", "text"], "inputs"),
        outputs=_renamed(opened, ends, "outputs"),
        labels=labels,
        variants=tuple(
            Variant(id=each, precision=Precision(each), file=variant_file(each), size_bytes=1, engines=(NAME,))
            for each in variants
        ),
        chosen="fp32",
        golden=Golden(file="golden.npz", samples=1, tolerance={"fp32": 1e-4, "int8": 5e-2}),
        multimodal=spec,
        files=file_entries(folder),
    )
    write_manifest(folder, manifest)
    if opened.get("fusion") is None or opened["fusion"].inputs[0].shape[1] == WIDTH:
        manifest = manifest.model_copy(update={"files": _with_golden(folder)})
        write_manifest(folder, manifest)
    return Package.open(folder)


def _with_golden(folder: Path):
    package = Package.open(folder)
    call = {
        "vision": random_arrays({"image": (1, 3, SIDE_PX, SIDE_PX)}, seed=7),
        "text": {"ids": np.array([[5, 6, 2, 0, 0, 0]], np.int64)},
    }
    inputs = {f"{branch}.{name}": array[None] for branch, named in call.items() for name, array in named.items()}
    outputs = {each: golden_outputs(package, each, [call], threads=1) for each in ("fp32", "int8")}
    write_npz(folder / "golden.npz", GoldenVectors(inputs, outputs).to_arrays())
    return file_entries(folder)


def _renamed(opened, names: list[str], what: str):
    return tuple(
        spec.model_copy(update={"name": f"{name}.{spec.name}"})
        for name in names
        for spec in getattr(opened[name], what)
    )

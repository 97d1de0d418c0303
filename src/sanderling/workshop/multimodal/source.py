"""From a factory or a folder of a CLIP to branches in PyTorch, and from these to ONNX."""

from __future__ import annotations

import importlib
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sanderling.core.errors import ModelError, OptionError, UnavailableError, WeightsError, first_line
from sanderling.core.files import sha256_of
from sanderling.core.tensor import TensorSpec, random_feeds
from sanderling.model.manifest import Source
from sanderling.model.multimodal import MATCHING, TokenizerSpec, joint_fault
from sanderling.workshop.export.source import Exported
from sanderling.workshop.multimodal.branches import Branch, BranchedModel, check_model
from sanderling.workshop.multimodal.options import MultimodalBuildOptions
from sanderling.workshop.options import BuildOptions, parse_input

if TYPE_CHECKING:
    import onnx

_FACTORY = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")
_WEIGHTS = "model.safetensors"


def load_model(options: MultimodalBuildOptions) -> tuple[BranchedModel, Source]:
    """Load the branches that ``options.source`` names.

    Raises:
        OptionError: the source is neither a factory nor a folder, or has no such thing.
        ModelError: what it gives is no model for the task.
        WeightsError: the checkpoint does not fit.
        UnavailableError: PyTorch, or transformers, is not installed.
    """
    try:
        import torch  # noqa: F401 - whether it is there
    except ImportError as error:
        raise UnavailableError("branches need PyTorch: pip install 'sanderling[torch]'") from error
    folder = Path(options.source)
    if _FACTORY.match(options.source) and not folder.exists():
        model = _from_factory(options)
        digest = sha256_of(options.weights) if options.weights else None
        return model, Source(format="torch.module", name=options.source, sha256=digest)
    if not folder.is_dir():
        raise OptionError(
            f"source '{options.source}' does not exist: expected package.module:factory or a Hugging Face folder"
        )
    if options.task != MATCHING or options.weights or options.factory_arguments:
        raise OptionError(f"a folder is for --task {MATCHING}, and holds its own weights and settings")
    from sanderling.workshop.multimodal.clip import read_clip

    weights = folder / _WEIGHTS
    digest = sha256_of(weights) if weights.is_file() else None
    return check_model(read_clip(folder), options.task, folder.name), Source(
        format="huggingface", name=folder.name, sha256=digest
    )


def try_branches(model: BranchedModel, source: str) -> None:
    """Run all branches once on random inputs, so that what does not fit is told before anything is exported.

    Raises:
        ModelError: a branch does not run, has not one output of rows, or does not fit the fusion that takes it, or the
            fusion's scores are not as many as the answers.
    """
    outputs: dict[str, TensorSpec] = {}
    for branch in model.branches:
        inputs = tuple(parse_input(text) for text in branch.inputs)
        unknown = sorted(set(branch.takes.values()) - set(outputs))
        if unknown:
            raise ModelError(f"{source}: fusion '{branch.name}' takes from '{unknown[0]}': {_before(outputs)}")
        fault = joint_fault(branch.name, branch.takes, inputs, outputs) if branch.takes else None
        if fault is not None:
            raise ModelError(f"{source}: {fault}")
        outputs[branch.name] = found = _tried(branch, inputs)
        if branch.modality == "fusion" and found.shape[1] != len(model.answers):
            told = f"fusion '{branch.name}' gives {found.shape[1]} scores: there are {len(model.answers)} answers"
            raise ModelError(f"{source}: {told}")


def export_branch(branch: Branch, options: BuildOptions, source: Source) -> Exported:
    """Export a branch, and compare it with PyTorch.

    Raises:
        ModelError: it cannot be exported, disagrees, or has not one output of rows.
    """
    from sanderling.workshop.export import torch_export

    model = torch_export.to_onnx(branch.module, options)
    _check_output(model, branch)
    return Exported(model, source, torch_export.compare(branch.module, model, options))


def write_tokenizer(branch: Branch, longest: int, folder: Path, name: str) -> TokenizerSpec:
    """Put a text branch's tokenizer into the package.

    Raises:
        ModelError: the file is no tokenizer, or the words are none.
        UnavailableError: ``tokenizers`` is not installed.
    """
    from sanderling.run.text.tokenizer import read_tokenizer

    path, unknown = folder / name, None
    if isinstance(branch.tokenizer, Path):
        read_tokenizer(branch.tokenizer)
        shutil.copyfile(branch.tokenizer, path)
        unknown = _unknown_id(path)
    else:
        assert branch.tokenizer is not None
        _write_words(tuple(branch.tokenizer), path)
        unknown = 1
    return TokenizerSpec(file=name, longest=longest, filling=branch.filling, unknown=unknown, lower=branch.lower)


def _from_factory(options: MultimodalBuildOptions) -> BranchedModel:
    import torch

    module_name, _, attribute = options.source.partition(":")
    try:
        factory: object = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise OptionError(f"module '{module_name}' cannot be imported: {reason}") from error
    factory = getattr(factory, attribute, None)
    if not callable(factory):
        raise OptionError(f"'{options.source}' names no function: '{module_name}' has no '{attribute}' to call")
    torch.manual_seed(options.seed)
    try:
        made: object = factory(**options.factory_arguments)
    except (Exception, SystemExit) as error:
        raise ModelError(f"factory '{options.source}' failed: {type(error).__name__}: {first_line(error)}") from error
    model = check_model(made, options.task, options.source)
    if options.weights is not None:
        _load_weights(model, options.weights)
    for branch in model.branches:
        if not isinstance(branch.module, torch.nn.Module):
            kind = type(branch.module).__name__
            raise ModelError(f"{options.source}: branch '{branch.name}' is a {kind}: expected a torch.nn.Module")
    branches = [replace(branch, module=branch.module.eval()) for branch in model.branches]
    return replace(model, branches=branches)


def _load_weights(model: BranchedModel, path: Path) -> None:
    """Load one checkpoint into all branches: its keys begin with their names."""
    from sanderling.workshop.export.torch_source import load_weights, read_checkpoint

    checkpoint = read_checkpoint(path)
    names = [branch.name for branch in model.branches]
    strange = next((key for key in checkpoint if key.partition(".")[0] not in names), None)
    if strange is not None:
        raise WeightsError(
            f"weights {path.name} have the key '{strange}': expected one of {', '.join(names)} before a dot"
        )
    for branch in model.branches:
        prefix = f"{branch.name}."
        own = {key.removeprefix(prefix): tensor for key, tensor in checkpoint.items() if key.startswith(prefix)}
        load_weights(branch.module, own, f"{path.name} of branch '{branch.name}'")


def _tried(branch: Branch, inputs: Sequence[TensorSpec]) -> TensorSpec:
    """What a branch returns for one row of random inputs."""
    import torch

    feeds = random_feeds(inputs)
    try:
        with torch.no_grad():
            output = branch.module(*(torch.from_numpy(array) for array in feeds.values()))
    except Exception as error:
        shapes = "; ".join(map(str, inputs))
        told = f"{type(error).__name__}: {first_line(error)}"
        raise ModelError(f"branch '{branch.name}' does not run on {shapes}: {told}") from error
    if not isinstance(output, torch.Tensor) or output.ndim != 2 or output.dtype != torch.float32:
        got = f"{output.dtype}{list(output.shape)}" if isinstance(output, torch.Tensor) else type(output).__name__
        raise ModelError(f"branch '{branch.name}' returns {got}: expected one tensor, float32 (rows, width)")
    return TensorSpec(name=branch.name, dtype="float32", shape=("batch", output.shape[1]))


def _before(outputs: Mapping[str, TensorSpec]) -> str:
    return f"branches before it are {', '.join(outputs) or 'none'}"


def _check_output(model: onnx.ModelProto, branch: Branch) -> None:
    from sanderling.model.graph import output_specs

    outputs = output_specs(model)
    if len(outputs) != 1 or len(outputs[0].shape) != 2 or outputs[0].dtype != "float32":
        raise ModelError(
            f"branch '{branch.name}' returns {'; '.join(map(str, outputs))}: expected one output, float32[batch, width]"
        )


def _write_words(words: Sequence[str], path: Path) -> None:
    if len(words) < 3 or len(set(words)) != len(words):
        raise ModelError(
            f"a vocabulary of {len(words)} words, {len(set(words))} of them different: expected distinct words"
        )
    try:
        from tokenizers import Tokenizer, models, pre_tokenizers
    except ImportError as error:
        raise UnavailableError("a vocabulary needs 'tokenizers': pip install 'sanderling[text]'") from error
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token=words[1]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.Punctuation(behavior="isolated")]
    )
    tokenizer.save(str(path))


def _unknown_id(path: Path) -> int | None:
    """The id that a tokenizer gives for what it lacks, where its model has one."""
    model = json.loads(path.read_text(encoding="utf-8")).get("model", {})
    name, vocabulary = model.get("unk_token"), model.get("vocab", {})
    return vocabulary.get(name) if isinstance(vocabulary, dict) and isinstance(name, str) else None

"""What a factory of branches returns, and the checks that it is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sanderling.core.errors import ModelError
from sanderling.model.multimodal import Modality, check_kinds


@dataclass(frozen=True)
class Branch:
    """A branch as PyTorch has it.

    Attributes:
        name: small letters and digits.
        modality: ``picture``, ``text`` or ``fusion``.
        module: a ``torch.nn.Module`` in eval mode with one output, (rows, width).
        inputs: of ``forward``, in its order, such as ``pixels=1,3,64,64`` or ``ids=1,16:int64``; the first axis becomes
            dynamic. A text branch reads ids, or ``input_ids``, ``attention_mask`` and ``token_type_ids``.
        preprocess: of a picture: ``imagenet``, ``unit``, or JSON as of ``--preprocess``.
        tokenizer: of a text: a ``tokenizer.json``, or all words in the order of their ids, of which the first fills up
            short texts and the second stands for unknown words.
        lower: texts are turned to small letters first.
        filling: id that fills up short texts.
        takes: of a fusion: of each of its inputs, the branch whose output it is.
    """

    name: str
    modality: Modality
    module: Any
    inputs: Sequence[str]
    preprocess: str | None = None
    tokenizer: Path | Sequence[str] | None = None
    lower: bool = False
    filling: int = 0
    takes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class BranchedModel:
    """All branches of a model.

    Attributes:
        branches: each after those that it takes from.
        answers: in the order of the fusion's scores.
        scale: of matching: factor on the cosine of two features.
        bias: of matching: added after that.
        score: of matching: what makes it a share of 1.
    """

    branches: Sequence[Branch]
    answers: Sequence[str] = ()
    scale: float = 1.0
    bias: float = 0.0
    score: Literal["cosine", "softmax", "sigmoid"] = "cosine"


def check_model(model: object, task: str, source: str) -> BranchedModel:
    """Check that what a factory returned is a model for a task.

    Raises:
        ModelError: it is not.
    """
    if not isinstance(model, BranchedModel):
        raise ModelError(
            f"factory '{source}' returned a {type(model).__name__}: expected a "
            "sanderling.workshop.multimodal.BranchedModel"
        )
    try:
        check_kinds(task, [branch.modality for branch in model.branches])
    except ValueError as error:
        raise ModelError(f"{source}: {error}") from error
    for branch in model.branches:
        _check_branch(branch, source)
    return model


def _check_branch(branch: Branch, source: str) -> None:
    needs: dict[str, tuple[str, object]] = {
        "picture": ("preprocess", branch.preprocess),
        "text": ("tokenizer", branch.tokenizer),
        "fusion": ("takes", branch.takes or None),
    }
    name, value = needs[branch.modality]
    if value is None:
        raise ModelError(f"{source}: branch '{branch.name}' is a {branch.modality} and has no {name}")

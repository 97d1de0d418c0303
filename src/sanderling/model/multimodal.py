"""What the manifest of a model with several branches says: which there are, and how they are joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sanderling.core.tensor import TensorSpec

Modality = Literal["picture", "text", "fusion"]
Task = Literal["visual-question-answering", "image-text-matching"]
QUESTIONS, MATCHING = "visual-question-answering", "image-text-matching"
TASKS = (QUESTIONS, MATCHING)


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class TokenizerSpec(_Record):
    """How a text becomes ids.

    Attributes:
        file: of the package, as the ``tokenizers`` library has it.
        longest: most tokens of a text, to which shorter ones are filled up.
        filling: id that shorter texts are filled up with.
        unknown: id that stands for what the vocabulary lacks; None where it lacks nothing.
        lower: texts are turned to small letters first.
    """

    file: str
    longest: int = Field(gt=0)
    filling: int = Field(default=0, ge=0)
    unknown: int | None = Field(default=None, ge=0)
    lower: bool = False


class BranchSpec(_Record):
    """One branch: a graph with its own variants, in a package of its own inside the package.

    Attributes:
        name: of the branch.
        modality: what it reads: a ``picture``, a ``text``, or as a ``fusion`` what other branches give.
        folder: of its package, which holds its inputs and outputs, its preprocessing, variants and evidence.
        takes: of a fusion, the branch whose output each of its inputs is.
        tokenizer: of a text branch.
    """

    name: str = Field(pattern=r"^[a-z][a-z0-9_-]*$")
    modality: Modality
    folder: str
    takes: dict[str, str] = {}
    tokenizer: TokenizerSpec | None = None

    @model_validator(mode="after")
    def _consistent(self) -> BranchSpec:
        if (self.modality == "text") != (self.tokenizer is not None):
            raise ValueError(
                f"branch '{self.name}' reads a {self.modality}: a tokenizer is for text, and text needs one"
            )
        if (self.modality == "fusion") != bool(self.takes):
            raise ValueError(f"branch '{self.name}' is a {self.modality}: a fusion alone takes other branches' outputs")
        return self


class MultimodalSpec(_Record):
    """The graph of branches.

    Attributes:
        task: ``visual-question-answering`` or ``image-text-matching``.
        branches: each after those that it takes from.
        variants: of each variant of the package, the variant of each branch.
        scale: of matching: factor on the cosine of a picture's and a text's features.
        bias: of matching: added after that.
        score: of matching: what makes it a share of 1: ``softmax`` over the pictures, or ``sigmoid`` for each.
    """

    task: Task
    branches: tuple[BranchSpec, ...]
    variants: dict[str, dict[str, str]]
    scale: float = 1.0
    bias: float = 0.0
    score: Literal["cosine", "softmax", "sigmoid"] = "cosine"

    @model_validator(mode="after")
    def _consistent(self) -> MultimodalSpec:
        known: list[str] = []
        if not self.branches:
            raise ValueError("a model of several branches has no branches")
        for branch in self.branches:
            if branch.name in known:
                raise ValueError(f"branch '{branch.name}' stands twice")
            if missing := sorted(set(branch.takes.values()) - set(known)):
                raise ValueError(f"branch '{branch.name}' takes from '{missing[0]}': before it are {_listed(known)}")
            known.append(branch.name)
        check_kinds(self.task, [branch.modality for branch in self.branches])
        for name, chosen in self.variants.items():
            if sorted(chosen) != sorted(known):
                raise ValueError(f"variant '{name}' names {_listed(chosen)}: the branches are {_listed(known)}")
        return self

    @property
    def leaves(self) -> tuple[BranchSpec, ...]:
        """The branches that read a picture or a text, and so nothing of each other."""
        return tuple(branch for branch in self.branches if branch.modality != "fusion")

    @property
    def fusion(self) -> BranchSpec | None:
        """The branch that joins the others, where there is one."""
        return next((branch for branch in self.branches if branch.modality == "fusion"), None)

    def leaf(self, modality: Modality) -> BranchSpec:
        """The branch that reads pictures, or texts."""
        return next(branch for branch in self.branches if branch.modality == modality)


def check_kinds(task: str, kinds: list[Modality]) -> None:
    """Check that a task has the branches that it needs.

    Raises:
        ValueError: it has others.
    """
    wanted = ["fusion", "picture", "text"] if task == QUESTIONS else ["picture", "text"]
    if sorted(kinds) != wanted:
        raise ValueError(f"{task} needs one branch of each of {_listed(wanted)}: got {_listed(kinds) or 'none'}")


def _listed(names: list[str] | list[Modality] | dict[str, str]) -> str:
    return ", ".join(names)


def joint_fault(
    name: str, takes: Mapping[str, str], inputs: Sequence[TensorSpec], outputs: Mapping[str, TensorSpec]
) -> str | None:
    """Why a fusion's inputs do not fit the outputs of the branches that it takes from, or None.

    Args:
        name: of the fusion.
        takes: its inputs, and the branch that each is the output of.
        inputs: of its graph.
        outputs: of the branches, the one of each.
    """
    if {spec.name for spec in inputs} != set(takes):
        return f"fusion '{name}' has the inputs {'; '.join(map(str, inputs))}: it takes {', '.join(takes)}"
    for spec in inputs:
        given = outputs[takes[spec.name]]
        fits = given.dtype == spec.dtype and len(given.shape) == len(spec.shape)
        sizes = zip(given.shape, spec.shape, strict=False)
        if not fits or any(isinstance(x, int) and isinstance(y, int) and x != y for x, y in sizes):
            return f"branch '{takes[spec.name]}' gives {given}, and fusion '{name}' expects {spec}"
    return None

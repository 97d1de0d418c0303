"""What the manifest of a language model says beyond that of any package."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

RESIDUAL = "residual/"  # begins the names of nodes that split a product's input, which are no products of the model
OFFSETS = "offsets/"  # begins the names of inputs of products that have the means of their blocks behind them


class TextSpec(BaseModel):
    """What a language model reads and writes, alike for all its variants.

    A variant is a folder, ``variants/ID``, that holds its graph, its tokenizer and its chat template; the manifest
    lists all of its files.

    Attributes:
        architecture: family of the model, such as ``llama`` or ``qwen2``.
        context_length: most tokens that prompt and answer may have together.
        vocabulary: ids are in [0, vocabulary).
        bos_id: id that begins a text; None where the model knows none.
        eos_ids: ids that end an answer; at least one.
        adds_bos: whether the model was trained on texts that begin with ``bos_id``.
        chat_template: whether messages can be rendered; a base model has no template.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    architecture: str
    context_length: int = Field(gt=0)
    vocabulary: int = Field(gt=0)
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = Field(min_length=1)
    adds_bos: bool = False
    chat_template: bool = True


EMBEDDING_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class EmbeddingSpec(BaseModel):
    """How texts become the inputs of a model that embeds them, and its outputs their embeddings.

    Attributes:
        tokenizer: file of the package, as the ``tokenizers`` library has it.
        longest: most tokens of a text, to which shorter ones are filled up.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    tokenizer: str
    longest: int = Field(gt=0)

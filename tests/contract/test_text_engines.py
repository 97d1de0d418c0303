"""One suite that every engine for language models runs."""

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest

from sanderling.core.errors import EngineError, ModelError, OptionError
from sanderling.model.package import Package
from sanderling.run.text.base import GREEDY, Message, Sampling
from sanderling.run.text.engines import text_engine, text_engine_names

PROMPT = "the quick brown fox"
STEPS = 12


@pytest.fixture(scope="module", params=text_engine_names())
def model(request, tiny_qwen_package):
    package = Package.open(tiny_qwen_package)
    variant = package.variant("fp32")
    if request.param not in variant.engines:
        pytest.skip(f"the package has no variant for {request.param}")
    loaded = text_engine(request.param).load(package.file(variant.file).parent, package.manifest.text, threads=1)
    yield loaded
    loaded.close()


def written(model, ids, *, sampling=GREEDY, steps=STEPS):
    generation = model.generation(sampling, capacity=len(ids) + steps)
    generation.append(ids)
    tokens = [generation.next() for _ in range(steps)]
    generation.close()
    return tokens


def test_greedy_tokens_are_the_same_every_time(model):
    ids = model.encode(PROMPT)

    assert written(model, ids) == written(model, ids)


def test_next_takes_the_largest_score(model):
    generation = model.generation(capacity=64)
    generation.append(model.encode(PROMPT))

    for _ in range(STEPS):
        expected = int(generation.logits().argmax())
        assert generation.next() == expected


def test_a_prompt_in_chunks_is_the_prompt_at_once(model):
    ids = model.encode(PROMPT * 3)
    generation = model.generation(capacity=len(ids) + STEPS)

    for start in range(0, len(ids), 5):
        generation.append(ids[start : start + 5])

    assert [generation.next() for _ in range(STEPS)] == written(model, ids)


def test_rewinding_and_appending_again_gives_the_same_tokens(model):
    ids = model.encode(PROMPT)
    generation = model.generation(capacity=len(ids) + STEPS)
    generation.append(ids)
    first = [generation.next() for _ in range(STEPS)]

    generation.rewind(len(ids) - 2)
    generation.append(ids[-2:])
    again = [generation.next() for _ in range(STEPS)]
    generation.rewind(len(ids) + 4)
    rest = [generation.next() for _ in range(STEPS - 4)]

    assert again == first
    assert rest == first[4:]
    assert generation.length == len(ids) + STEPS


def test_scores_are_the_log_probabilities_of_each_step(model):
    ids = model.encode(PROMPT * 2)
    generation = model.generation(capacity=len(ids))

    expected = []
    for token, following in pairwise(ids):
        generation.append([token])
        logits = generation.logits().astype(np.float64)
        expected.append(logits[following] - np.log(np.exp(logits - logits.max()).sum()) - logits.max())

    np.testing.assert_allclose(model.score(ids), expected, atol=1e-4)


def test_text_comes_back_from_its_ids(model):
    text = "def add(a, b): naïve 中文 😀"

    assert model.decode(model.encode(text)) == text
    assert model.encode("") == []
    assert model.decode([]) == ""


def test_a_stream_gives_whole_characters_and_all_of_the_text(model):
    text = "fox 😀 中"
    decoder = model.stream_decoder()

    pieces = [decoder.feed(token) for token in model.encode(text)]

    assert "".join(pieces) + decoder.finish() == text
    assert all("�" not in piece for piece in pieces)


def test_an_end_within_a_character_is_a_replacement_character(model):
    decoder = model.stream_decoder()
    for token in model.encode("😀")[:-1]:
        decoder.feed(token)

    assert "�" in decoder.finish()
    assert decoder.finish() == ""


def test_messages_are_rendered_by_the_chat_template(model):
    prompt = model.render([Message("user", 'say "hi"\n')])

    assert prompt == '<|im_start|>user\nsay "hi"\n<|im_end|>\n<|im_start|>assistant\n'
    assert not model.render([Message("user", "hi")], add_generation_prompt=False).endswith("assistant\n")


@pytest.mark.parametrize("text", ["\ud800", "a\0b"], ids=["lone surrogate", "NUL"])
def test_text_that_no_tokenizer_reads_is_refused(model, text):
    with pytest.raises(OptionError, match="the text"):
        model.encode(text)


def test_a_seed_repeats_its_tokens_and_another_gives_others(model):
    ids = model.encode(PROMPT)
    first, again, other = (written(model, ids, sampling=Sampling(temperature=1.0, seed=seed)) for seed in (1, 1, 2))

    assert first == again
    assert first != other


@pytest.mark.parametrize(
    ("ids", "told"),
    [([], "at least one"), ([1] * 9, "do not fit"), ([320], "not in the vocabulary"), ([-1], "ids are")],
)
def test_tokens_that_cannot_be_appended_are_refused(model, ids, told):
    generation = model.generation(capacity=8)

    with pytest.raises(OptionError, match=told):
        generation.append(ids)
    assert generation.length == 0


def test_a_full_sequence_refuses_another_token(model):
    generation = model.generation(capacity=4)
    generation.append([5, 6, 7])
    generation.next()

    with pytest.raises(OptionError, match="the sequence is full"):
        generation.next()


@pytest.mark.parametrize("capacity", [0, 513])
def test_a_capacity_outside_the_context_is_refused(model, capacity):
    with pytest.raises(OptionError, match="expected 1 to 512"):
        model.generation(capacity=capacity)


def test_nothing_is_chosen_before_a_prompt(model):
    with pytest.raises(OptionError, match="append the prompt first"):
        model.generation(capacity=8).next()


def test_callers_on_several_threads_get_their_own_tokens(model):
    prompts = [model.encode(f"{PROMPT} {number}") for number in range(6)]
    expected = [written(model, ids) for ids in prompts]

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(lambda ids: written(model, ids), prompts)) == expected


def test_a_closed_sequence_is_refused_with_what_to_do(model):
    generation = model.generation(capacity=8)
    generation.close()
    generation.close()

    with pytest.raises(EngineError, match="start another"):
        generation.append([1])


def test_a_closed_model_is_refused_and_its_sequences_with_it(tiny_qwen_package):
    package = Package.open(tiny_qwen_package)
    variant = package.variant("fp32")
    model = text_engine(variant.engines[0]).load(package.file(variant.file).parent, package.manifest.text)
    generation = model.generation(capacity=8)

    model.close()
    model.close()

    with pytest.raises(EngineError):
        generation.append([1])
    with pytest.raises(EngineError, match="load the package again"):
        model.generation()


@pytest.mark.parametrize("name", text_engine_names())
def test_a_folder_without_a_model_is_refused(name, tiny_qwen_package, tmp_path):
    with pytest.raises(ModelError, match=str(tmp_path)):
        text_engine(name).load(tmp_path, Package.open(tiny_qwen_package).manifest.text)


SCHEMA = """{"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}, "required": ["n"],
"additionalProperties": false}"""


def test_a_sequence_keeps_a_json_schema_or_the_engine_says_that_it_cannot(model):
    try:
        generation = model.generation(Sampling(seed=1), capacity=128, schema=SCHEMA)
    except OptionError as error:
        assert "schema" in str(error)  # noqa: PT017 - an engine that has none
        return
    generation.append(model.encode(PROMPT))
    ids = []
    while not ids or ids[-1] not in model.spec.eos_ids:
        ids.append(generation.next())

    assert list(json.loads(model.decode(ids))) == ["n"]
    with pytest.raises(OptionError, match="JSON schema cannot go back"):
        generation.rewind(1)


def test_a_schema_that_is_none_is_refused(model):
    with pytest.raises(OptionError, match="schema"):
        model.generation(schema="nonsense")


def test_a_tokens_memory_is_known(model):
    assert model.token_bytes > 0

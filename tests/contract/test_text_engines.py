"""One suite that every engine for language models runs."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from sanderling.core.errors import EngineError, ModelError, OptionError
from sanderling.model.package import Package
from sanderling.run.text.base import GREEDY, Message, Sampling
from sanderling.run.text.engines import ONNX_ENGINES, text_engine, text_engine_names, text_engine_version
from sanderling.run.text.loading import load_model

PROMPT = "the quick brown fox"
STEPS = 12


@pytest.fixture(scope="module", params=text_engine_names())
def opened(request):
    """An engine's name, the package that has a variant for it, and the variant."""
    if not text_engine_version(request.param):
        pytest.skip(f"{request.param} is not installed")
    path = request.getfixturevalue("tiny_qwen_package" if request.param in ONNX_ENGINES else "tiny_gguf_package")
    package = Package.open(path)
    variant = next((each for each in package.manifest.variants if request.param in each.engines), None)
    if variant is None:
        pytest.skip(f"no variant for {request.param} can be built here")
    return request.param, package, variant


@pytest.fixture(scope="module")
def model(opened):
    engine, package, variant = opened
    loaded = load_model(package, variant, threads=1, engine=engine)
    yield loaded
    loaded.close()


def written(model, ids, *, sampling=GREEDY, steps=STEPS):
    generation = model.generation(sampling, capacity=len(ids) + steps)
    generation.append(ids)
    tokens = [generation.next() for _ in range(steps)]
    generation.close()
    return tokens


def near(model):
    """How far scores of the same tokens in other calls may be apart."""
    return 1e-3 if model.rows_are_independent or model.most_scored == 1 else 0.1


def _after(generation, token):
    generation.append([token])
    return generation.logits()


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


def test_rewinding_and_appending_again_gives_the_same_scores(model):
    ids = model.encode(PROMPT)
    generation = model.generation(capacity=len(ids) + STEPS)
    generation.append(ids)
    first = [generation.logits()] + [_after(generation, token) for token in range(5, 9)]

    generation.rewind(len(ids) - 2)
    generation.append(ids[-2:])
    again = [generation.logits()] + [_after(generation, token) for token in range(5, 9)]
    generation.rewind(len(ids) + 2)
    rest = [_after(generation, token) for token in range(7, 9)]

    np.testing.assert_allclose(again, first, atol=near(model))
    np.testing.assert_allclose(rest, first[3:], atol=near(model))
    assert generation.length == len(ids) + 4


def test_scores_are_the_log_probabilities_of_each_step(model):
    ids = model.encode(PROMPT * 2)
    generation = model.generation(capacity=len(ids))

    expected = []
    for token, following in pairwise(ids):
        generation.append([token])
        logits = generation.logits().astype(np.float64)
        expected.append(logits[following] - np.log(np.exp(logits - logits.max()).sum()) - logits.max())

    np.testing.assert_allclose(model.score(ids), expected, atol=near(model))


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


def test_a_closed_model_is_refused_and_its_sequences_with_it(opened):
    engine, package, variant = opened
    model = load_model(package, variant, engine=engine)
    generation = model.generation(capacity=8)

    model.close()
    model.close()

    with pytest.raises(EngineError):
        generation.append([1])
    with pytest.raises(EngineError, match="load the package again"):
        model.generation()


def test_a_folder_without_a_model_is_refused(opened, tmp_path):
    engine, package, _ = opened
    with pytest.raises(ModelError, match=str(tmp_path)):
        text_engine(engine).load(tmp_path, package.manifest.text)


def test_a_model_that_is_cut_short_is_refused(opened, tmp_path):
    engine, package, variant = opened
    folder = shutil.copytree(package.file(variant.file).parent, tmp_path / "cut")
    file = folder / Path(variant.file).name
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])

    with pytest.raises(ModelError, match="cut"):
        text_engine(engine).load(folder, package.manifest.text)


def test_scores_of_one_call_are_those_of_a_call_for_each(model):
    ids = model.encode(PROMPT)[: model.most_scored]
    one, each = model.generation(capacity=64), model.generation(capacity=64)
    one.append([5, 6])
    each.append([5, 6])

    rows = one.append_scored(ids)

    assert rows.shape == (len(ids), model.spec.vocabulary)
    for row, token in zip(rows, ids, strict=True):
        each.append([token])
        np.testing.assert_allclose(row, each.logits(), atol=near(model))
    np.testing.assert_array_equal(one.logits(), rows[-1])
    assert one.length == 2 + len(ids)


def test_more_tokens_than_one_call_tells_scores_of_are_refused(model):
    generation = model.generation(capacity=512)

    with pytest.raises(OptionError, match="to score in one call"):
        generation.append_scored([5] * (model.most_scored + 1))
    assert generation.length == 0


def test_sequences_of_any_length_go_on_in_one_call_as_they_do_alone(model):
    count = min(model.most_together, 5)
    prompts = [model.encode(PROMPT * 2)[: 3 + 4 * place] for place in range(count)]
    tokens = [7 + place for place in range(count)]
    alone = []
    for prompt, token in zip(prompts, tokens, strict=True):
        generation = model.generation(capacity=64)
        generation.append([*prompt, token])
        alone.append(generation.logits())
        generation.close()
    bystander = model.generation(capacity=64)
    generations = [model.generation(capacity=64) for _ in prompts]
    for generation, prompt in zip(generations, prompts, strict=True):
        generation.append(prompt)
    bystander.append(prompts[0])
    order = list(reversed(range(count)))

    rows = model.append_together([generations[place] for place in order], [tokens[place] for place in order])

    for place, row in zip(order, rows, strict=True):
        np.testing.assert_allclose(row, alone[place], atol=near(model))
        np.testing.assert_allclose(generations[place].logits(), row)
    bystander.append([tokens[0]])
    np.testing.assert_allclose(bystander.logits(), alone[0], atol=near(model))


def test_sequences_that_are_no_call_are_refused(model):
    generations = [model.generation(capacity=8) for _ in range(model.most_together + 1)]

    for wrong, tokens in (([], []), (generations, [1] * len(generations)), (generations[:1], [1, 2])):
        with pytest.raises(OptionError, match="sequences in one call: expected 1"):
            model.append_together(wrong, tokens)


def test_more_sequences_than_lie_side_by_side_can_be_open(model):
    generations = [model.generation(capacity=8) for _ in range(40)]
    for place, generation in enumerate(generations):
        generation.append([3 + place])

    few = generations[30 : 30 + model.most_together]
    rows = model.append_together(few, [5] * len(few))

    lone = model.generation(capacity=8)
    lone.append([33, 5])
    np.testing.assert_allclose(rows[0], lone.logits(), atol=near(model))
    for generation in generations:
        generation.close()


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

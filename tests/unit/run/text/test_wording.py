"""Texts, ids and chat templates."""

import json

import pytest

from sanderling.core.errors import ModelError, OptionError
from sanderling.model.text import TextSpec
from sanderling.run.text.base import Message
from sanderling.run.text.wording import Wording

SPEC = TextSpec(architecture="llama", context_length=64, vocabulary=300, bos_id=1, eos_ids=(2,), adds_bos=True)


@pytest.fixture
def folder(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<pad>", "<bos>", "<eos>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(["a text"], trainer)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    tmp_path.joinpath("tokenizer_config.json").write_text(json.dumps({"bos_token": {"content": "<bos>"}}))
    return tmp_path


def templated(folder, text):
    (folder / "chat_template.jinja").write_text(text)
    return Wording(folder, SPEC)


def test_a_text_begins_with_what_the_model_was_trained_on_once(folder):
    wording = Wording(folder, SPEC)
    ids = wording.encode("some text")

    assert ids[0] == 1
    assert wording.encode("<bos>some text") == ids
    assert wording.decode(ids) == "some text"
    assert Wording(folder, SPEC.model_copy(update={"adds_bos": False})).encode("some text") == ids[1:]


def test_a_template_knows_special_tokens_and_loop_controls(folder):
    wording = templated(folder, "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content | trim }}\n"
                        "{% if loop.index == 2 %}{% break %}{% endif %}{% endfor %}")  # fmt: skip

    assert wording.render([Message("user", " hi "), Message("assistant", "yes"), Message("user", "no")]) == (
        "<bos>user: hi\nassistant: yes\n"
    )


def test_a_template_that_refuses_messages_says_why(folder):
    wording = templated(folder, "{{ raise_exception('roles must alternate') }}")

    with pytest.raises(OptionError, match="the chat template refuses the messages: roles must alternate"):
        wording.render([Message("user", "hi")])


def test_a_template_cannot_reach_out_of_its_sandbox(folder):
    wording = templated(folder, "{{ messages.__class__.__mro__[1].__subclasses__() }}")

    with pytest.raises(OptionError, match="unsafe"):
        wording.render([Message("user", "hi")])


def test_a_template_that_is_none_is_refused(folder):
    with pytest.raises(ModelError, match="the chat template cannot be read"):
        templated(folder, "{% for %}").render([Message("user", "hi")])
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ModelError, match="the chat template cannot be read"):
        Wording(folder, SPEC).render([Message("user", "hi")])


def test_a_model_without_a_template_takes_plain_text_only(folder):
    with pytest.raises(OptionError, match="has no chat template"):
        Wording(folder, SPEC.model_copy(update={"chat_template": False})).render([Message("user", "hi")])

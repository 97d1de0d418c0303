import pytest

from sanderling.core.errors import ContextError, OptionError
from sanderling.run.text import loading
from sanderling.tasks.text import Chat, Generator, Message, Sampling
from tests.alphabet_package import alphabet_package
from tests.text_models import AlphabetModel
from tests.unit.serve.packages import classifier_package

FEW = Sampling(temperature=0, max_tokens=3)


@pytest.fixture
def model(monkeypatch):
    model = AlphabetModel()
    monkeypatch.setattr(loading, "load_model", lambda *_, **__: model)
    return model


@pytest.fixture
def package(tmp_path, model):  # noqa: ARG001 - it is loaded instead of the package's
    return alphabet_package(tmp_path / "alphabet.sdl").path


def test_a_generator_streams_what_it_generates(package):
    with Generator(package) as generator:
        assert "".join(generator.stream("v")) == "wxyz" == generator.generate("v").text
        assert generator.generate("v", stop=["y"]).text == "wx"
        assert generator.generate("v", sampling=FEW).finish == "length"
        assert generator.statistics().requests["completed"] == 4


def test_a_chat_keeps_what_was_said_and_computes_only_what_is_new(package):
    with Generator(package) as generator, Chat(generator, system="be brief", sampling=FEW) as chat:
        assert chat.ask("hello") == "^_`"
        assert "".join(chat.stream("again")) == "^_`"
        roles = [message.role for message in chat.messages]
        assert roles == ["system", "user", "assistant", "user", "assistant"]
        assert generator.statistics().prefix_hits == 1
        chat.forget()
        assert chat.messages == [Message("system", "be brief")]


def test_an_answer_that_is_left_is_no_part_of_the_conversation(package, model):
    with Chat(package) as chat:
        pieces = chat.stream("hello")
        next(pieces)
        pieces.close()
        assert chat.messages == []
    assert model.is_closed


def test_a_conversation_beyond_the_context_is_refused_and_stays_as_it_was(package):
    with Chat(package, sampling=FEW) as chat:
        chat.ask("hello")
        with pytest.raises(ContextError, match="the model's context; shorten it"):
            chat.ask("x" * 500)
        assert len(chat.messages) == 2


def test_a_package_of_another_kind_is_refused(tmp_path):
    other = classifier_package(tmp_path / "tiny.sdl").path
    with pytest.raises(OptionError, match="package 'tiny' generates no text"):
        Generator(other)

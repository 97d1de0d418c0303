import pytest

from sanderling.core.errors import ContextError, DataError, OptionError
from sanderling.tasks.multimodal import Answerer, told
from tests.branched_packages import ANSWERS, answering_package, matching_package, picture


@pytest.fixture(scope="module")
def answerer(tmp_path_factory):
    package = answering_package(tmp_path_factory.mktemp("ask") / "vqa.sdl")
    with Answerer(package.path) as answerer:
        yield answerer


@pytest.fixture(scope="module")
def photo(tmp_path_factory):
    return picture(tmp_path_factory.mktemp("photo") / "one.png")


def test_each_question_gets_its_answers_best_first(answerer, photo):
    answers = answerer.ask(photo, ["what color is it?", "is it red?"], top=4)
    assert [answer.question for answer in answers] == ["what color is it?", "is it red?"]
    for answer in answers:
        probabilities = [label.probability for label in answer.answers]
        assert sorted(label.label for label in answer.answers) == sorted(ANSWERS)
        assert probabilities == sorted(probabilities, reverse=True)
        assert sum(probabilities) == pytest.approx(1)
    assert answers[0].answers != answers[1].answers


def test_bytes_and_a_file_of_them_are_one_picture(answerer, photo):
    before = answerer.branches.cache.counts["misses"]
    first = answerer.ask(photo, ["is it green?"])
    assert answerer.ask(photo.read_bytes(), ["Is it GREEN?"])[0].answers == first[0].answers
    assert answerer.branches.cache.counts["misses"] <= before + 2


def test_words_that_the_model_does_not_know_are_told(answerer, photo):
    answers = answerer.ask(photo, ["is it purple?"])
    assert answers[0].unknown_words == ("purple",)
    assert "knows no 'purple'" in str(told(answers)[0])


@pytest.mark.parametrize(
    ("question", "error", "said"),
    [
        ("", OptionError, "is empty"),
        ("  \n", OptionError, "is empty"),
        ("wo steht er", DataError, "none of the words"),
        ("what \udcff is it", OptionError, "no valid UTF-8 at character 5"),
        ("is it " * 4, ContextError, "8 tokens: at most 6"),
    ],
)
def test_a_question_that_is_none_is_refused(answerer, photo, question, error, said):
    with pytest.raises(error, match=said):
        answerer.ask(photo, [question])


@pytest.mark.parametrize("data", [b"", b"no picture", b"\x89PNG\r\n\x1a\n" + b"\0" * 40])
def test_a_picture_that_is_none_is_refused_by_its_name(answerer, tmp_path, data):
    (tmp_path / "fake.png").write_bytes(data)
    with pytest.raises(DataError, match=r"fake\.png is not a readable picture"):
        answerer.ask(tmp_path / "fake.png", ["is it red?"])
    with pytest.raises(DataError, match="the picture is not a readable picture"):
        answerer.ask(data, ["is it red?"])


def test_a_picture_that_does_not_exist_is_named(answerer, tmp_path):
    with pytest.raises(DataError, match=r"none\.png cannot be read: No such file"):
        answerer.ask(tmp_path / "none.png", ["is it red?"])


def test_a_picture_cut_short_is_refused(answerer, photo):
    with pytest.raises(DataError, match="not a readable picture"):
        answerer.ask(photo.read_bytes()[:200], ["is it red?"])


def test_a_package_for_matching_answers_no_questions(tmp_path):
    with pytest.raises(OptionError, match="is for image-text-matching: build it with --task visual-question-answering"):
        Answerer(matching_package(tmp_path / "clip.sdl").path)

import numpy as np
import pytest

from sanderling.core.errors import DataError, OptionError
from sanderling.core.progress import Event, Silent
from sanderling.tasks.matching import Matcher
from sanderling.tasks.sheet import picture_sheet
from tests.branched_packages import answering_package, matching_package, picture


class Heard(Silent):
    def __init__(self) -> None:
        self.events: list[Event] = []

    def event(self, event: Event) -> None:
        self.events.append(event)


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    return matching_package(tmp_path_factory.mktemp("match") / "clip.sdl")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SANDERLING_CACHE", str(tmp_path / "cache"))
    (tmp_path / "photos/more").mkdir(parents=True)
    for number in range(5):
        picture(tmp_path / "photos" / f"{number}.png", seed=number)
    picture(tmp_path / "photos/more/5.jpg", seed=5)
    return tmp_path / "photos"


def test_the_best_pictures_come_first_with_their_cosine(package, folder):
    with Matcher(package.path) as matcher:
        library = matcher.read(folder)
        found = matcher.match(library, "what color is it", top=4)
    cosines = [match.cosine for match in found]
    assert len(library.files) == 6
    assert cosines == sorted(cosines, reverse=True)
    assert np.allclose(np.linalg.norm(library.features, axis=1), 1, atol=1e-5)
    assert all(-1 <= cosine <= 1 for cosine in cosines)


@pytest.mark.parametrize(("score", "whole"), [("softmax", True), ("sigmoid", False), ("cosine", None)])
def test_scores_are_what_the_model_makes_of_cosines(tmp_path, folder, score, whole):
    with Matcher(matching_package(tmp_path / f"{score}.sdl", score=score).path) as matcher:
        found = matcher.match(matcher.read(folder), "is it red", top=6)
    scores = [match.score for match in found]
    if whole is None:
        assert scores == [None] * 6
    elif whole:
        assert sum(scores) == pytest.approx(1, abs=1e-5)
    else:
        expected = [1 / (1 + np.exp(-10 * match.cosine)) for match in found]
        assert np.allclose(scores, expected, atol=1e-5)


def test_features_are_known_the_next_time_also_under_another_name(package, folder):
    with Matcher(package.path) as matcher:
        first = matcher.read(folder)
    (folder / "0.png").rename(folder / "renamed.png")
    with Matcher(package.path) as matcher:
        again = matcher.read(folder)
    assert (first.computed, again.computed) == (6, 0)
    assert np.allclose(np.sort(first.features, axis=0), np.sort(again.features, axis=0))
    with Matcher(package.path, variant="int8") as matcher:
        assert matcher.read(folder).computed == 6


def test_nothing_is_kept_where_that_is_asked(package, folder):
    for _ in range(2):
        with Matcher(package.path, keep=False) as matcher:
            assert matcher.read(folder).computed == 6


def test_a_damaged_index_is_told_and_made_again(package, folder, tmp_path):
    with Matcher(package.path) as matcher:
        expected = matcher.read(folder).features
    (index,) = (tmp_path / "cache/features").iterdir()
    index.write_bytes(index.read_bytes()[:100])
    heard = Heard()
    with Matcher(package.path) as matcher:
        library = matcher.read(folder, heard)
    assert [event.kind for event in heard.events] == ["index-unreadable"]
    assert np.array_equal(library.features, expected)


def test_pictures_that_are_none_are_skipped_and_told(package, folder):
    (folder / "broken.png").write_bytes(b"no picture")
    heard = Heard()
    with Matcher(package.path) as matcher:
        library = matcher.read(folder, heard)
    assert (len(library.files), library.skipped) == (6, 1)
    assert [(event.kind, event.subject) for event in heard.events] == [("picture-skipped", "broken.png")]


def test_a_folder_without_a_readable_picture_is_refused(package, tmp_path):
    with Matcher(package.path, keep=False) as matcher:
        with pytest.raises(DataError, match="is no folder"):
            matcher.read(tmp_path / "none")
        (tmp_path / "empty").mkdir()
        with pytest.raises(DataError, match="has no pictures"):
            matcher.read(tmp_path / "empty")
        (tmp_path / "empty/x.png").write_bytes(b"x")
        with pytest.raises(DataError, match="none can be read"):
            matcher.read(tmp_path / "empty")


@pytest.mark.parametrize(("text", "error"), [("", OptionError), ("zork", DataError), ("\udcff", OptionError)])
def test_a_text_that_is_none_is_refused(package, folder, text, error):
    with Matcher(package.path) as matcher, pytest.raises(error):
        matcher.match(matcher.read(folder), text)


def test_a_package_for_questions_matches_nothing(tmp_path):
    with pytest.raises(OptionError, match="build it with --task image-text-matching"):
        Matcher(answering_package(tmp_path / "vqa.sdl").path)


def test_a_sheet_holds_the_pictures_and_escapes_the_text(package, folder):
    with Matcher(package.path) as matcher:
        page = picture_sheet("<b>red</b>", matcher.match(matcher.read(folder), "is it red", top=3))
    assert page.count("data:image/jpeg;base64,") == 3
    assert "<b>red" not in page
    assert "&lt;b&gt;red" in page

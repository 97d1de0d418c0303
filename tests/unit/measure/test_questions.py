import numpy as np
import pytest

from sanderling.core.errors import DataError
from sanderling.measure.questions import read_asked
from tests.branched_packages import picture


def write(folder, text: str, *, pictures: int = 2):
    for number in range(pictures):
        picture(folder / f"{number}.png", seed=number)
    path = folder / "asked.csv"
    path.write_text(text)
    return path


ROWS = "picture,question,answer\n0.png,what is it,red\n1.png,what is it,green\n0.png,is it red,red\n"


def test_each_picture_and_text_stands_once(tmp_path):
    asked = read_asked(write(tmp_path, ROWS), ("green", "red"))
    assert [file.name for file in asked.pictures] == ["0.png", "1.png"]
    assert asked.texts == ("what is it", "is it red")
    assert asked.picture_of.tolist() == [0, 1, 0]
    assert asked.text_of.tolist() == [0, 0, 1]
    assert asked.answers.tolist() == [1, 0, 1]


def test_captions_need_no_answers(tmp_path):
    asked = read_asked(write(tmp_path, "path,caption\n0.png,a shore\n"), None)
    assert asked.answers is None
    assert asked.texts == ("a shore",)


def test_no_picture_is_on_both_sides_of_a_division(tmp_path):
    lines = [f"{row % 8}.png,question {row},red" for row in range(40)]
    asked = read_asked(write(tmp_path, "picture,question,answer\n" + "\n".join(lines), pictures=8), ("red",))
    rest, held = asked.divided(0.25, seed=0)
    assert not set(rest.pictures) & set(held.pictures)
    assert len(rest) + len(held) == 40
    assert len(held.pictures) == 2
    assert {held.pictures[at].name for at in held.picture_of} == {file.name for file in held.pictures}
    assert np.array_equal(asked.divided(0.25, seed=0)[1].picture_of, held.picture_of)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "has no rows"),
        ("picture,question,answer\n", "has no rows"),
        ("picture,question,answer\n0.png,what\n", "rows of different lengths"),
        ("bild,question,answer\n0.png,what,red\n", "columns bild, question, answer: expected one of picture"),
        ("picture,frage,answer\n0.png,what,red\n", "expected one of question, text, caption"),
        ("picture,question,answer\n9.png,what,red\n", r"9\.png, which does not exist"),
        ("picture,question,answer\n0.png,what,blue\n", "the answer 'blue', which the model cannot give"),
    ],
)
def test_a_table_that_is_none_is_refused_with_what_is_wrong(tmp_path, text, fault):
    with pytest.raises(DataError, match=fault):
        read_asked(write(tmp_path, text), ("red", "green"))


def test_a_file_that_is_no_text_or_missing_is_refused(tmp_path):
    path = tmp_path / "asked.csv"
    with pytest.raises(DataError, match="does not exist"):
        read_asked(path, None)
    path.write_bytes(b"picture,question\n\xff\xfe,x\n")
    with pytest.raises(DataError, match="no CSV of UTF-8"):
        read_asked(path, None)

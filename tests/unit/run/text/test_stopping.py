import pytest
from hypothesis import given
from hypothesis import strategies as st

from sanderling.run.text.stopping import StopStrings


@given(
    text=st.text("ab.", max_size=30), stops=st.lists(st.text("ab.", min_size=1, max_size=4), max_size=3), data=st.data()
)
def test_wherever_pieces_end_the_text_is_what_comes_before_the_first_stop(text, stops, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    found = StopStrings(stops)
    given_out = "".join(map(found.feed, pieces)) + found.finish()
    places = [text.find(stop) for stop in stops if stop in text]
    assert found.found == bool(places)
    if len(stops) <= 1 or not places:
        assert given_out == (text[: min(places)] if places else text)
    else:
        assert text.startswith(given_out)
        assert not any(stop in given_out for stop in stops)


@pytest.mark.parametrize("pieces", [("ab", "c"), ("a", "b", "c"), ("abc",), ("abcd",)])
def test_what_may_begin_a_stop_string_is_held_back_until_it_is_known(pieces):
    stops = StopStrings(["bcd"])
    given_out = "".join(map(stops.feed, pieces))
    assert given_out == "a"
    assert stops.finish() == ("" if stops.found else "bc")

import pytest

from sanderling.core.progress import Recorder, Silent
from sanderling.measure.perplexity import Change
from sanderling.workshop.text.decoder import HEAD, Decoder, Product
from sanderling.workshop.text.search import forms_of, search
from sanderling.workshop.text.storage import Form

NAMES = [f"product {number}" for number in range(50)]


class Parts(Decoder):
    """The products of a decoder, without its graph."""

    def __init__(self, on_levels=()):
        named = (Product(name, "x", f"w{name}", 64, 64) for name in [*NAMES, HEAD])
        self.products = (*named, Product("odd", "x", "wodd", 50, 64))
        self.on_levels = frozenset(on_levels)


DECODER = Parts()
ERRORS = {name: float(number) for number, name in enumerate(NAMES)}


def measured(needed):
    """A change that is inside 5 % from so many guarded products on."""

    def measure(forms):
        guarded = sum(form == Form.BLOCKS_8 for name, form in forms.items() if name != HEAD)
        percent = 1.0 if guarded >= needed else 20.0
        return Change(tokens=100, value=10, percent=percent, percent_upper=percent)

    return measure


@pytest.mark.parametrize("needed", [0, 1, 5, 10, 25, 50])
def test_as_few_products_as_hold_the_budget_are_guarded(needed):
    found = search(DECODER, Form.DYNAMIC, ERRORS, 5, measured(needed), Silent())

    assert found.guarded == needed
    assert len(found.steps) <= 6
    assert found.order[0] == NAMES[-1]


def test_a_budget_out_of_reach_is_told_and_all_are_guarded():
    recorder = Recorder(Silent())

    found = search(DECODER, Form.DYNAMIC, ERRORS, 5, measured(51), recorder)

    assert found.guarded == 50
    assert [event.kind for event in recorder.events] == ["budget-out-of-reach"]


def test_the_head_is_in_blocks_and_what_does_not_fit_stays_in_float():
    forms = forms_of(DECODER, Form.BLOCKS_4, NAMES[:1])

    assert forms[HEAD] == forms[NAMES[0]] == Form.BLOCKS_8
    assert forms[NAMES[1]] == Form.BLOCKS_4
    assert forms["odd"] == Form.FLOAT


def test_the_head_is_rounded_twice_where_the_others_are():
    forms = forms_of(DECODER, Form.RESIDUAL_8)

    assert forms[HEAD] == forms[NAMES[0]] == Form.RESIDUAL_8
    assert forms["odd"] == Form.FLOAT


def test_four_bits_keep_to_the_levels_of_weights_that_have_some():
    decoder = Parts(on_levels=NAMES[:2])

    four, eight = (forms_of(decoder, form, NAMES[:1]) for form in (Form.BLOCKS_4, Form.DYNAMIC))

    assert [four[name] for name in NAMES[:3]] == [Form.BLOCKS_8, Form.OFFSETS_4, Form.BLOCKS_4]
    assert eight[NAMES[1]] == Form.DYNAMIC

import pytest

from sanderling.core.errors import OptionError
from sanderling.model.manifest import Budget
from sanderling.workshop.text.options import check_budget, parse_text_precisions


def test_precisions_are_read_in_order_and_int8_is_the_default():
    assert parse_text_precisions("int4, INT8,int4") == ("int4", "int8")
    assert parse_text_precisions(None) == ("int8",)


@pytest.mark.parametrize("text", ["int2", "int8,int4-weights", ","])
def test_other_precisions_are_refused_with_those_there_are(text):
    with pytest.raises(OptionError, match="available are fp32, fp16, int8, int8-blocks, int8-residual, int4"):
        parse_text_precisions(text)


def test_only_perplexity_is_a_budget_of_language_models():
    assert check_budget(Budget(metric="perplexity", limit=2)).limit == 2
    with pytest.raises(OptionError, match="give perplexity=5"):
        check_budget(Budget(metric="top1", limit=1))

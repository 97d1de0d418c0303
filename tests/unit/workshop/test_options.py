from __future__ import annotations

import pytest

from sanderling.core.errors import OptionError
from sanderling.workshop.options import parse_budget, parse_dynamic, parse_input


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("image=1,3,224,224", "image: float32[1, 3, 224, 224]"),
        ("ids=1,16:int64", "ids: int64[1, 16]"),
        (" x=4 ", "x: float32[4]"),
        ("scalar=:float16", "scalar: float16[]"),
        ("scalar=", "scalar: float32[]"),
        ("a/b.c:0=2:bool", "a/b.c:0: bool[2]"),
    ],
)
def test_input_is_read_with_its_shape_and_dtype(text, expected):
    assert str(parse_input(text)) == expected


@pytest.mark.parametrize(
    "text", ["", "image", "=1,3", "image=1,,3", "image=1,3,", "image=a", "image=-1,3", "image=1x3"]
)
def test_input_of_another_form_is_told_with_an_example(text):
    with pytest.raises(OptionError, match="expected NAME=1,3,224,224"):
        parse_input(text)


def test_input_of_unknown_dtype_is_told_with_the_available_ones():
    with pytest.raises(OptionError, match="dtype 'float8': available are float32, float16"):
        parse_input("x=1:float8")


def test_input_with_an_empty_axis_is_refused():
    with pytest.raises(OptionError, match="axis of size 0"):
        parse_input("x=1,0,3")


@pytest.mark.parametrize(
    ("text", "metric", "limit"),
    [("top1=0.8", "top1", 0.8), ("agreement=2", "agreement", 2), ("cosine=1e-3", "cosine", 1e-3)],
)
def test_budget_is_read(text, metric, limit):
    budget = parse_budget(text)
    assert (budget.metric, budget.limit) == (metric, limit)


def test_budget_of_nothing_is_allowed():
    assert parse_budget("top1=0").limit == 0


@pytest.mark.parametrize("text", ["", "0.8", "top5=1", "TOP1=1", "=1"])
def test_budget_without_a_known_metric_is_told_with_them(text):
    with pytest.raises(OptionError, match="expected one of top1, map, agreement, cosine"):
        parse_budget(text)


@pytest.mark.parametrize("limit", ["", "-1", "nan", "inf", "1e999", "a", "1 %", "1=2"])
def test_budget_with_an_impossible_limit_is_refused(limit):
    with pytest.raises(OptionError, match="expected a number of at least 0"):
        parse_budget(f"top1={limit}")


def test_only_the_batch_can_be_dynamic():
    assert parse_dynamic(["batch"]) is True
    assert parse_dynamic([]) is False
    with pytest.raises(OptionError, match="'height' is not supported: only 'batch'"):
        parse_dynamic(["batch", "height"])

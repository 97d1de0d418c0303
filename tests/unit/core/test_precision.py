from __future__ import annotations

import pytest

from sanderling.core.errors import OptionError
from sanderling.core.precision import Precision, parse_precisions

FP32, FP16, INT8 = Precision.FP32, Precision.FP16, Precision.INT8


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fp32", (FP32,)),
        ("int8", (FP32, INT8)),
        ("int8,fp32", (FP32, INT8)),
        (" INT8 , fp16,", (FP32, INT8, FP16)),
        ("int8,int8", (FP32, INT8)),
        ("int4-weights", (FP32, Precision.INT4_WEIGHTS)),
        ("", (FP32,)),
    ],
)
def test_fp32_is_always_there_first_and_nothing_twice(text, expected):
    assert parse_precisions(text) == expected


def test_unknown_precision_is_named_with_the_available_ones():
    with pytest.raises(
        OptionError, match="unknown precision 'int4': available are fp32, fp16, int8, int8-weights, int4"
    ):
        parse_precisions("fp32,int4")

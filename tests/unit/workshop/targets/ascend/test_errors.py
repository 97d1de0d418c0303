"""`atc`'s numbers and texts."""

import re

import pytest

from sanderling.core.errors import EngineError, ModelError, OptionError
from sanderling.workshop.targets.ascend.errors import catalogue, failure, numbered


def test_catalogue_holds_numbers_with_texts():
    assert len(catalogue()) == 122
    assert all(re.fullmatch(r"[EW]\d{5}", code) and text for code, text in catalogue().items())
    assert all(not text.replace("%s", "").count("%") for text in catalogue().values())


def test_text_is_filled_in():
    assert numbered("E10039").startswith("atc E10039: The --dynamic_batch_size, --dynamic_image_size, or")
    assert numbered("E10035", 1, 2).endswith("has 1 profiles, which is less than the minimum 2")


@pytest.mark.parametrize(
    ("printed", "error", "told"),
    [
        ("E16002: No ONNX parser is registered for optype [Foo].", ModelError, "atc E16002: No ONNX parser"),
        ("E19010: No parser is registered for Op [div, optype [ai.onnx::23::Div]].", ModelError, "atc E19010: "),
        ("EZ3003: No supported Ops kernel and engine are found for [x].", ModelError, "atc EZ3003: "),
        ("E10501: IR for Op a with optype b is not registered.", ModelError, "atc E10501: "),
        ("E10054: The required parameter --model for ATC is empty.", OptionError, "atc E10054: "),
        ("EC0010: [PID: 1] 2025-07-08-10:25:28.680.962 Failed to import Python module.", EngineError, "atc EC0010: Fa"),
        ("E19999: Unknown error occurred.", EngineError, "atc E19999: Unknown error occurred"),
        ("E16004:", ModelError, "atc E16004: ONNX model has no graph."),
        ("ERROR: unknown command line flag 'oo'", EngineError, "this atc has no --oo: "),
        ("one\n\ntwo\n", EngineError, "atc ended with code 3: two"),
        ("", EngineError, "atc ended with code 3: it printed nothing"),
    ],
)
def test_what_atc_prints_becomes_an_error_of_ours(printed, error, told):
    found = failure("atc", f"ATC start working now, please wait for a moment.\n{printed}" if printed else "", 3)
    assert type(found) is error
    assert str(found).startswith(told)

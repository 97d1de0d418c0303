"""The page of INT8's accuracy says what its numbers say."""

import copy

import pytest

from benchmarks.quantize.table import render

PHOTOS = {"cat": 75.0, "rocket": 100.0}


def accuracy(drop, upper):
    return {
        "metric": "agreement",
        "value": 100 - drop,
        "drop": drop,
        "drop_upper": upper,
        "samples": 320,
        "sqnr_db": {"scores": 21.25},
        "photos": PHOTOS,
    }


def case():
    variants = {"int8": accuracy(12.5, 16.0), "mixed": accuracy(3.0, 5.5)}
    return {
        "name": "MobileNetV2",
        "data": "256 crops",
        "budget": "agreement=6",
        "chosen": "mixed",
        "search": {"evaluations": 9},
        "stage_seconds": {"measure sensitivity": 24.0, "search mixed precision": 40.0, "export to ONNX": 9.0},
        "seconds": 73.0,
        "macs_int8_share": {"int8": 1.0, "mixed": 0.905},
        **variants,
        "latency_p50_ms": {"fp32": 4.0, "int8": 2.0, "mixed": 3.0},
        "photos": variants,
        "fresh": variants,
    }


@pytest.fixture
def results():
    run = {
        "name": "nncf-6",
        "max_drop": 6.0,
        "macs_int8_share": 0.996,
        "seconds": 33.7,
        "validation_calls": 3,
        "versions": {"nncf": "3.4.0"},
        "evaluation": accuracy(5.6, 8.2),
        "fresh": accuracy(8.1, 11.0),
    }
    return {
        "command": "python -m benchmarks.quantize.run",
        "machine": {
            "processor": "A",
            "cores": 2,
            "cpu_features": [],
            "memory_bytes": 8 << 30,
            "system": "Linux",
            "python": "3.11",
            "versions": {},
        },
        "threads": 2,
        "cases": [case()],
        "peer": {
            "data": "256 crops",
            "calibration_samples": 256,
            "validation_samples": 320,
            "runs": [run],
            "latency_p50_ms": {"onnxruntime": {"int8": 2.0, "nncf-6": 9.0}, "openvino": {"int8": 2.1, "nncf-6": 2.2}},
        },
        "budget": None,
    }


def test_each_variant_has_its_share_drop_bound_and_times(results):
    start = "| MobileNetV2 | 256 crops | `agreement=6` |"
    page = render(results)
    assert f"{start} int8 | 100.0 % | 12.50 | 16.00 | 2.00 ms of 4.00 | 9 | 24 s | 40 s | 73 s | mixed |" in page
    assert f"{start} mixed | 90.5 % | 3.00 | 5.50 | 3.00 ms of 4.00 | 9 | 24 s | 40 s | 73 s | mixed |" in page


def test_search_that_found_nothing_is_said(results):
    for part in (results["cases"][0], results["cases"][0]["photos"]):
        del part["mixed"]
    assert "| mixed: none found |" in render(results)


def test_agreement_is_shown_photo_by_photo(results):
    assert "| all | cat | rocket | fresh, all |" in render(results)
    assert "`agreement=6`: mixed | 97.0 % | 75 % | 100 % | 97.0 % | 75 % | 100 % | 21.2 dB |" in render(results)


def test_peer_is_beside_ours_without_the_time_of_our_export(results):
    page = render(results)
    assert "| Sanderling, `agreement=6`: mixed | 90.5 % | 3.00 | 5.50 | 3.00 | 5.50 | 64 s | 9 |" in page
    assert "| openvino | 2.10 ms | 2.20 ms |" in page
    assert "| NNCF, `max_drop` 6 | 99.6 % | 5.60 | 8.20 | 8.10 | 11.00 | 34 s | 3 |" in page


def test_case_with_other_calibration_data_is_not_beside_the_peer(results):
    other = copy.deepcopy(results["cases"][0])
    other["data"] = "256 pictures"
    results["cases"] = [other]
    assert "Sanderling, " not in render(results)


def test_worst_case_of_the_budget_is_told(results):
    worst = {"shape": "steep", "limit": 2.0, "repeats": 4000, "lies": 0.031}
    results["budget"] = {"worst": worst, "cases": 200, "evaluation_samples": 300}
    assert "a form beyond the budget was accepted in 3.10 % of the repeats" in render(results)

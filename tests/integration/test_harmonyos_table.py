"""The page of the targets' benchmark says what its numbers say."""

import numpy as np
import pytest

from benchmarks.targets.harmonyos import compare
from benchmarks.targets.harmonyos_table import render


@pytest.fixture
def results():
    return {
        "command": "python -m benchmarks.targets.harmonyos",
        "machine": {
            "processor": "A",
            "cores": 2,
            "cpu_features": [],
            "memory_bytes": 8 << 30,
            "system": "Linux",
            "python": "3.11",
            "versions": {},
            "architecture": "x86_64",
        },
        "runtime": "MindSpore Lite 2.0.0",
        "converter": "a converter",
        "models": [
            {
                "name": "Taken",
                "samples": 240,
                "classifies": True,
                "float_samples": 16,
                "export_s": 11.4,
                "sizes_bytes": {"fp32": 18_500_000, "int8": 5_800_000},
                "quantized_share": {"fp32": 0.0, "int8": 0.97},
                "resizable": {"fp32": True, "int8": True},
                "fp32": 1.7e-6,
                "fp16": 0.01,
                "int8": {
                    "first_class": 0.979,
                    "first_class_or_tied": 0.992,
                    "cosine_mean": 0.9993,
                    "cosine_least": 0.9986,
                },
                "onnxruntime_itself": {"first_class": 0.9917, "first_class_or_tied": 1.0},
            },
            {
                "name": "Refused",
                "samples": 48,
                "classifies": True,
                "float_samples": 16,
                "refused": "operator Sinh",
                "export_s": 5.0,
                "sizes_bytes": {"fp32": 1_000_000},
                "quantized_share": {"fp32": 0.0},
                "resizable": {"fp32": True},
                "fp32": 2e-6,
                "fp16": 0.002,
            },
        ],
    }


def test_page_has_a_row_for_each_model_with_its_numbers(results):
    page = render(results)
    assert "| Taken | 1.7e-06 | 1.0e-02 | 240 | 97.9 % | 99.2 % | 99.2 % | 100.0 % | 0.99930 | 97 % | 18.5 MB" in page
    assert "| 18.5 MB / 5.8 MB | 11 s |" in page
    assert "| Refused | 2.0e-06 | 2.0e-03 | 48 | - | - | - | - | - | - | 1.0 MB | 5 s |" in page
    assert "- Refused, INT8: operator Sinh" in page
    assert "Converter: a converter." in page


def test_agreement_counts_ties_of_the_expected_outputs():
    expected = [np.array([[3.0, 3.0, 1.0]]), np.array([[5.0, 4.0, 1.0]]), np.array([[1.0, 0.0, 2.0]])]
    got = [np.array([[2.9, 3.0, 1.0]]), np.array([[4.0, 5.0, 1.0]]), np.array([[1.0, 0.0, 2.0]])]
    found = compare(expected, got)
    assert found["first_class"] == pytest.approx(1 / 3)
    assert found["first_class_or_tied"] == pytest.approx(2 / 3)
    assert 0.9 < found["cosine_least"] <= found["cosine_mean"] <= 1.0

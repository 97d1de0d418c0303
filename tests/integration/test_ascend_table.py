"""The page of the benchmark of Ascend says what its numbers say."""

from benchmarks.targets.ascend_table import render


def test_page_has_a_row_for_each_model_and_each_source():
    model = {
        "samples": 240,
        "export_s": 8.3,
        "size_bytes": 4_908_714,
        "nodes_in_int8": 50,
        "heavy_nodes": 51,
        "steps_largest": 1.0,
        "values_that_differ": 5.83e-6,
        "first_class": 0.9958,
        "first_class_of_onnxruntime": 0.9917,
        "cosine": 0.99987,
        "cosine_of_onnxruntime": 0.99979,
    }
    machine = {
        "processor": "A",
        "cores": 2,
        "cpu_features": [],
        "memory_bytes": 8 << 30,
        "system": "Linux",
        "python": "3.11",
        "versions": {},
        "architecture": "x86_64",
    }
    rows = [
        {"source": "rgb", "matrix": "", "levels_of_all_colours": 0.02, "levels_on_photos": 0.0149},
        {"source": "nv12", "matrix": "bt601-wide", "levels_of_all_colours": 0.52, "levels_on_photos": 0.519},
    ]
    page = render(
        {
            "command": "python -m benchmarks.targets.ascend",
            "machine": machine,
            "models": [{"name": "Lite", **model}, {"name": "MiniLM-L6", **model}],
            "aipp": {"package": "Lite", "photos": 24, "rows": rows},
        }
    )
    numbers = "0.99987 | 99.2 % | 0.99979 | 50 of 51 | 4.9 MB | 8 s |"
    assert f"| Lite | 1 | 5.8 in a million | 240 | 99.6 % | {numbers}" in page
    assert "| MiniLM-L6 | 1 | 5.8 in a million | 240 | - | 0.99987 | - | 0.99979 |" in page
    assert "| rgb | - | 0.02 | 0.01 |" in page
    assert "| nv12 | bt601-wide | 0.52 | 0.52 |" in page
    assert "24 photos" in page

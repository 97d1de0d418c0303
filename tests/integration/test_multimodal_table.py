"""The page of the benchmark is what its results say."""

import json

import pytest

from benchmarks.multimodal import table


@pytest.fixture(scope="module")
def results():
    if not table.RESULTS.is_file():
        pytest.skip("python -m benchmarks.multimodal.run was not run yet")
    return json.loads(table.RESULTS.read_text("utf-8"))


def test_the_page_is_generated_from_the_results(results):
    assert table.PAGE.read_text("utf-8") == table.render(results)


def test_the_results_say_what_the_project_promises(results):
    variants = results["answers"]["variants"]
    assert variants["fp32"]["top1"] >= 93
    assert variants["int8"]["drop"] <= 0.5
    assert all(again["ratio"] <= 0.4 for again in results["again"].values())

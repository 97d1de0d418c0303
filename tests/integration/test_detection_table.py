"""The page of the detections' benchmark is what its results give."""

from __future__ import annotations

import json

from benchmarks.vision import heads_table
from benchmarks.vision.heads import RESULTS


def test_page_is_what_the_results_give():
    results = json.loads(RESULTS.read_text("utf-8"))
    page = heads_table.PAGE.read_text("utf-8")
    assert page == heads_table.render(results)
    for case in results["cases"]:
        assert len(set(case["found"].values())) == 1, f"the ways find different numbers: {case['name']}"
        assert f"{case['ms']['Sanderling']['p50']:.2f}" in page

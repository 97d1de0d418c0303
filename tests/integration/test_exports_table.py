"""The page of the exports' benchmark is what its results say."""

import json

from benchmarks.targets.exports_table import PAGE, RESULTS, render


def test_page_is_what_the_results_say():
    assert PAGE.read_text("utf-8") == render(json.loads(RESULTS.read_text("utf-8")))


def test_int8_nets_for_rockchip_agree_on_most_photos_and_every_export_is_quick():
    rows = json.loads(RESULTS.read_text("utf-8"))["exports"]
    assert {row["target"] for row in rows} == {"openvino", "ort", "openharmony", "rknn"}
    assert all(row["seconds"] < (180 if row["target"] == "rknn" else 60) for row in rows)
    kept = [row for row in rows if row["form"].startswith("INT8 with the variant's own codes")]
    shares = [proof["value"] for row in kept for proof in row["proofs"] if proof["what"].startswith("first class")]
    assert len(shares) == 2
    assert min(shares) >= 98

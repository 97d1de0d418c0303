from __future__ import annotations

import re
from itertools import combinations

import pytest

from sanderling.core.progress import Event
from sanderling.model.plan import Plan, PlanEntry, short_name
from sanderling.model.tuning import CandidateResult, TuneResult, Tuning
from sanderling.workshop.report.pareto import SHAPES, Mark, front_of, legend, pareto
from sanderling.workshop.report.render import render_report
from tests.unit.workshop.test_report import NASTY, Page, evidence, manifest

TITLES = {"x_title": "latency", "y_title": "drop"}


def mark(label: str, x: float, y: float, **changes: object) -> Mark:
    fields = {"shape": 0, "memory_bytes": None, "hollow": False, "chosen": False}
    return Mark(label=label, x=x, y=y, **fields | changes)


def candidate(engine: str, variant: str, p50_ms: float, **changes: object) -> CandidateResult:
    fields = {
        "name": short_name(engine, "cpu", variant, "exact", 2, 1),
        "status": "lost",
        "reason": f"slower than {engine}",
        "engine": engine,
        "device": "cpu",
        "variant": variant,
        "compute": "exact",
        "threads": 2,
        "batch": 1,
        "p50_ms": p50_ms,
        "low_ms": p50_ms,
        "high_ms": p50_ms,
        "repeats": 9,
    }
    return CandidateResult(**fields | changes)


def result(*candidates: CandidateResult, **changes: object) -> TuneResult:
    winner = PlanEntry(
        engine="openvino",
        device="cpu",
        variant="int8",
        precision="int8",
        compute="exact",
        threads=2,
        batch=1,
        p50_ms=1,
        p95_ms=1,
        throughput_per_s=1,
    )
    plan = Plan(objective="latency", machine="Test Processor", engine_versions={}, winner=winner, fallbacks=())
    fields = {"package": "tiny.sdl", "fingerprint": "here", "plan": plan, "candidates": candidates, "seconds": 3}
    return TuneResult(**fields | changes)


def page(*results: TuneResult) -> Page:
    tuning = Tuning(results={entry.fingerprint: entry for entry in results})
    return Page(render_report(manifest(), evidence(), tuning))


def texts(svg: str, kind: str) -> list[str]:
    return re.findall(rf'<text class="{kind}[^"]*"[^>]*>([^<]*)</text>', svg)


def boxes(svg: str) -> list[tuple[float, float, float, float]]:
    """Rough rectangles of the names in the picture."""
    found = re.findall(r'<text class="name[^"]*" x="([-\d.]+)" y="([-\d.]+)">([^<]*)<', svg)
    return [(float(x), float(y) - 10, float(x) + 6.5 * len(name), float(y)) for x, y, name in found]


def test_front_is_what_nothing_beats():
    marks = [mark("fast", 1, 2), mark("exact", 9, 0), mark("between", 4, 1), mark("worse", 5, 1), mark("worst", 9, 2)]
    assert [found.label for found in front_of(marks)] == ["fast", "between", "exact"]


def test_front_of_one_is_that_one():
    assert front_of([mark("alone", 1, 0)]) == [mark("alone", 1, 0)]


def test_names_of_the_front_cover_no_other_name_and_stay_inside():
    crowd = [mark(f"engine/cpu/variant{index}/t2/b1", 10 + index / 50, 1 - index / 100) for index in range(40)]
    found = boxes(pareto(crowd, limit=None, **TITLES))
    assert len(found) > 2
    assert all(left > 0 and top > 0 and right < 640 for left, top, right, _ in found)
    for one, other in combinations(found, 2):
        beside = one[2] <= other[0] or other[2] <= one[0]
        assert beside or one[3] <= other[1] or other[3] <= one[1]


@pytest.mark.parametrize("xs", [(5.0,), (5.0, 5.0001), (0.01, 40_000.0), (1.0, 2.0, 3.0)])
def test_axis_has_a_few_numbers_whatever_the_span(xs):
    ticks = texts(pareto([mark("m", x, 0) for x in xs], limit=None, **TITLES), "axis")
    below = [text for text in ticks if re.fullmatch(r"[\d.e+-]+", text)]
    assert 6 + 1 <= len(below) <= 6 + 12


def test_budget_is_drawn_unless_it_would_flatten_the_picture():
    marks = [mark("a", 1, 0.5), mark("b", 2, 0)]
    assert "budget 1.5" in pareto(marks, limit=1.5, **TITLES)
    assert "budget" not in pareto(marks, limit=100, **TITLES)
    assert "budget 100" in pareto([mark("a", 1, 0)], limit=100, **TITLES)


def test_area_grows_with_memory():
    small, large = (mark("m", x, 0, memory_bytes=bytes_) for x, bytes_ in ((1, 25_000_000), (2, 100_000_000)))
    radii = [
        float(r)
        for r in re.findall(r'<circle cx="[^"]*" cy="[^"]*" r="([\d.]+)"', pareto([small, large], limit=None, **TITLES))
    ]
    assert sorted(radii)[1] == pytest.approx(2 * sorted(radii)[0], rel=0.02)


def test_every_engine_in_the_picture_is_in_the_legend():
    marks = [mark(name, 1 + index, 0, shape=index) for index, name in enumerate(SHAPES) if index != 3]
    told = [text for _, text in legend(marks, [f"engine {name}" for name in SHAPES])]
    assert told == [f"engine {name}" for name in SHAPES if name != "diamond"]


def test_only_candidates_that_raced_are_drawn_and_the_others_are_listed_with_their_reason():
    out = CandidateResult(name="ncnn/gpu:0", status="excluded", reason="the device is software")
    shown = page(result(candidate("openvino", "int8", 2.5, status="won"), candidate("ncnn", "fp32", 9), out))
    assert sum(attributes.get("class", "").startswith("mark engine") for _, attributes in shown.tags) == 2 + 2
    assert "openvino/cpu/int8/t2/b1 ✓" in shown.text
    assert "slower than ncnn" in shown.text
    assert re.search(r"1 that did not race.*ncnn/gpu:0 the device is software", shown.text)


def test_each_kind_of_device_has_its_section_and_an_engine_one_colour_on_all():
    first = result(candidate("openvino", "int8", 2), candidate("ncnn", "int8", 3))
    second = result(candidate("openvino", "int8", 2), fingerprint="there")
    shown = page(first, second)
    assert shown.text.count("Engines on Test Processor") == 2
    kinds = [str(attributes["class"]) for _, attributes in shown.tags if "mark" in str(attributes.get("class"))]
    assert sum("engine1" in kind for kind in kinds) == 2 + 2


def test_names_and_reasons_are_escaped():
    event = Event(kind="optimization-lowered", subject=NASTY, reason=NASTY)
    nasty = candidate(NASTY, "int8", 2, reason=NASTY)
    out = CandidateResult(name=NASTY, status="excluded", reason=NASTY)
    tuning = Tuning(results={"here": result(nasty, out, events=(event,))})
    html = render_report(manifest(), evidence(), tuning)
    assert "<script" not in html
    assert Page(html).open == []


def test_package_that_was_never_tuned_has_no_section():
    assert "Engines on" not in page().text


def test_result_that_nothing_can_be_drawn_of_has_no_section():
    gone = candidate("openvino", "a variant that is gone", 2)
    assert "Engines on" not in page(result(gone)).text


def test_marks_at_zero_stay_off_the_numbers_below_the_axis():
    marks = [mark("m", x, 0, memory_bytes=90_000_000, chosen=True) for x in (1, 700)]
    html = pareto(marks, limit=None, **TITLES)
    numbers = re.findall(r'<text class="axis" x="[^"]*" y="([\d.]+)" text-anchor="middle">[\d.]+<', html)
    below = min(map(float, numbers))
    rings = [tuple(map(float, found)) for found in re.findall(r'"ring" cx="([\d.]+)" cy="([\d.]+)" r="([\d.]+)"', html)]
    assert len(rings) == 2
    assert all(y + r < below - 12 and x - r > 64 and x + r < 640 - 24 for x, y, r in rings)

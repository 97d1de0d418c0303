from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import combinations

import pytest

from sanderling.core.machine import Machine
from sanderling.core.precision import Precision
from sanderling.core.progress import Event
from sanderling.core.tensor import TensorSpec
from sanderling.measure.confusion import NOTHING, Confusion
from sanderling.measure.latency import time_interleaved
from sanderling.model.manifest import Accuracy, Budget, Golden, Latency, Manifest, Source, Variant
from sanderling.workshop.evidence import (
    Candidate,
    Cost,
    Evidence,
    ExportEvidence,
    LayerError,
    Quantization,
    VariantEvidence,
)
from sanderling.workshop.optimize.simplify import PassRecord
from sanderling.workshop.report.confusion import MOST_CLASSES, confusion_chart
from sanderling.workshop.report.render import render_report

NASTY = "<script>alert('x')</script>&\"name"
COST = Cost(
    operators={"Conv": 3}, parameters=12_345, macs=67_000_000, weight_bytes=49_380, peak_activation_bytes=2_000_000
)
TIMING = time_interleaved({"a": lambda: None}, warmup=0, repeats=3)["a"]


def variant(precision: Precision, *, p50: float, drop: float, within: bool) -> Variant:
    return Variant(
        id=precision,
        precision=precision,
        file=f"model.{precision}.onnx",
        size_bytes=2_345_678,
        engines=("onnxruntime",),
        latency_ms=Latency(p50=p50, p95=p50 * 1.2, p99=p50 * 1.5),
        memory_bytes=9_000_000,
        accuracy=Accuracy(
            metric="top1",
            value=91.5 - drop,
            drop=drop,
            drop_upper=drop * 2,
            samples=500,
            sqnr_db={"y": 31.0},
            cosine={},
        ),
        within_budget=within,
    )


def layer(name: str, *, sqnr_db: float) -> LayerError:
    return LayerError(
        tensor=name, operator="Conv", sqnr_db=sqnr_db, low=-1, high=2, clipped_share=0.0125, outlier_ratio=7.5
    )


def manifest(**changes: object) -> Manifest:
    fields = {
        "name": "tiny",
        "source": Source(format="onnx", name="tiny.onnx"),
        "inputs": (TensorSpec(name="x", dtype="float32", shape=(1, 3)),),
        "outputs": (TensorSpec(name="y", dtype="float32", shape=(1, 4)),),
        "variants": (
            variant(Precision.FP32, p50=8.0, drop=0.0, within=True),
            variant(Precision.FP16, p50=11.25, drop=0.125, within=True),
            variant(Precision.INT8, p50=3.5, drop=7.75, within=False),
        ),
        "chosen": "fp32",
        "budget": Budget(metric="top1", limit=1.25),
        "golden": Golden(file="golden.npz", samples=1, tolerance={"fp32": 1e-4}),
        "files": {},
    }
    return Manifest(**fields | changes)


def evidence(**changes: object) -> Evidence:
    shown = manifest().variants
    layers = [layer(f"layer{index}", sqnr_db=40.0 - index) for index in range(20)]
    fields = {
        "machine": Machine(
            system="Linux 6.1",
            architecture="x86_64",
            processor="Test Processor",
            cores=2,
            memory_bytes=8 << 30,
            cpu_features=("avx2",),
            python="3.11",
            versions={"onnxruntime": "1.30"},
        ),
        "options": {},
        "export": None,
        "cost_before": Cost(**COST.model_dump() | {"operators": {"Conv": 3, "BatchNormalization": 3}}),
        "cost_after": COST,
        "passes": (
            PassRecord(
                name="kept pass", kept=True, relative_error=1e-7, nodes_before=9, nodes_after=5, operators={"Conv": -1}
            ),
            PassRecord(
                name="bad pass",
                kept=False,
                relative_error=None,
                nodes_before=5,
                nodes_after=5,
                operators={},
                reason="RuntimeError: no",
            ),
        ),
        "quantization": Quantization(
            samples=128,
            candidates=(
                Candidate(name="entropy, bias correction", sqnr_db=33.25, kept=True),
                Candidate(name="minmax", sqnr_db=30.5, kept=False),
            ),
            layers=tuple(layers),
        ),
        "evaluation_data": "500 samples of photos",
        "threads": 2,
        "variants": {
            item.id: VariantEvidence(accuracy=item.accuracy, latency=TIMING, memory_bytes=item.memory_bytes)
            for item in shown
        },
        "choice": "fp32 is the fastest inside the budget",
        "stage_seconds": {"simplify": 1.5},
        "events": (Event(kind="pass-undone", subject="bad pass", reason="RuntimeError: no"),),
    }
    return Evidence(**fields | changes)


class Page(HTMLParser):
    """Tags with their attributes, and the text of the page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br", "line", "circle", "rect", "link", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            assert self.open.pop() == tag, f"</{tag}> closes the wrong element"

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def test_report_needs_nothing_from_outside():
    html = render_report(manifest(), evidence())
    page = Page(html)
    assert not {tag for tag, _ in page.tags} & {"script", "link", "iframe", "img", "object", "embed", "base"}
    loading = [attributes.get(name) for _, attributes in page.tags for name in ("src", "href", "xlink:href", "data")]
    assert not any(loading)
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    without_namespace = html.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?://|@import|url\(", without_namespace)


def test_every_element_is_closed():
    page = Page(render_report(manifest(), evidence()))
    assert page.open == []
    assert [tag for tag, _ in page.tags].count("svg") == 4


def test_every_variant_is_shown_with_its_numbers():
    text = Page(render_report(manifest(), evidence())).text
    for expected in ("fp32 ✓", "fp16", "int8", "11.25 ms", "3.50 ms", "2.29×", "91.5", "7.75", "15.5", "2.3 MB"):
        assert expected in text
    assert re.search(r"int8 .* missed", text)
    assert re.search(r"fp16 .* inside", text)


def test_chosen_variant_is_marked():
    page = Page(render_report(manifest(chosen="fp16"), evidence()))
    assert "fp16 ✓" in page.text
    assert "fp32 ✓" not in page.text


def test_names_are_escaped_everywhere():
    nasty_layer = layer(NASTY, sqnr_db=1.0)
    quantization = Quantization(samples=1, candidates=(), layers=(nasty_layer,))
    events = (Event(kind="picture-skipped", subject=NASTY, reason=NASTY),)
    html = render_report(
        manifest(name=NASTY, source=Source(format="onnx", name=NASTY)),
        evidence(quantization=quantization, events=events, choice=NASTY, evaluation_data=NASTY),
    )
    page = Page(html)
    assert "<script" not in html
    assert "script" not in {tag for tag, _ in page.tags}
    assert page.text.count(NASTY) >= 7
    assert page.open == []


def test_passes_and_their_reasons_are_shown():
    text = Page(render_report(manifest(), evidence())).text
    assert "kept pass 9 → 5" in text
    assert "undone: RuntimeError: no" in text
    assert "BatchNormalization 3 → 0" in text


def test_worst_layers_come_first():
    text = Page(render_report(manifest(), evidence())).text
    table = text[text.index("worst tensors") :]
    assert table.index("layer19") < table.index("layer18") < table.index("layer17")


def test_clipped_share_and_outliers_of_the_worst_layers_are_shown():
    text = Page(render_report(manifest(), evidence())).text
    assert "layer19 Conv 21.0 dB -1 2 1.2 % 7.5×" in text


def test_every_form_that_was_tried_is_shown():
    text = Page(render_report(manifest(), evidence())).text
    assert "entropy, bias correction 33.25 dB kept" in text
    assert "minmax 30.50 dB" in text


def test_events_are_shown_and_their_absence_is_said():
    assert "pass-undone — bad pass : RuntimeError: no" in Page(render_report(manifest(), evidence())).text
    assert "No pass was undone" in Page(render_report(manifest(), evidence(events=()))).text


def test_conditions_of_the_measurement_are_shown():
    text = Page(render_report(manifest(), evidence())).text
    for expected in ("Test Processor, 2 cores", "500 samples of photos", "top1=1.25", "3 repeats", "2 threads"):
        assert expected in text


def test_comparison_with_pytorch_is_shown_when_there_was_one():
    check = ExportEvidence(batch_sizes=(1, 3), inputs_tried=4, relative_error=2e-6, tolerance=1e-4)
    text = Page(render_report(manifest(), evidence(export=check))).text
    assert "relative error 2.0e-06 on 4 inputs, batch 1 and 3" in text
    assert "ONNX against PyTorch" not in Page(render_report(manifest(), evidence())).text


def test_float_only_package_has_a_report():
    alone = (variant(Precision.FP32, p50=8.0, drop=0.0, within=True).model_copy(update={"memory_bytes": None}),)
    page = Page(render_report(manifest(variants=alone), evidence(quantization=None)))
    assert "Calibration" not in page.text
    assert "Memory added" not in page.text
    assert page.open == []


@pytest.mark.parametrize(("metric", "unit"), [("agreement", "agreement with FP32"), ("cosine", "1 − cosine")])
def test_unit_of_the_drop_follows_the_budget(metric, unit):
    assert unit in Page(render_report(manifest(budget=Budget(metric=metric, limit=0.5)), evidence())).text


def test_drop_without_an_end_does_not_break_the_chart():
    hopeless = variant(Precision.INT8, p50=0.001, drop=100.0, within=False)
    winner = variant(Precision.FP16, p50=4000.0, drop=-3.0, within=True)
    page = Page(render_report(manifest(variants=(manifest().variants[0], winner, hopeless)), evidence()))
    coordinates = [
        float(attributes[name]) for _, attributes in page.tags for name in ("cx", "cy") if name in attributes
    ]
    assert coordinates
    assert all(0 <= value <= 640 for value in coordinates)


def test_names_in_the_picture_do_not_cover_each_other():
    close = [
        variant(Precision(name), p50=8.0 + index / 100, drop=0.0, within=True) for index, name in enumerate(Precision)
    ]
    html = render_report(manifest(variants=tuple(close)), evidence())
    heights = [
        float(height) for height in re.findall(r'y="([-.\d]+)" text-anchor="(?:start|end)">(?:fp32|fp16|int8)<', html)
    ][:3]
    assert min(abs(one - other) for one, other in combinations(heights, 2)) >= 15


def test_report_is_the_same_text_twice():
    assert render_report(manifest(), evidence()) == render_report(manifest(), evidence())


def test_what_is_taken_for_what_is_shown_with_the_numbers_beside_it():
    confusion = Confusion(cells=((0, 0, 40), (1, 0, 7), (1, NOTHING, 3), (NOTHING, 1, 2)))
    whole, described = evidence(), manifest(labels=("cat & co", "dog"))
    variants = {name: item.model_copy(update={"confusion": confusion}) for name, item in whole.variants.items()}
    measured = tuple(
        item.model_copy(update={"accuracy": item.accuracy.model_copy(update={"also": {"map50": 88.25}})})
        for item in described.variants
    )
    text = render_report(
        described.model_copy(update={"variants": measured}), whole.model_copy(update={"variants": variants})
    )
    assert "dog, taken for cat &amp; co: 7 of 10" in text
    assert "nothing, taken for dog: 2 of 2" in text
    assert '<th class="n">map50</th>' in text
    assert '<td class="n">88.25</td>' in text


def test_only_the_classes_that_are_confused_most_have_a_cell():
    cells = tuple((number, (number + 1) % 60, 60 - number) for number in range(60))
    chart = confusion_chart(Confusion(cells=cells), None)
    assert chart.count("<rect") == MOST_CLASSES**2
    assert "class 1, taken for class 2: 59 of 59" in chart

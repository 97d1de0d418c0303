"""Fill the report's template with a package's manifest and evidence."""

from __future__ import annotations

from importlib import resources

from sanderling.core.drawing import page_style
from sanderling.core.errors import UnavailableError
from sanderling.model.manifest import Manifest, Variant
from sanderling.model.tuning import Tuning
from sanderling.workshop.evidence import Evidence, Search
from sanderling.workshop.report.charts import Bar, Point, bars, profile, scatter
from sanderling.workshop.report.confusion import MOST_CLASSES, confusion_chart
from sanderling.workshop.report.tuned import tuned_devices

_UNITS = {
    "top1": "points of top-1",
    "map": "points of mAP50-95",
    "agreement": "points of agreement with FP32",
    "cosine": "1 − cosine",
}
_WORST_LAYERS = 12


def render_report(manifest: Manifest, evidence: Evidence, tuning: Tuning | None = None) -> str:
    """Return the report as one HTML document.

    Args:
        manifest: of the package.
        evidence: of its build.
        tuning: what was measured when it was tuned.

    Raises:
        UnavailableError: the ``build`` extra is not installed.
    """
    try:
        from jinja2 import Environment, FunctionLoader, StrictUndefined
    except ImportError as error:
        raise UnavailableError("the report needs Jinja: pip install 'sanderling[build]'") from error
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(_template),
    )
    environment.filters |= {"megabytes": _megabytes, "number": lambda value: f"{value:,}"}
    layers = evidence.quantization.layers if evidence.quantization else ()
    return environment.get_template("report.html.j2").render(
        style=page_style(),
        manifest=manifest,
        evidence=evidence,
        chosen=manifest.variant(manifest.chosen),
        reference=manifest.variants[0],
        charts=_charts(manifest, evidence),
        search=evidence.quantization.search if evidence.quantization else None,
        worst_layers=sorted(layers, key=lambda layer: layer.sqnr_db)[:_WORST_LAYERS],
        operators=_operator_changes(evidence),
        unit=_UNITS[manifest.budget.metric] if manifest.budget else "",
        also=sorted({name for item in manifest.variants if item.accuracy for name in item.accuracy.also}),
        most_classes=MOST_CLASSES,
        tuned=tuned_devices(manifest, tuning or Tuning(), y_title=_drop_title(manifest)),
    )


def _template(name: str) -> str:
    return (resources.files("sanderling.workshop.report") / name).read_text("utf-8")


def _charts(manifest: Manifest, evidence: Evidence) -> dict[str, str]:
    charts = {
        "tradeoff": _tradeoff(manifest),
        "size": bars([_size_bar(manifest, variant) for variant in manifest.variants], title="Size on disk"),
    }
    if any(variant.memory_bytes for variant in manifest.variants):
        memory = [_memory_bar(manifest, variant) for variant in manifest.variants]
        charts["memory"] = bars(memory, title="Memory that the loaded and run model adds")
    confusion = evidence.variants[manifest.chosen].confusion
    if confusion is not None:
        charts["confusion"] = confusion_chart(confusion, manifest.labels)
    if evidence.quantization:
        layers = evidence.quantization.layers
        charts["layers"] = profile(
            [f"{layer.tensor} ({layer.operator})" for layer in layers],
            [layer.sqnr_db for layer in layers],
            y_title="SQNR, dB",
            x_title="tensors of the graph, first to last; higher is closer to FP32",
        )
        if evidence.quantization.search:
            charts["front"] = _front(manifest, evidence.quantization.search)
    return charts


def _tradeoff(manifest: Manifest) -> str:
    points = [
        Point(
            variant.id,
            variant.latency_ms.p50,
            max(variant.accuracy.drop, 0.0),
            max(variant.accuracy.drop_upper, 0.0),
            variant.id == manifest.chosen,
        )
        for variant in manifest.variants
        if variant.latency_ms and variant.accuracy
    ]
    limit = manifest.budget.limit if manifest.budget else None
    return scatter(points, x_title="latency p50, ms (batch 1)", y_title=_drop_title(manifest), limit=limit)


def _drop_title(manifest: Manifest) -> str:
    return f"drop, {_UNITS[manifest.budget.metric] if manifest.budget else ''}"


def _front(manifest: Manifest, search: Search) -> str:
    """What was tested: accuracy against the share of the computation that stays INT8."""
    points = [
        Point(
            f"{len(point.float_blocks)} in float",
            100 * point.macs_int8_share,
            max(point.accuracy.drop, 0.0),
            max(point.accuracy.drop_upper, 0.0),
            index == search.chosen,
        )
        for index, point in enumerate(search.points)
        if point.accuracy is not None
    ]
    full = next((variant.accuracy for variant in manifest.variants if variant.id == "int8"), None)
    if full is not None:
        points.append(Point("int8", 100.0, max(full.drop, 0.0), max(full.drop_upper, 0.0), False))
    budget = manifest.budget
    return scatter(
        points,
        x_title="multiply–accumulates in INT8, %",
        y_title=f"drop, {_UNITS[budget.metric] if budget else ''}",
        limit=budget.limit if budget else None,
    )


def _size_bar(manifest: Manifest, variant: Variant) -> Bar:
    share = variant.size_bytes / manifest.variants[0].size_bytes
    text = f"{_megabytes(variant.size_bytes)} ({share:.2f}×)"
    return Bar(variant.id, variant.size_bytes, text, variant.id == manifest.chosen)


def _memory_bar(manifest: Manifest, variant: Variant) -> Bar:
    used = variant.memory_bytes or 0
    text = _megabytes(used) if variant.memory_bytes else "not measured"
    return Bar(variant.id, used, text, variant.id == manifest.chosen)


def _operator_changes(evidence: Evidence) -> list[tuple[str, int, int]]:
    before, after = evidence.cost_before.operators, evidence.cost_after.operators
    return [(name, before.get(name, 0), after.get(name, 0)) for name in sorted(before | after)]


def _megabytes(size_bytes: float) -> str:
    value, unit = (size_bytes / 1e6, "MB") if size_bytes >= 1e5 else (size_bytes / 1e3, "kB")
    return f"{value:.1f}\N{NO-BREAK SPACE}{unit}"

"""The report of a language model's build."""

from __future__ import annotations

from importlib import resources

from sanderling.core.drawing import page_style
from sanderling.core.errors import UnavailableError
from sanderling.model.manifest import Manifest
from sanderling.workshop.report.charts import Bar, bars
from sanderling.workshop.text.evidence import TextEvidence

_WORST = 12


def render_text_report(manifest: Manifest, evidence: TextEvidence) -> str:
    """Return the report as one HTML document.

    Raises:
        UnavailableError: the ``build`` extra is not installed.
    """
    try:
        from jinja2 import Environment, StrictUndefined
    except ImportError as error:
        raise UnavailableError("the report needs Jinja: pip install 'sanderling[text-build]'") from error
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {
        "megabytes": lambda value: f"{value / 1e6:.1f} MB",
        "number": lambda value: f"{value:,}",
    }
    template = (resources.files("sanderling.workshop.text") / "report.html.j2").read_text("utf-8")
    sizes = [_size_bar(manifest, variant.id, variant.size_bytes) for variant in manifest.variants]
    return environment.from_string(template).render(
        style=page_style(),
        manifest=manifest,
        evidence=evidence,
        text=manifest.text,
        size=bars(sizes, title="Size on disk"),
        worst=_WORST,
    )


def _size_bar(manifest: Manifest, name: str, size_bytes: int) -> Bar:
    return Bar(name, size_bytes / 1e6, f"{size_bytes / 1e6:.1f} MB", chosen=name == manifest.chosen)

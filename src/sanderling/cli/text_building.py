"""`sanderling build --task text-generation`, and `sanderling bench` of what it made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sanderling.cli.output import ANSWER_IS_NO, print_result
from sanderling.core.errors import OptionError

if TYPE_CHECKING:
    from rich.console import Console

    from sanderling.measure.text import TextBenchResult
    from sanderling.workshop.text.pipeline import TextBuildResult

REPEATS_A_ROUND = 20


def refuse_others(given: Mapping[str, object], what: str) -> None:
    """Refuse options that mean nothing here, rather than to leave them out without a word.

    Raises:
        OptionError: one of them has a value.
    """
    wrong = [name for name, value in given.items() if value]
    if wrong:
        raise OptionError(f"{', '.join(wrong)} cannot be used with {what}")


def build_language_model(
    source: str,
    output: Path,
    *,
    precision: str | None,
    budget: str | None,
    calibration: Path | None,
    evaluation: Path | None,
    threads: int,
    as_json: bool,
) -> None:
    """Build, print what was made, and exit with 1 where a budget that was given is missed."""
    from sanderling.api import build_text
    from sanderling.cli.progress import RichProgress

    with RichProgress() as progress:
        result = build_text(
            source,
            output,
            precision=precision,
            budget=budget,
            calibration=calibration,
            evaluation=evaluation,
            threads=threads,
            progress=progress,
        )
    print_result(result.summary(), as_json=as_json, show=lambda console: _show_build(console, result))
    if budget is not None and result.budget_missed:
        raise typer.Exit(ANSWER_IS_NO)


def is_language_model(package: Path) -> bool:
    """Whether a package holds one; what is no package is refused later."""
    from sanderling.core.errors import PackageError
    from sanderling.model.package import Package

    try:
        return Package.open(package, check_files=False).manifest.text is not None
    except PackageError:
        return False


def bench_language_model(
    package: Path, *, variants: Sequence[str], threads: int, repeats: int, texts: Sequence[Path], as_json: bool
) -> None:
    """Measure, and print the numbers."""
    from sanderling.api import bench_text
    from sanderling.cli.progress import RichProgress

    rounds = max(repeats // REPEATS_A_ROUND, 1)
    with RichProgress() as progress:
        result = bench_text(package, variants=variants, threads=threads, rounds=rounds, texts=texts, progress=progress)
    print_result(result.model_dump(mode="json"), as_json=as_json, show=lambda console: _show_bench(console, result))


def _show_build(console: Console, result: TextBuildResult) -> None:
    from sanderling.cli.present import megabytes, table

    manifest, rows = result.manifest, []
    for variant in manifest.variants:
        found = result.evidence.variants[variant.id]
        same = sum(tokens >= found.answer_tokens for tokens in found.agreeing)
        rows.append(
            [
                f"{'→ ' if variant.id == manifest.chosen else '  '}{variant.id}",
                megabytes(variant.size_bytes),
                megabytes(found.peak_rss_bytes) if found.peak_rss_bytes is not None else "–",
                f"{found.timing.prefill_tokens_per_s:.0f}",
                f"{found.timing.decode_tokens_per_s:.0f}",
                f"{found.overall.value:.2f}",
                f"{found.overall.percent:+.2f} %",
                f"{found.overall.percent_upper:+.2f} %",
                f"{same} of {len(found.agreeing)}",
                "inside" if variant.within_budget else "missed",
            ]
        )
    titles = ("  variant", "size", "memory", "read/s", "write/s", "perplexity", "change", "bound", "same", "budget")
    console.print(table([(title, 0 < index < 9) for index, title in enumerate(titles)], rows))
    console.print(f"chosen: {result.evidence.choice}", soft_wrap=True)
    console.print(
        f"perplexity on {result.evidence.texts}; bound: of its change, upper 95 %; same: answers whose first "
        f"{result.evidence.variants[manifest.chosen].answer_tokens} tokens are FP32's",
        soft_wrap=True,
    )
    console.print(f"package: {result.path}", soft_wrap=True)
    if result.path.is_dir():
        console.print(f"report:  {result.path / 'report.html'}", soft_wrap=True)


def _show_bench(console: Console, result: TextBenchResult) -> None:
    from sanderling.cli.present import megabytes, table

    rows = [
        [
            variant.id,
            f"{variant.prefill_tokens_per_s:.0f}",
            f"{variant.decode_tokens_per_s:.1f}",
            f"{variant.decode_long_tokens_per_s:.1f}",
            f"{variant.ttft_ms:.1f}",
            f"{variant.inter_token_ms.p50:.1f}",
            f"{variant.inter_token_ms.p99:.1f}",
            "\n".join(f"{name} {value:.2f}" for name, value in variant.perplexity.items()),
            megabytes(variant.peak_rss_bytes) if variant.peak_rss_bytes is not None else "–",
            megabytes(variant.size_bytes),
        ]
        for variant in result.variants
    ]
    titles = (
        "variant",
        "prefill/s",
        "decode/s",
        "long/s",
        "first ms",
        "p50 ms",
        "p99 ms",
        "perplexity",
        "memory",
        "size",
    )
    console.print(table([(title, index > 0) for index, title in enumerate(titles)], rows))
    tokens = result.variants[0].prefill_tokens
    console.print(
        f"tokens a second: read (prefill) of {tokens}, written (decode) after 16 and (long) after {tokens}; first "
        f"token after 32; p50 and p99 in ms between tokens; "
        f"{result.threads} threads, {result.rounds} rounds in turn, {result.machine.processor}",
        soft_wrap=True,
    )

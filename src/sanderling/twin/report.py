"""A page about one play, or about several side by side."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from sanderling.core.drawing import page_style
from sanderling.run.emulation.table import LatencyTable
from sanderling.twin.plot import SERIES, Frame, device_class, frame_of, picture
from sanderling.twin.simulate import Played
from sanderling.twin.summary import Part, Summary

_SHOWN_SWITCHES = 24
_STYLE = "\n".join(
    [
        "main { max-width: 1360px; } main.one { max-width: 940px; }",
        ".plays { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 540px), 1fr)); gap: 1rem; }",
        ".plays section { margin: 0; } .one .plays { grid-template-columns: 1fr; }",
        *(f"svg .series{index}, .key.series{index} {{ --own: var(--series{index}); }}" for index in range(SERIES)),
        "svg .line { fill: none; stroke: var(--own); stroke-width: 2; stroke-linejoin: round; }",
        "svg .p99 { --own: var(--soft); stroke-width: 1.4; } svg .p50 { --own: var(--ink); stroke-width: 1.8; }",
        "svg line.threshold { stroke: var(--own); stroke-dasharray: 5 4; opacity: .75; }",
        "svg text.name { font-size: 12px; } svg text.name[class*=series] { fill: var(--own); font-size: 11px; }",
        "svg text.name { paint-order: stroke; stroke: var(--card); stroke-width: 4px; }",
        "svg .band { fill: var(--own); } svg line.switch { stroke: var(--ink); stroke-dasharray: 2 3; opacity: .55; }",
        "svg line.switch.many { opacity: .15; }",
        ".key { display: inline-block; width: 14px; height: 14px; border-radius: 3px; background: var(--own); }",
        ".key.p50, .key.p99 { height: 3px; } .key.p50 { --own: var(--ink); } .key.p99 { --own: var(--soft); }",
        "td.best { font-weight: 600; color: var(--mark); } section { overflow-x: auto; }",
    ]
)


def render_page(plays: Sequence[tuple[Played, Summary]], table: LatencyTable, *, trace: str, command: str) -> str:
    """Return the page as one HTML document.

    Args:
        plays: at least one; all of the same trace and table.
        table: that they were played with.
        trace: what arrived, in words.
        command: that makes this page again.
    """
    frame = frame_of([play for play, _ in plays], table)
    body = [
        f"<h1>{'Replay' if len(plays) == 1 else 'Policies compared'}</h1>",
        f'<p class="lead">{escape(trace)}</p>',
        f"<section><h2>Whole trace</h2>{_overview([summary for _, summary in plays])}</section>",
        f'<section><h2>Over time</h2>{_legend(plays[0][0])}<p class="soft">The bands show which device ran each '
        "model's requests. A dotted line is a change of the preferred device; its tip says why.</p></section>"
        if len(plays) > 1
        else "",
        '<div class="plays">',
        *(_play(play, summary, table, frame, alone=len(plays) == 1) for play, summary in plays),
        "</div>",
        f"<section><h2>How it was made</h2><p><code>{escape(command)}</code></p>",
        f'<p class="soft">Latencies, power and heat: {escape(table.source)}</p></section>',
    ]
    kind = ' class="one"' if len(plays) == 1 else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>Sanderling replay</title>\n'
        f"<style>\n{page_style()}{_STYLE}\n</style>\n</head>\n<body>\n<main{kind}>\n"
        + "\n".join(part for part in body if part)
        + "\n</main>\n</body>\n</html>\n"
    )


def _play(play: Played, summary: Summary, table: LatencyTable, frame: Frame, *, alone: bool) -> str:
    title = f"<h2>{escape(summary.name)}</h2>" + (_legend(play) if alone else "")
    return f"<section>{title}{picture(play, table, frame)}{_details(summary)}</section>"


def _legend(play: Played) -> str:
    keys = [(device_class(index), device) for index, device in enumerate(play.devices)]
    keys += [("p50", "latency p50"), ("p99", "latency p99")]
    items = "".join(f'<li><span class="key {kind}"></span>{escape(text)}</li>' for kind, text in keys)
    return f'<ul class="legend">{items}</ul>'


def _overview(summaries: Sequence[Summary]) -> str:
    """One row a play; the best number of each column stands out."""
    columns = [
        (
            "in time",
            [f"{100 * s.whole.slo_attainment:.2f} %" for s in summaries],
            [s.whole.slo_attainment for s in summaries],
        ),
        ("goodput /s", [f"{s.whole.goodput_per_s:.1f}" for s in summaries], [s.whole.goodput_per_s for s in summaries]),
        *(
            (
                f"in time, minute {minute}",
                [f"{100 * s.minutes[minute].slo_attainment:.1f} %" for s in summaries],
                [s.minutes[minute].slo_attainment for s in summaries],
            )
            for minute in summaries[0].minutes
        ),
        ("p50 ms", [_latency(s.whole, "p50") for s in summaries], None),
        ("p99 ms", [_latency(s.whole, "p99") for s in summaries], None),
        ("late", [f"{s.whole.late:,}" for s in summaries], None),
        ("dropped", [f"{s.whole.dropped:,}" for s in summaries], None),
        ("rejected", [f"{s.whole.rejected:,}" for s in summaries], None),
        ("J each", [f"{s.energy_per_inference_j:.3f}" if s.energy_per_inference_j else "–" for s in summaries], None),
        ("switches", [f"{len(s.switches)}" for s in summaries], None),
    ]
    head = "".join(f'<th class="n">{escape(title)}</th>' for title, _, _ in columns)
    rows = []
    for index, summary in enumerate(summaries):
        cells = "".join(
            f'<td class="n{" best" if len(summaries) > 1 and values and values[index] == max(values) else ""}">'
            f"{texts[index]}</td>"
            for _, texts, values in columns
        )
        rows.append(f"<tr><td>{escape(summary.name)}</td>{cells}</tr>")
    return f'<div class="wide"><table><tr><th></th>{head}</tr>{"".join(rows)}</table></div>'


def _latency(part: Part, share: str) -> str:
    return "–" if part.latency_ms is None else f"{part.latency_ms[share]:.1f}"


def _details(summary: Summary) -> str:
    limits = sorted({limit for device in summary.devices.values() for limit in device.seconds_above_c})
    head = "".join(f'<th class="n">s above {limit:g} °C</th>' for limit in limits)
    rows = "".join(
        f'<tr><td>{escape(name)}</td><td class="n">{100 * device.utilization:.0f} %</td>'
        f'<td class="n">{device.requests:,}</td><td class="n">{device.energy_j:,.0f}</td>'
        f'<td class="n">{device.highest_c:.1f}</td>'
        + "".join(
            f'<td class="n">{device.seconds_above_c[limit]:.0f}</td>'
            if limit in device.seconds_above_c
            else "<td></td>"
            for limit in limits
        )
        + "</tr>"
        for name, device in summary.devices.items()
    )
    table = (
        '<details><summary>Devices and models</summary><div class="wide"><table><tr><th>device</th>'
        f'<th class="n">busy</th><th class="n">requests</th><th class="n">J</th>'
        f'<th class="n">highest °C</th>{head}</tr>{rows}</table>'
        '<table><tr><th>model</th><th class="n">requests</th><th class="n">in time</th><th class="n">p50 ms</th>'
        f'<th class="n">p99 ms</th></tr>{_models(summary)}</table></div></details>'
    )
    return table + _switch_list(summary)


def _models(summary: Summary) -> str:
    return "".join(
        f'<tr><td>{escape(name)}</td><td class="n">{part.requests:,}</td>'
        f'<td class="n">{100 * part.slo_attainment:.2f} %</td><td class="n">{_latency(part, "p50")}</td>'
        f'<td class="n">{_latency(part, "p99")}</td></tr>'
        for name, part in summary.models.items()
    )


def _switch_list(summary: Summary) -> str:
    if not summary.switches:
        return ""
    items = "".join(
        f"<li>{switch.at_s:.1f} s, {escape(switch.model)}: {escape(switch.source)} → {escape(switch.target)}. "
        f'<span class="soft">{escape(switch.reason)}</span></li>'
        for switch in summary.switches[:_SHOWN_SWITCHES]
    )
    more = len(summary.switches) - _SHOWN_SWITCHES
    rest = f"<li>and {more} more, all in the JSON</li>" if more > 0 else ""
    return f"<details><summary>{len(summary.switches)} changes of device</summary><ul>{items}{rest}</ul></details>"

"""HTML report of a load test: one self-contained file with tables and SVG plots, in light and dark mode.

It computes nothing: all numbers come from `metrics`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from mstar.cli.bench import plots, table
from mstar.cli.bench.plots import PlotAxes, Series
from mstar.cli.bench.records import LoadRun
from mstar.cli.bench.report_style import STYLE

LEGEND = """<p>One row per stream; time in seconds.
<span class="swatch" style="background: var(--play)"></span>playing
<span class="swatch" style="background: var(--underrun)"></span>buffer underrun
<span class="swatch dashed"></span>waiting for the first chunk.
Fine marks: arrival of a chunk. Cross: no response.</p>"""
PERCENTILE_COLORS = (("p50", 0), ("p90", 2), ("p99", 1))


def render_report(about: Mapping[str, Any], levels: Sequence[Mapping[str, Any]], runs: Sequence[LoadRun]) -> str:
    """Render the page."""
    parts = [_head(about, levels), f'<div class="card wide">{_table(levels)}</div>', *_warnings(levels)]
    for kind, traffic in about["kinds"].items():
        slo = ", ".join(f"{name} {value:g} s" for name, value in traffic["slo"].items() if value is not None)
        parts.append(f"<h2>{escape(kind)}</h2><p>Model {escape(traffic['model'])}, SLO: {slo}</p>")
        figures = [*_load_plots(kind, levels, traffic["slo"]), _latency_plot(kind, runs[-1])]
        parts.append(
            '<div class="plots">' + "".join(f'<div class="card">{figure}</div>' for figure in figures) + "</div>"
        )
        if any("audio" in level["kinds"][kind] for level in levels):
            parts += _playback_plots(kind, runs)
    body = "\n".join(parts)
    title = escape(f"Load test of {about['url']}")
    meta = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    head = f"<head>{meta}<title>{title}</title><style>{STYLE}</style></head>"
    return f"<!doctype html>\n<html lang=en>\n{head}\n<body>\n{body}\n</body>\n</html>\n"


def _head(about: Mapping[str, Any], levels: Sequence[Mapping[str, Any]]) -> str:
    is_open = levels[0]["unit"] != "clients"
    mode = "open loop" if is_open else "closed loop"
    burstiness = f", burstiness {about['burstiness']:g}" if is_open else ""
    sent = sum(metrics["sent"] for level in levels for metrics in level["kinds"].values())
    seconds = sum(level["seconds"] for level in levels)
    summary = f"{sent} requests in {seconds:.0f} s; {mode}{burstiness}; seed {about['seed']}"
    return f"<h1>Load test of {escape(about['url'])}</h1><p>{summary}</p>"


def _table(levels: Sequence[Mapping[str, Any]]) -> str:
    names = ("load", "kind", *table.COLUMN_NAMES[2:])
    head = "".join(f'<th class="{"text" if name in table.TEXT_COLUMNS else ""}">{name}</th>' for name in names)
    rows = [
        "".join(
            f'<td class="{"text" if name in table.TEXT_COLUMNS else ""}">{escape(cell)}</td>'
            for name, cell in zip(names, cells, strict=True)
        )
        for level in levels
        for cells in table.make_rows(level)
    ]
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def _warnings(levels: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for level in levels:
        if warning := table.generator_warning(level):
            yield f'<p class="warn">{level["load"]:g} {level["unit"]}: {escape(warning)}</p>'


# ---------------------------------------------------------------- plots
def _load_plots(kind: str, levels: Sequence[Mapping[str, Any]], slo: Mapping[str, float | None]) -> Iterator[str]:
    """Metrics over load, if there are several levels."""
    if len(levels) < 2:
        return
    unit = levels[0]["unit"]
    loads = [(level["load"], level["kinds"][kind]) for level in levels]
    is_stream = any(metrics["itl_s"] for _, metrics in loads)
    ttft = ("Time to first token", "ttft_s", slo["ttft"])
    yield _percentiles(unit, loads, *(ttft if is_stream else ("Duration", "duration_s", slo["total"])))
    if any("audio" in metrics for _, metrics in loads):
        tolerances = [("0ms", 1), ("50ms", 2), ("100ms", 0)]
        series = [
            Series(f"±{tolerance}", _points(loads, "audio", "chunks_on_time", tolerance), color)
            for tolerance, color in tolerances
        ]
        yield plots.line_plot(PlotAxes("Chunks on time", unit, "", is_share=True), series)
    elif is_stream:
        yield _percentiles(unit, loads, "Inter-token latency", "itl_s", slo["itl"])
    throughput = [
        Series("SLO met", _points(loads, "goodput_per_s"), 0),
        Series("completed", _points(loads, "requests_per_s"), 4, is_dashed=True),
    ]
    yield plots.line_plot(PlotAxes("Requests per second", unit, "1/s"), throughput)


def _percentiles(unit: str, loads: Sequence[tuple[float, Any]], title: str, name: str, objective: float | None) -> str:
    series = [Series(percent, _points(loads, name, percent), color) for percent, color in PERCENTILE_COLORS]
    if objective is not None:
        series.append(Series("SLO", [(load, objective) for load, _ in loads], 4, is_dashed=True))
    return plots.line_plot(PlotAxes(title, unit, "seconds"), series)


def _points(loads: Sequence[tuple[float, Any]], *path: str) -> list[tuple[float, float]]:
    """A metric over load, without the levels that lack it."""
    points: list[tuple[float, float]] = []
    for load, metrics in loads:
        value: Any = metrics
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        if value is not None:
            points.append((load, value))
    return points


def _latency_plot(kind: str, run: LoadRun) -> str:
    """Latency of every request of the last load level over time."""
    records = [record for record in run.records if record.kind == kind]
    groups = (
        ("TTFT", 0, [(record.sent_at, record.ttft_s) for record in records if record.is_complete]),
        ("rejected", 1, [(record.sent_at, record.duration_s) for record in records if record.is_rejected]),
        (
            "failed",
            3,
            [(record.sent_at, record.duration_s) for record in records if record.error and not record.is_rejected],
        ),
    )
    series = [Series(name, points, tone) for name, tone, points in groups if points]
    return plots.scatter_plot(
        PlotAxes(f"Each request at {run.load:g} {run.unit}", "s since the start", "seconds"), series
    )


def _playback_plots(kind: str, runs: Sequence[LoadRun]) -> Iterator[str]:
    for at, run in enumerate(runs):
        records = [record for record in run.records if record.kind == kind]
        count = (
            f"{min(len(records), plots.MAX_STRIP_ROWS)} of {len(records)} streams"
            if len(records) > plots.MAX_STRIP_ROWS
            else f"{len(records)} streams"
        )
        is_open = " open" if at == len(runs) - 1 else ""
        title = f"<summary>Playback of {count} at {run.load:g} {run.unit}</summary>"
        yield f'<details class="card"{is_open}>{title}{LEGEND}{plots.playback_plot(records)}</details>'

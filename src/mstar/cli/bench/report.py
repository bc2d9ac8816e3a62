"""A page with everything that was measured: one file of HTML with its plots in it, which needs no other. It is light
or dark as its reader has it. What it says is in the figures; nothing is computed here but what is drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from mstar.cli.bench import plots, table
from mstar.cli.bench.plots import PlotAxes, Series
from mstar.cli.bench.records import LoadRun
from mstar.cli.bench.report_style import STYLE

LEGEND = """<p>A row is a stream, from left to right in seconds.
<span class="swatch" style="background: var(--play)"></span>sound plays
<span class="swatch" style="background: var(--dry)"></span>nothing left to play
<span class="swatch dashed"></span>waiting for the first sound.
Fine marks are arrivals; a cross is a request without an answer.</p>"""
PERCENTS = (("p50", 0), ("p90", 2), ("p99", 1))


def render_report(about: Mapping[str, Any], told: Sequence[Mapping[str, Any]], runs: Sequence[LoadRun]) -> str:
    """The whole page."""
    parts = [_head(about, told), f'<div class="card wide">{_table(told)}</div>', *_warnings(told)]
    for kind, traffic in about["kinds"].items():
        wanted = ", ".join(f"{name} {value:g} s" for name, value in traffic["slo"].items() if value is not None)
        parts.append(f"<h2>{escape(kind)}</h2><p>{escape(traffic['model'])}, wanted: {wanted}</p>")
        drawn = [*_load_plots(kind, told, traffic["slo"]), _latency_plot(kind, runs[-1])]
        parts.append('<div class="plots">' + "".join(f'<div class="card">{one}</div>' for one in drawn) + "</div>")
        if any("sound" in one["kinds"][kind] for one in told):
            parts += _playback_plots(kind, runs)
    body = "\n".join(parts)
    title = escape(f"Load on {about['url']}")
    meta = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    head = f"<head>{meta}<title>{title}</title><style>{STYLE}</style></head>"
    return f"<!doctype html>\n<html lang=en>\n{head}\n<body>\n{body}\n</body>\n</html>\n"


def _head(about: Mapping[str, Any], told: Sequence[Mapping[str, Any]]) -> str:
    is_open = told[0]["unit"] != "clients"
    how = (
        "requests come at fixed times, whatever comes back"
        if is_open
        else "clients ask again when they have their answer"
    )
    spread = f", burstiness {about['burstiness']:g}" if is_open else ""
    asked = sum(figures["sent"] for one in told for figures in one["kinds"].values())
    seconds = sum(one["seconds"] for one in told)
    words = f"{asked} requests in {seconds:.0f} s; {how}{spread}; seed {about['seed']}"
    return f"<h1>Load on {escape(about['url'])}</h1><p>{words}</p>"


def _table(told: Sequence[Mapping[str, Any]]) -> str:
    names = ("load", "kind", *table.COLUMN_NAMES[2:])
    head = "".join(f'<th class="{"words" if name in table.TEXT_COLUMNS else ""}">{name}</th>' for name in names)
    rows = [
        "".join(
            f'<td class="{"words" if name in table.TEXT_COLUMNS else ""}">{escape(cell)}</td>'
            for name, cell in zip(names, cells, strict=True)
        )
        for one in told
        for cells in table.make_rows(one)
    ]
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def _warnings(told: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for one in told:
        if warning := table.generator_warning(one):
            yield f'<p class="warn">{one["load"]:g} {one["unit"]}: {escape(warning)}</p>'


# ---------------------------------------------------------------- plots
def _load_plots(kind: str, told: Sequence[Mapping[str, Any]], slo: Mapping[str, float | None]) -> Iterator[str]:
    """What changes with the load, if there were several."""
    if len(told) < 2:
        return
    unit = told[0]["unit"]
    loads = [(one["load"], one["kinds"][kind]) for one in told]
    is_stream = any(figures["gap_s"] for _, figures in loads)
    first = ("Until the first part", "first_s", slo["first"])
    yield _percentiles(unit, loads, *(first if is_stream else ("Until the answer", "took_s", slo["total"])))
    if any("sound" in figures for _, figures in loads):
        shares = [("0ms", 1), ("50ms", 2), ("100ms", 0)]
        series = [Series(f"±{late}", _points(loads, "sound", "chunks_on_time", late), tone) for late, tone in shares]
        yield plots.line_plot(PlotAxes("Chunks that came in time", unit, "", is_share=True), series)
    elif is_stream:
        yield _percentiles(unit, loads, "From one part to the next", "gap_s", slo["itl"])
    good = [
        Series("kept what was wanted", _points(loads, "goodput_per_s"), 0),
        Series("answered", _points(loads, "per_s"), 4, is_dashed=True),
    ]
    yield plots.line_plot(PlotAxes("Answers a second", unit, "1/s"), good)


def _percentiles(unit: str, loads: Sequence[tuple[float, Any]], title: str, name: str, wanted: float | None) -> str:
    series = [Series(percent, _points(loads, name, percent), tone) for percent, tone in PERCENTS]
    if wanted is not None:
        series.append(Series("wanted", [(load, wanted) for load, _ in loads], 4, is_dashed=True))
    return plots.line_plot(PlotAxes(title, unit, "seconds"), series)


def _points(loads: Sequence[tuple[float, Any]], *path: str) -> list[tuple[float, float]]:
    """A figure by load, where it is there."""
    found: list[tuple[float, float]] = []
    for load, figures in loads:
        value: Any = figures
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        if value is not None:
            found.append((load, value))
    return found


def _latency_plot(kind: str, run: LoadRun) -> str:
    """Each request of the last load, by when it was sent."""
    mine = [one for one in run.records if one.kind == kind]
    groups = (
        ("first part", 0, [(one.sent_at, one.time_to_first_s) for one in mine if one.is_complete]),
        ("refused", 1, [(one.sent_at, one.duration_s) for one in mine if one.is_rejected]),
        ("failed", 3, [(one.sent_at, one.duration_s) for one in mine if one.error and not one.is_rejected]),
    )
    series = [Series(name, points, tone) for name, tone, points in groups if points]
    return plots.scatter_plot(
        PlotAxes(f"Each request at {run.load:g} {run.unit}", "s since the start", "seconds"), series
    )


def _playback_plots(kind: str, runs: Sequence[LoadRun]) -> Iterator[str]:
    for at, run in enumerate(runs):
        mine = [one for one in run.records if one.kind == kind]
        some = (
            f"{min(len(mine), plots.MAX_STRIP_ROWS)} of {len(mine)} streams"
            if len(mine) > plots.MAX_STRIP_ROWS
            else f"{len(mine)} streams"
        )
        is_open = " open" if at == len(runs) - 1 else ""
        title = f"<summary>{some} at {run.load:g} {run.unit}, against their players</summary>"
        yield f'<details class="card"{is_open}>{title}{LEGEND}{plots.playback_plot(mine)}</details>'

"""Plots as SVG that needs nothing else: lines over a load, dots in time, and streams against their players.

Colours are names that the page gives a meaning, so that it can be light or dark. What is plotted is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from math import floor, log10
from typing import TypeAlias

from mstar.cli.bench.metrics import playback_intervals
from mstar.cli.bench.records import RequestRecord

WIDTH, HEIGHT = 520, 280
LEFT, RIGHT, TOP, BOTTOM = 46, 14, 48, 38
STRIP_WIDTH, STRIP_ROW_HEIGHT, MAX_STRIP_ROWS = 1040, 11, 40
"""Of a picture of streams: how wide it is, how high each stream is, how many are shown."""
LOG_SCALE_RATIO = 30.0
"""When the largest is so many times the smallest, a scale has a factor for each step."""
Point: TypeAlias = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Series:
    """Points that belong together."""

    name: str
    points: Sequence[Point]
    colour: int
    """The number of a colour."""
    is_dashed: bool = False


@dataclass(frozen=True, slots=True)
class PlotAxes:
    """What a plot is of."""

    title: str
    x: str
    y: str
    is_share: bool = False
    """Whether y is a share, from 0 to 1."""


# ---------------------------------------------------------------- scales
@dataclass(frozen=True, slots=True)
class Scale:
    """Values as places between two pixels."""

    ticks: Sequence[float]
    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        """Where a value is."""
        low, high, value = (log10(max(one, 1e-9)) if self.is_log else one for one in (self.low, self.high, value))
        return round(self.start + (value - low) / (high - low) * (self.end - self.start), 1)


def tick_values(low: float, high: float, max_ticks: int = 6) -> list[float]:
    """Round values from below the lowest to above the highest: 1, 2 or 5 of some power of ten apart."""
    rough = max(high - low, 1e-9) / max_ticks
    power = 10.0 ** floor(log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first = floor(low / step + 1e-9)
    ticks = [first * step]
    while ticks[-1] < high - step * 1e-6:
        ticks.append((first + len(ticks)) * step)
    return [round(tick, 10) for tick in ticks]


def make_scale(values: Sequence[float], start: float, end: float, *, may_log: bool = False) -> Scale:
    """A scale for values of 0 and more: from 0, or with a factor for each step if they are far apart."""
    above = [value for value in values if value > 0]
    if may_log and above and max(above) / min(above) > LOG_SCALE_RATIO:
        exponents = range(floor(log10(min(above))), floor(log10(max(above))) + 2)
        ticks = [10.0**exponent for exponent in exponents]
        return Scale(ticks, ticks[0], ticks[-1], start, end, is_log=True)
    ticks = tick_values(0.0, max([*above, 1e-3]))
    return Scale(ticks, ticks[0], ticks[-1], start, end)


# ---------------------------------------------------------------- lines and dots
def line_plot(axes: PlotAxes, series: Sequence[Series]) -> str:
    """A line for each of the series."""
    x, y = _scales(axes, series)
    marks: list[str] = []
    for one in series:
        places = [(x(at), y(value)) for at, value in one.points]
        dash = ' stroke-dasharray="4 4"' if one.is_dashed else ""
        path = " ".join(f"{px},{py}" for px, py in places)
        marks.append(f'<polyline class="line t{one.colour}"{dash} points="{path}"/>')
        if not one.is_dashed:
            marks += _dots(one, places, axes, 3.2)
    return _plot(axes, x, y, series, marks)


def scatter_plot(axes: PlotAxes, series: Sequence[Series]) -> str:
    """A dot for each point."""
    x, y = _scales(axes, series)
    marks = [dot for one in series for dot in _dots(one, [(x(at), y(value)) for at, value in one.points], axes, 2.4)]
    return _plot(axes, x, y, series, marks)


def _scales(axes: PlotAxes, series: Sequence[Series]) -> tuple[Scale, Scale]:
    x = make_scale([at for one in series for at, _ in one.points], LEFT, WIDTH - RIGHT)
    values = [1.0] if axes.is_share else [value for one in series for _, value in one.points]
    return x, make_scale(values, HEIGHT - BOTTOM, TOP, may_log=True)


def _dots(one: Series, places: Sequence[Point], axes: PlotAxes, size: float) -> Iterator[str]:
    for (at, value), (px, py) in zip(one.points, places, strict=True):
        told = escape(f"{one.name}: {format_number(value, is_share=axes.is_share)} at {format_number(at)} {axes.x}")
        yield f'<circle class="dot t{one.colour}" cx="{px}" cy="{py}" r="{size}"><title>{told}</title></circle>'


def _plot(axes: PlotAxes, x: Scale, y: Scale, series: Sequence[Series], marks: Sequence[str]) -> str:
    parts = [f'<text class="title" x="0" y="13">{escape(axes.title)}</text>']
    at = 0.0
    for one in series:
        dash = ' stroke-dasharray="4 3"' if one.is_dashed else ""
        parts.append(f'<line class="key t{one.colour}"{dash} x1="{at}" y1="29" x2="{at + 14}" y2="29"/>')
        parts.append(f'<text x="{at + 19}" y="33">{escape(one.name)}</text>')
        at += 36 + 6.6 * len(one.name)
    for tick in y.ticks:
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick)}" y2="{y(tick)}"/>')
        told = format_number(tick, is_share=axes.is_share)
        parts.append(f'<text class="tick" text-anchor="end" x="{LEFT - 6}" y="{y(tick) + 4}">{told}</text>')
    foot = HEIGHT - BOTTOM
    parts += [
        f'<text class="tick" text-anchor="middle" x="{x(t)}" y="{foot + 15}">{format_number(t)}</text>' for t in x.ticks
    ]
    parts.append(f'<text class="tick" text-anchor="end" x="{WIDTH - RIGHT}" y="{HEIGHT - 6}">{escape(axes.x)}</text>')
    parts.append(f'<text class="tick" x="0" y="{HEIGHT - 6}">{escape(axes.y)}</text>')
    return _svg(WIDTH, HEIGHT, [*parts, *marks], axes.title)


# ---------------------------------------------------------------- streams
def playback_plot(records: Sequence[RequestRecord]) -> str:
    """Streams of sound, a row for each: waiting, playing, and silence where the next chunk was not there in time."""
    count = min(len(records), MAX_STRIP_ROWS)
    shown = [records[row * len(records) // count] for row in range(count)]
    x = make_scale(
        [one.ended_at for one in shown] + [playback_intervals(one.chunks)[-1][1] for one in shown if one.chunks],
        0,
        STRIP_WIDTH,
    )
    foot = len(shown) * STRIP_ROW_HEIGHT + 6
    parts = [f'<line class="grid" x1="{x(t)}" x2="{x(t)}" y1="0" y2="{foot}"/>' for t in x.ticks]
    for row, record in enumerate(shown):
        parts += _strip(record, x, row * STRIP_ROW_HEIGHT + 3)
    parts += [
        f'<text class="tick" text-anchor="middle" x="{x(t)}" y="{foot + 14}">{format_number(t)}</text>' for t in x.ticks
    ]
    return _svg(STRIP_WIDTH, foot + 20, parts, "streams against their players", margin=12)


def _strip(record: RequestRecord, x: Scale, y: float) -> Iterator[str]:
    sent, high = x(record.sent_at), STRIP_ROW_HEIGHT - 4
    if not record.chunks:
        told = f"<title>{escape(record.error)}</title>"
        yield f'<path class="lost" d="M{sent} {y}l{high} {high}m0 {-high}l{-high} {high}">{told}</path>'
        return
    first, played = x(record.chunks[0][0]), playback_intervals(record.chunks)
    yield f'<line class="wait" x1="{sent}" x2="{first}" y1="{y + high / 2}" y2="{y + high / 2}"/>'
    for start, end in played:
        yield f'<rect class="play" x="{x(start)}" y="{y}" width="{max(0.5, x(end) - x(start)):.1f}" height="{high}"/>'
    for (_, end), (start, _) in pairwise(played):
        told = f"<title>{format_number(start - end)} s of silence</title>"
        wide = max(0.5, x(start) - x(end))
        yield f'<rect class="dry" x="{x(end)}" y="{y}" width="{wide:.1f}" height="{high}">{told}</rect>'
    ticks = "".join(f"M{x(at)} {y + 1.5}v{high - 3}" for at, _ in record.chunks)
    yield f'<path class="came" d="{ticks}"/>'


# ---------------------------------------------------------------- parts
def format_number(value: float, *, is_share: bool = False) -> str:
    """A value as a reader wants it."""
    return f"{value * 100:.4g}%" if is_share else f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def _svg(width: float, height: float, parts: Sequence[str], title: str, margin: float = 0) -> str:
    box = f"{-margin} 0 {width + 2 * margin} {height}"
    return f'<svg viewBox="{box}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'

"""Self-contained SVG plots: line plots over load, scatter plots over time, and playback of audio streams.

Colors are CSS classes of the page, so that it can be light or dark. `report` chooses the data.
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

WIDTH = 520
HEIGHT = 280
LEFT = 46
RIGHT = 14
TOP = 48
BOTTOM = 38
STRIP_WIDTH = 1040
"""Width of a playback plot."""
STRIP_ROW_HEIGHT = 11
MAX_STRIP_ROWS = 40
"""Maximum number of streams in a playback plot."""
LOG_SCALE_RATIO = 30.0
"""Ratio of largest to smallest value above which an axis is logarithmic."""
Point: TypeAlias = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Series:
    """A named data series."""

    name: str
    points: Sequence[Point]
    color: int
    """Index of a color class of the page."""
    is_dashed: bool = False


@dataclass(frozen=True, slots=True)
class PlotAxes:
    """Title and axis labels of a plot."""

    title: str
    x: str
    y: str
    is_share: bool = False
    """Whether y is a fraction from 0 to 1, shown in percent."""


# ---------------------------------------------------------------- scales
@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values to pixel positions, linearly or logarithmically."""

    ticks: Sequence[float]
    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        """Pixel position of a value."""
        low, high, value = (
            log10(max(number, 1e-9)) if self.is_log else number for number in (self.low, self.high, value)
        )
        return round(self.start + (value - low) / (high - low) * (self.end - self.start), 1)


def tick_values(low: float, high: float, max_ticks: int = 6) -> list[float]:
    """Tick values that cover the range, with steps of 1, 2 or 5 times a power of ten."""
    rough = max(high - low, 1e-9) / max_ticks
    power = 10.0 ** floor(log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first = floor(low / step + 1e-9)
    ticks = [first * step]
    while ticks[-1] < high - step * 1e-6:
        ticks.append((first + len(ticks)) * step)
    return [round(tick, 10) for tick in ticks]


def make_scale(values: Sequence[float], start: float, end: float, *, allow_log: bool = False) -> Scale:
    """Scale for non-negative values, from 0, or logarithmic if allowed and the range is wide."""
    above = [value for value in values if value > 0]
    if allow_log and above and max(above) / min(above) > LOG_SCALE_RATIO:
        exponents = range(floor(log10(min(above))), floor(log10(max(above))) + 2)
        ticks = [10.0**exponent for exponent in exponents]
        return Scale(ticks, ticks[0], ticks[-1], start, end, is_log=True)
    ticks = tick_values(0.0, max([*above, 1e-3]))
    return Scale(ticks, ticks[0], ticks[-1], start, end)


# ---------------------------------------------------------------- line and scatter plots
def line_plot(axes: PlotAxes, series: Sequence[Series]) -> str:
    """Line plot with one line per series."""
    x, y = _scales(axes, series)
    marks: list[str] = []
    for one in series:
        pixels = [(x(at), y(value)) for at, value in one.points]
        dash = ' stroke-dasharray="4 4"' if one.is_dashed else ""
        path = " ".join(f"{px},{py}" for px, py in pixels)
        marks.append(f'<polyline class="line t{one.color}"{dash} points="{path}"/>')
        if not one.is_dashed:
            marks += _dots(one, pixels, axes, 3.2)
    return _plot(axes, x, y, series, marks)


def scatter_plot(axes: PlotAxes, series: Sequence[Series]) -> str:
    """Scatter plot with one dot per point."""
    x, y = _scales(axes, series)
    marks = [dot for one in series for dot in _dots(one, [(x(at), y(value)) for at, value in one.points], axes, 2.4)]
    return _plot(axes, x, y, series, marks)


def _scales(axes: PlotAxes, series: Sequence[Series]) -> tuple[Scale, Scale]:
    x = make_scale([at for one in series for at, _ in one.points], LEFT, WIDTH - RIGHT)
    values = [1.0] if axes.is_share else [value for one in series for _, value in one.points]
    return x, make_scale(values, HEIGHT - BOTTOM, TOP, allow_log=True)


def _dots(series: Series, pixels: Sequence[Point], axes: PlotAxes, size: float) -> Iterator[str]:
    for (at, value), (px, py) in zip(series.points, pixels, strict=True):
        label = escape(f"{series.name}: {format_number(value, is_share=axes.is_share)} at {format_number(at)} {axes.x}")
        yield f'<circle class="dot t{series.color}" cx="{px}" cy="{py}" r="{size}"><title>{label}</title></circle>'


def _plot(axes: PlotAxes, x: Scale, y: Scale, series: Sequence[Series], marks: Sequence[str]) -> str:
    parts = [f'<text class="title" x="0" y="13">{escape(axes.title)}</text>']
    at = 0.0
    for one in series:
        dash = ' stroke-dasharray="4 3"' if one.is_dashed else ""
        parts.append(f'<line class="key t{one.color}"{dash} x1="{at}" y1="29" x2="{at + 14}" y2="29"/>')
        parts.append(f'<text x="{at + 19}" y="33">{escape(one.name)}</text>')
        at += 36 + 6.6 * len(one.name)
    for tick in y.ticks:
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick)}" y2="{y(tick)}"/>')
        label = format_number(tick, is_share=axes.is_share)
        parts.append(f'<text class="tick" text-anchor="end" x="{LEFT - 6}" y="{y(tick) + 4}">{label}</text>')
    foot = HEIGHT - BOTTOM
    parts += [
        f'<text class="tick" text-anchor="middle" x="{x(t)}" y="{foot + 15}">{format_number(t)}</text>' for t in x.ticks
    ]
    parts.append(f'<text class="tick" text-anchor="end" x="{WIDTH - RIGHT}" y="{HEIGHT - 6}">{escape(axes.x)}</text>')
    parts.append(f'<text class="tick" x="0" y="{HEIGHT - 6}">{escape(axes.y)}</text>')
    return _svg(WIDTH, HEIGHT, [*parts, *marks], axes.title)


# ---------------------------------------------------------------- playback
def playback_plot(records: Sequence[RequestRecord]) -> str:
    """Playback of audio streams, one row each: waiting, playing, and buffer underruns."""
    count = min(len(records), MAX_STRIP_ROWS)
    shown = [records[row * len(records) // count] for row in range(count)]
    x = make_scale(
        [record.ended_at for record in shown]
        + [playback_intervals(record.chunks)[-1][1] for record in shown if record.chunks],
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
    return _svg(STRIP_WIDTH, foot + 20, parts, "playback of audio streams", margin=12)


def _strip(record: RequestRecord, x: Scale, y: float) -> Iterator[str]:
    sent, height = x(record.sent_at), STRIP_ROW_HEIGHT - 4
    if not record.chunks:
        label = f"<title>{escape(record.error)}</title>"
        yield f'<path class="lost" d="M{sent} {y}l{height} {height}m0 {-height}l{-height} {height}">{label}</path>'
        return
    first, played = x(record.chunks[0][0]), playback_intervals(record.chunks)
    yield f'<line class="wait" x1="{sent}" x2="{first}" y1="{y + height / 2}" y2="{y + height / 2}"/>'
    for start, end in played:
        yield f'<rect class="play" x="{x(start)}" y="{y}" width="{max(0.5, x(end) - x(start)):.1f}" height="{height}"/>'
    for (_, end), (start, _) in pairwise(played):
        label = f"<title>{format_number(start - end)} s underrun</title>"
        width = max(0.5, x(start) - x(end))
        yield f'<rect class="underrun" x="{x(end)}" y="{y}" width="{width:.1f}" height="{height}">{label}</rect>'
    ticks = "".join(f"M{x(at)} {y + 1.5}v{height - 3}" for at, _ in record.chunks)
    yield f'<path class="arrival" d="{ticks}"/>'


# ---------------------------------------------------------------- SVG
def format_number(value: float, *, is_share: bool = False) -> str:
    """A value with three significant digits, or as a percentage."""
    return f"{value * 100:.4g}%" if is_share else f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def _svg(width: float, height: float, parts: Sequence[str], title: str, margin: float = 0) -> str:
    box = f"{-margin} 0 {width + 2 * margin} {height}"
    return f'<svg viewBox="{box}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'

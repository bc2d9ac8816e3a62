"""A published claim as one SVG picture: its value against its target, its curve if it has one, and its rows by unit.

Text stands above its bar, so that long names fit. The look is that of the pictures of walks: light and dark by media
query, system fonts, nothing fetched. Where the picture goes is decided in bench/page.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from xml.sax.saxutils import escape

from bench.claims import Row
from bench.publication import Publication
from mstar.draw.svg import DARK, DARK_TINTS, FONT, LIGHT, LIGHT_TINTS
from mstar.draw.text_size import text_width

WIDTH, EDGE, HIGH = 700, 20, 230
"""The picture, its margin, and the height of a curve."""
FROM, TO = EDGE, WIDTH - EDGE
LABEL_WIDTH = 470
"""For a name, beside its figures."""
CLIPPED = 2.5
"""Maximum length of a spread relative to the longest bar: one stalled repeat must not flatten the others."""
DASHES = ("none", "7 4", "2 4", "9 3 2 3")
"""Lines differ by more than colour."""
Block: TypeAlias = tuple[list[str], int]
"""Elements of SVG, and how much height they take."""


@dataclass(frozen=True)
class Strip:
    """A bar with its spread."""

    name: str
    value: float
    low: float
    high: float
    style: str = "row"


def format_number(value: float) -> str:
    """A number with as many digits as anyone reads."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def render_svg(name: str, published: Publication) -> str:
    """The claim with the spread of its runs, and the curve and rows of the median run."""
    run = published.median_run
    blocks = [_claim(published)]
    if curve := run.claim.details.get("curve"):
        blocks.append(_curve(curve))
    blocks += [_strips(unit, strips) for unit, strips in _by_unit(run.record.rows).items()]
    lines, y = [], EDGE
    for elements, height in blocks:
        lines += [f'<g transform="translate(0 {y})">', *elements, "</g>"]
        y += height
    return "\n".join([*_head(name, run.claim.claim, y), *lines, "</svg>"]) + "\n"


def _head(name: str, text: str, height: int) -> list[str]:
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title desc">',
        f'<title id="title">{escape(name)}</title>',
        f'<desc id="desc">{escape(text)}</desc>',
        f"<style>{_css()}</style>",
        f'<rect class="page" width="{WIDTH}" height="{height}" rx="8"/>',
    ]


def _css() -> str:
    plain = (
        f"text{{font-family:{FONT};font-size:12px}}.b{{font-weight:600}}.c{{font-weight:600;font-size:11px}}"
        ".r{text-anchor:end}.m{text-anchor:middle}.line{fill:none;stroke-width:2}.tick{font-size:11px}"
        ".spread{stroke-width:1.5;fill:none}.bar{stroke-width:2;stroke-dasharray:4 3}"
    )
    return f"{plain}{_theme(LIGHT, LIGHT_TINTS)}@media(prefers-color-scheme:dark){{{_theme(DARK, DARK_TINTS)}}}"


def _theme(colour: Mapping[str, str], tints: Sequence[tuple[str, str]]) -> str:
    rules = (
        ".page{fill:%(page)s}text{fill:%(ink)s}.c,.s,.tick{fill:%(soft)s}.track{fill:%(frame)s}.grid{stroke:%(rim)s}"
        ".met{fill:%(flow)s}.missed{fill:%(cross)s}.spread,.bar{stroke:%(ink)s}"
    )
    strokes = "".join(f".k{at}{{stroke:{stroke}}}.d{at}{{fill:{stroke}}}" for at, (_, stroke) in enumerate(tints))
    return rules % colour + f".row{{fill:{tints[0][1]}}}" + strokes


# ---------------------------------------------------------------- bars
def _claim(published: Publication) -> Block:
    caption = f"target met in {published.met} of {len(published.runs)} runs"
    style = "met" if published.is_met else "missed"
    strip = Strip("median and spread of the runs", published.median, *published.spread, style)
    return _strips(caption, [strip], published.median_run.claim.target)


def _by_unit(rows: Sequence[Row]) -> dict[str, list[Strip]]:
    """Rows as strips. One whose name begins with blanks belongs to the last that does not, and is named after both."""
    units: dict[str, list[Strip]] = {}
    above = ""
    for row in rows:
        own = row.name.strip()
        above = above if row.name.startswith(" ") else own
        name = own if above == own or text_width(f"{above}: {own}", 12) > LABEL_WIDTH else f"{above}: {own}"
        units.setdefault(row.unit, []).append(Strip(name, row.median, min(row.values), max(row.values)))
    return units


def _strips(caption: str, strips: Sequence[Strip], bar: float | None = None) -> Block:
    longest = max([*(strip.value for strip in strips), bar or 0])
    scale = (TO - FROM) / (min(max(longest, *(strip.high for strip in strips)), CLIPPED * longest) or 1)
    lines = [f'<text class="c" x="{FROM}" y="8">{escape(caption)}</text>']
    y = 14
    for strip in strips:
        lines += _strip(strip, y, scale)
        y += 32
    if bar is not None:
        x = round(FROM + bar * scale, 1)
        label = f"target {format_number(bar)}"
        half = text_width(label, 11) / 2
        lines.append(f'<path class="bar" d="M{x} {y - 16}V{y + 4}"/>')
        lines.append(f'<text class="tick m" x="{min(max(x, FROM + half), TO - half)}" y="{y + 15}">{label}</text>')
        y += 20
    return lines, y + 16


def _strip(strip: Strip, y: int, scale: float) -> Iterator[str]:
    value = f'<tspan class="b">{format_number(strip.value)}</tspan>'
    if strip.low < strip.high:
        value += f'<tspan class="s" dx="6">{format_number(strip.low)} to {format_number(strip.high)}</tspan>'
    yield f'<text x="{FROM}" y="{y + 12}">{escape(strip.name)}</text>'
    yield f'<text class="r" x="{TO}" y="{y + 12}">{value}</text>'
    yield f'<rect class="track" x="{FROM}" y="{y + 18}" width="{TO - FROM}" height="8" rx="2"/>'
    length = max(strip.value, 0) * scale
    yield f'<rect class="{strip.style}" x="{FROM}" y="{y + 18}" width="{length:.1f}" height="8" rx="2"/>'
    if strip.low < strip.high:
        low, high = (FROM + min(max(end, 0) * scale, TO - FROM) for end in (strip.low, strip.high))
        # Where the spread goes on beyond the picture, it has no end.
        end = "" if strip.high * scale > TO - FROM + 1 else "v-3v6"
        yield f'<path class="spread" d="M{low:.1f} {y + 19}v6v-3H{high:.1f}{end}"/>'


# ---------------------------------------------------------------- curves
def _curve(curve: Mapping[str, Any]) -> Block:
    """Lines of `{"x": numbers, "series": {name: numbers}}`, with `"axes": [x, y]` if the axes have names."""
    xs, series = curve["x"], curve["series"]
    names = curve.get("axes", ["", ""])
    values = [value for line in series.values() for value in line]
    across, up = _ticks(min(xs), max(xs)), _ticks(0 if min(values) < max(values) / 2 else min(values), max(values))
    left = FROM + 12 + max(text_width(format_number(tick), 11) for tick in up)
    top = 8 + 18 * len(series)

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            round(left + (x - across[0]) / (across[-1] - across[0]) * (TO - left), 1),
            round(top + 20 + HIGH - (y - up[0]) / (up[-1] - up[0]) * HIGH, 1),
        )

    lines = [f'<text class="c" x="{FROM}" y="{top + 6}">{escape(names[1])}</text>']
    for tick in up:
        y = place(across[0], tick)[1]
        lines.append(f'<path class="grid" d="M{left} {y}H{TO}"/>')
        lines.append(f'<text class="tick r" x="{left - 6}" y="{y + 4}">{format_number(tick)}</text>')
    low = top + 20 + HIGH
    lines += [
        f'<text class="tick m" x="{place(tick, 0)[0]}" y="{low + 16}">{format_number(tick)}</text>' for tick in across
    ]
    lines.append(f'<text class="c r" x="{TO}" y="{low + 32}">{escape(names[0])}</text>')
    for at, (name, line) in enumerate(series.items()):
        points = [place(x, y) for x, y in zip(xs, line, strict=True)]
        lines += _line(name, at, points)
    return lines, low + 52


def _line(name: str, at: int, points: Sequence[tuple[float, float]]) -> Iterator[str]:
    tint = at % len(LIGHT_TINTS)
    look = f'class="line k{tint}" stroke-dasharray="{DASHES[at % len(DASHES)]}"'
    yield f'<path {look} d="M{FROM} {4 + 18 * at}h28"/>'
    yield f'<text x="{FROM + 36}" y="{8 + 18 * at}">{escape(name)}</text>'
    yield f'<path {look} d="M' + "L".join(f"{x} {y}" for x, y in points) + '"/>'
    yield from (f'<circle class="d{tint}" cx="{x}" cy="{y}" r="3"/>' for x, y in points)


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers from below the least to above the most, about five of them."""
    rough = (high - low) / 5 or abs(high) or 1
    size = 10 ** math.floor(math.log10(rough))
    step = next(size * times for times in (1, 2, 5, 10) if size * times >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(at * step, 12) for at in range(first, max(last, first + 1) + 1)]

"""Timeline of a game day as one SVG picture: faults above, a lane for each kind of request below.

The time is divided into columns. The color of a column is that of its worst request: not as promised, a declared error,
or served. A pale column has requests that wait. The look is that of the other pictures of benchmarks: light and dark by
media query, system fonts, nothing fetched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from xml.sax.saxutils import escape

from bench.game_day.observations import DECLARED, LEFT, PENDING, WHOLE, FaultRecord, Observations, RequestRecord
from bench.game_day.promises import ORDINARY, is_served
from mstar.draw.svg import DARK, DARK_TINTS, FONT, LIGHT, LIGHT_TINTS
from mstar.draw.text_size import text_width

WIDTH, EDGE, LEFT_EDGE, LANE = 900, 16, 130, 18
"""The picture, its margin, the width of the names of lanes, and the height of a lane."""
SPAN = WIDTH - EDGE - LEFT_EDGE
COLUMN = 4
"""Width of a column."""
WAIT, SERVED, ERROR, BROKEN = range(4)
"""What a column shows, from the best to the worst."""
STYLES = ("wait", "ok", "error", "broken")
LEGEND = ("waiting", "served as promised", "declared error, as promised", "not as promised")
FONT_PX = 11


def render_timeline(seen: Observations, title: str) -> str:
    """The picture of a run."""
    scale = SPAN / max(seen.load_s, 1.0)
    bars, fault_rows = _place_faults([fault for fault in seen.faults if not fault.skipped], scale)
    y = 44
    lines = [f'<text class="name" x="{EDGE}" y="26">{escape(title)}</text>']
    lines += [f'<text class="c" x="{EDGE}" y="{y + 12}">faults</text>']
    for fault, row in bars:
        lines += _fault(fault, scale, y + row * LANE, y + fault_rows * LANE)
    y += fault_rows * LANE + 8
    top = y
    for kind, requests in _by_kind(seen).items():
        lines.append(f'<text class="c" x="{EDGE}" y="{y + 12}">{escape(kind)}</text>')
        lines.append(f'<rect class="track" x="{LEFT_EDGE}" y="{y + 2}" width="{SPAN}" height="{LANE - 5}" rx="2"/>')
        lines += _lane(requests, seen, scale, y)
        y += LANE
    guides = [_guide(fault, scale, top, y) for fault, _ in bars]
    lines = [*guides, *lines, *_axis(seen.load_s, scale, y)]
    y += 34
    lines += _legend(y)
    return "\n".join([*_head(title, seen, y + 24), *lines, "</svg>"]) + "\n"


def _head(title: str, seen: Observations, height: int) -> list[str]:
    text = f"{len(seen.requests)} requests and {len(seen.faults)} faults over {seen.load_s:.0f} s, by kind of request."
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title desc">',
        f'<title id="title">{escape(title)}</title>',
        f'<desc id="desc">{escape(text)}</desc>',
        f"<style>{_css()}</style>",
        f'<rect class="page" width="{WIDTH}" height="{height}" rx="8"/>',
    ]


def _css() -> str:
    plain = (
        f"text{{font-family:{FONT};font-size:{FONT_PX}px}}.name{{font-size:15px;font-weight:700}}"
        ".c{font-weight:600}.m{text-anchor:middle}.guide{stroke-width:1;stroke-dasharray:2 3}"
    )
    return f"{plain}{_theme(LIGHT, LIGHT_TINTS)}@media(prefers-color-scheme:dark){{{_theme(DARK, DARK_TINTS)}}}"


def _theme(color: Mapping[str, str], tints: Sequence[tuple[str, str]]) -> str:
    rules = (
        ".page{fill:%(page)s}text{fill:%(ink)s}.c,.tick{fill:%(soft)s}.track{fill:%(frame)s}.guide{stroke:%(rim)s}"
        ".ok{fill:%(flow)s}.broken{fill:%(cross)s}.fault{fill:%(state)s}.wait{fill:%(pipe)s}"
    )
    return rules % color + f".error{{fill:{tints[2][1]}}}"


# ---------------------------------------------------------------- faults
def _place_faults(faults: Sequence[FaultRecord], scale: float) -> tuple[list[tuple[FaultRecord, int]], int]:
    """Each fault with a row in which its name overlaps no other, and the number of rows."""
    ends: list[float] = []
    placed: list[tuple[FaultRecord, int]] = []
    for fault in faults:
        start = LEFT_EDGE + fault.begun * scale
        row = next((row for row, end in enumerate(ends) if end < start), len(ends))
        width = max((fault.ended - fault.begun) * scale, 3) + text_width(_label(fault), FONT_PX) + 12
        ends[row:] = [start + width, *ends[row + 1 :]]
        placed.append((fault, row))
    return placed, max(len(ends), 1)


def _label(fault: FaultRecord) -> str:
    return fault.name if fault.target in ("server", "conductor") else f"{fault.name} {fault.target}"


def _fault(fault: FaultRecord, scale: float, y: int, _bottom: int) -> Iterator[str]:
    x, width = LEFT_EDGE + fault.begun * scale, max((fault.ended - fault.begun) * scale, 3)
    label = _label(fault)
    size = text_width(label, FONT_PX)
    yield f'<rect class="fault" x="{x:.1f}" y="{y + 3}" width="{width:.1f}" height="{LANE - 7}" rx="2"/>'
    text_x = x + width + 4 if x + width + 4 + size <= WIDTH - EDGE else x - size - 4
    yield f'<text x="{text_x:.1f}" y="{y + 13}">{escape(label)}</text>'


def _guide(fault: FaultRecord, scale: float, top: int, bottom: int) -> str:
    return f'<path class="guide" d="M{LEFT_EDGE + fault.begun * scale:.1f} {top}V{bottom}"/>'


# ---------------------------------------------------------------- lanes
def _by_kind(seen: Observations) -> dict[str, list[RequestRecord]]:
    """Requests by kind: the ordinary ones first."""
    kinds = dict.fromkeys(kind for kind in ORDINARY if seen.of_kind(kind))
    kinds |= dict.fromkeys(request.kind for request in seen.requests if request.kind != "unread stream")
    return {kind: seen.of_kind(kind) for kind in kinds}


def _state(request: RequestRecord, seen: Observations) -> int:
    """What the end of a request shows."""
    if request.outcome == PENDING:
        return WAIT
    if request.outcome in (WHOLE, LEFT):
        return SERVED
    is_expected = request.outcome == DECLARED and (request.kind not in ORDINARY or is_served(request, seen))
    return ERROR if is_expected else BROKEN


def _lane(requests: Sequence[RequestRecord], seen: Observations, scale: float, y: int) -> Iterator[str]:
    """One rectangle for each run of columns of the same kind."""
    columns: dict[int, int] = {}
    for request in requests:
        first, last = (int(time * scale / COLUMN) for time in (request.begun, min(request.ended, seen.load_s)))
        for column in range(first, last):
            columns[column] = max(columns.get(column, WAIT), WAIT)
        columns[last] = max(columns.get(last, WAIT), _state(request, seen))
    runs = groupby(sorted(columns.items()), key=lambda item: item[1])
    for state, items in runs:
        for first, last in _stretches([column for column, _ in items]):
            x, width = LEFT_EDGE + first * COLUMN, (last - first + 1) * COLUMN
            width = min(width, WIDTH - EDGE - x)
            if width > 0:
                yield f'<rect class="{STYLES[state]}" x="{x}" y="{y + 2}" width="{width}" height="{LANE - 5}"/>'


def _stretches(columns: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First and last of each run of neighbors."""
    first = last = columns[0]
    for column in columns[1:]:
        if column != last + 1:
            yield first, last
            first = column
        last = column
    yield first, last


# ---------------------------------------------------------------- axis and legend
def _axis(load_s: float, scale: float, y: int) -> Iterator[str]:
    step = next(step for step in (5, 10, 30, 60, 120, 300, 600, 3600) if load_s / step <= 12)
    for at in range(0, int(load_s) + 1, step):
        label = f"{at} s" if load_s < 180 else f"{at // 60}:{at % 60:02}"
        yield f'<text class="tick m" x="{LEFT_EDGE + at * scale:.1f}" y="{y + 14}">{label}</text>'


def _legend(y: int) -> Iterator[str]:
    x = float(LEFT_EDGE)
    for style, label in (*zip(STYLES, LEGEND, strict=True), ("fault", "fault")):
        yield f'<rect class="{style}" x="{x:.1f}" y="{y - 9}" width="12" height="11" rx="2"/>'
        yield f'<text x="{x + 17:.1f}" y="{y}">{label}</text>'
        x += text_width(label, FONT_PX) + 40

"""SVG renderer: one self-contained file with system fonts, no scripts, and light and dark themes by media query."""

from __future__ import annotations

from collections.abc import Iterator
from xml.sax.saxutils import escape

from mstar.draw.edge_routing import Path
from mstar.draw.picture import SAMPLE_PX, Box, Edge, Frame, LegendEntry, Picture
from mstar.draw.text_size import CAPTION, LABEL, NOTE, TITLE, item_lines

LIGHT = {
    "ink": "#1f2328",
    "soft": "#656d76",
    "line": "#6e7781",
    "page": "#ffffff",
    "box": "#ffffff",
    "edge": "#8c959f",
    "frame": "#f6f8fa",
    "deep": "#ffffff",
    "rim": "#d0d7de",
    "state": "#7c5cb8",
    "statebox": "#f4f0fb",
    "pipe": "#b6d3d9",
    "warm": "#f6cfae",
    "flow": "#2f7c8b",
    "cross": "#cf5a1c",
    "emit": "#3d4650",
    "emitink": "#ffffff",
}
DARK = {
    "ink": "#e6edf3",
    "soft": "#9198a1",
    "line": "#8b949e",
    "page": "#0d1117",
    "box": "#161b22",
    "edge": "#6e7681",
    "frame": "#151b23",
    "deep": "#0d1117",
    "rim": "#3d444d",
    "state": "#a98be0",
    "statebox": "#231d33",
    "pipe": "#24474f",
    "warm": "#5a3a1e",
    "flow": "#6fc0cf",
    "cross": "#f0883e",
    "emit": "#c9d1d9",
    "emitink": "#0d1117",
}
LIGHT_TINTS = (
    *(("#dcebfb", "#4f86c6"), ("#e2f2e1", "#579a55"), ("#fdf0d5", "#c08a2b"), ("#fbe3e4", "#c4686d")),
    *(("#e0f1f0", "#42918c"), ("#ece6f8", "#8467bd"), ("#eeeae4", "#8f7f68"), ("#f8e4f1", "#b2629a")),
)
DARK_TINTS = (
    *(("#1b2f48", "#5b92d4"), ("#1d3321", "#62a860"), ("#3a2f17", "#c79a45"), ("#3d2226", "#cf787d")),
    *(("#173533", "#52a6a0"), ("#2b2440", "#977bd0"), ("#302b24", "#a39377"), ("#3a2034", "#c275ab")),
)
"""Fill and stroke per color index. Further indices wrap around."""

FONT = "ui-sans-serif, system-ui, -apple-system, 'Segoe UI', Roboto, Ubuntu, 'Helvetica Neue', Arial, sans-serif"


def to_svg(picture: Picture) -> str:
    """Render the picture as SVG text."""
    size = f'width="{picture.width}" height="{picture.height}" viewBox="0 0 {picture.width} {picture.height}"'
    accessible_name = 'role="img" aria-labelledby="mstar-title mstar-desc"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {accessible_name}>',
        f'<title id="mstar-title">{escape(picture.name)}</title>',
        f'<desc id="mstar-desc">{escape(_description(picture))}</desc>',
        f"<style>{_css()}</style>",
        _markers(),
        f'<rect class="page" width="{picture.width}" height="{picture.height}" rx="8"/>',
        f'<text class="name" x="16" y="30">{escape(picture.name)}</text>',
        *_frames(picture),
        *(line for edge in sorted(picture.edges, key=_z_order) for line in _edge(edge)),
        *(line for box in picture.boxes for line in _box(box)),
        *(line for entry in picture.legend for line in _legend_entry(entry)),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _description(picture: Picture) -> str:
    ops = ", ".join(dict.fromkeys(box.title for box in picture.boxes if box.shape == "op"))
    regions = "; ".join(frame.caption for frame in picture.frames)
    return f"Walk {picture.name}. Ops: {ops}." + (f" Regions: {regions}." if regions else "")


def _css() -> str:
    plain = (
        f"text{{font-family:{FONT}}}.t{{font-size:{TITLE}px}}.b{{font-weight:600}}.n{{font-size:{NOTE}px}}"
        f".l{{font-size:{LABEL}px}}.c{{font-size:{CAPTION}px;font-weight:600}}.name{{font-size:15px;font-weight:700}}"
        ".m{text-anchor:middle}.e{fill:none;stroke-width:1.4}.cross{stroke-width:2.2}"
        ".views{stroke-dasharray:5 3}.carry{stroke-dasharray:1 4;stroke-linecap:round;stroke-width:1.8}"
        ".pipe{stroke-width:6}.flow{stroke-width:1.6;stroke-dasharray:3 5}.round{stroke-linejoin:round}"
    )
    dark = _theme(DARK, DARK_TINTS)
    return f"{plain}{_theme(LIGHT, LIGHT_TINTS)}@media(prefers-color-scheme:dark){{{dark}}}"


def _theme(color: dict[str, str], tints: tuple[tuple[str, str], ...]) -> str:
    rules = [
        ".page{fill:%(page)s}.t,.name{fill:%(ink)s}.n,.l,.c,.faint{fill:%(soft)s}.e{stroke:%(line)s}",
        ".box{fill:%(box)s;stroke:%(edge)s}.f0{fill:%(frame)s;stroke:%(rim)s}.f1{fill:%(deep)s;stroke:%(rim)s}",
        ".extends,.views{stroke:%(state)s}.store{fill:%(statebox)s;stroke:%(state)s}.pipe{stroke:%(pipe)s}.warm{stroke:%(warm)s}",
        ".flow{stroke:%(flow)s}.lp{fill:%(flow)s}.cross{stroke:%(cross)s}.emit{fill:%(emit)s;stroke:%(emit)s}",
        ".emit-t{fill:%(emitink)s}.h-value,.h-carry{fill:%(line)s}.h-extends{fill:%(state)s}",
        ".h-views{fill:%(page)s;stroke:%(state)s}.h-pipe{fill:%(flow)s}.h-cross{fill:%(cross)s}",
    ]
    fills = "".join(f".k{at}{{fill:{fill};stroke:{stroke}}}" for at, (fill, stroke) in enumerate(tints))
    return "".join(rules) % color + fills


def _markers() -> str:
    arrow = '<path d="M0 0L8 4L0 8z" class="h-{0}"/>'
    dot = '<circle cx="4" cy="4" r="3" class="h-{0}"/>'
    shapes = {"value": arrow, "carry": arrow, "pipe": arrow, "cross": arrow, "extends": dot, "views": dot}
    marks = "".join(
        f'<marker id="mstar-{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
        f'markerUnits="userSpaceOnUse" orient="auto">{shape.format(name)}</marker>'
        for name, shape in shapes.items()
    )
    return f"<defs>{marks}</defs>"


def _z_order(edge: Edge) -> tuple[bool, bool]:
    # Pipes are below thin lines, and crossing links on top.
    return edge.style != "pipe", edge.crosses


def _frames(picture: Picture) -> Iterator[str]:
    depth = {"": -1}
    for frame in picture.frames:
        depth[frame.id] = depth[frame.frame] + 1
        yield from _frame(frame, depth[frame.id])


def _frame(frame: Frame, depth: int) -> Iterator[str]:
    attributes = f'class="f{depth % 2}" rx="10"'
    if frame.kind == "each":
        # Parallel bodies: a second rectangle is visible behind the first.
        yield f'<rect {attributes} x="{frame.x + 5}" y="{frame.y + 5}" width="{frame.w}" height="{frame.h}"/>'
    yield f'<rect {attributes} x="{frame.x}" y="{frame.y}" width="{frame.w}" height="{frame.h}"/>'
    yield f'<text class="c" x="{frame.caption_x}" y="{frame.y + 18}">{escape(frame.caption)}</text>'


def to_svg_path(path: Path) -> str:
    """Convert a path to SVG path data."""
    first, *rest = path
    letters = {2: "L", 4: "Q", 6: "C"}
    steps = (letters[len(step)] + " ".join(map(str, step)) for step in rest)
    return f"M{first[0]} {first[1]}" + "".join(steps)


def _edge(edge: Edge) -> Iterator[str]:
    style = "carry" if edge.is_back and edge.style == "value" else edge.style
    path = to_svg_path(edge.path)
    head = "cross" if edge.crosses and style in ("value", "carry", "pipe") else style
    end = f' marker-end="url(#mstar-{head})"' if edge.has_arrow else ""
    crossing = " cross" if edge.crosses else ""
    if style == "pipe":
        yield f'<path class="e pipe{" warm" if edge.crosses else ""}" d="{path}"/>'
    css_class = "flow" if style == "pipe" else style
    tooltip = escape(": ".join(filter(None, (edge.value, edge.type))))
    yield f'<path class="e {css_class}{crossing}" d="{path}"{end}><title>{tooltip}</title></path>'
    if edge.label:
        css_class = "l lp" if style == "pipe" else "l"
        yield f'<text class="{css_class}" x="{edge.label_x}" y="{edge.label_y}">{escape(edge.label)}</text>'


def _outline(box: Box) -> str:
    x, y, w, h = box.x, box.y, box.w, box.h
    tint = f"k{box.color % len(LIGHT_TINTS)}" if box.color is not None else "box"
    rect = f'x="{x}" y="{y}" width="{w}" height="{h}"'
    match box.shape:
        case "state":
            side = f"M{x} {y + 6}V{y + h - 6}A{w / 2:g} 6 0 0 0 {x + w} {y + h - 6}V{y + 6}"
            top = f"A{w / 2:g} 6 0 0 0 {x} {y + 6}A{w / 2:g} 6 0 0 0 {x + w} {y + 6}"
            return f'<path class="store" d="{side}{top}"/>'
        case "emission" | "output":
            tip = min(12, h // 2)
            arrow = f"M{x} {y}H{x + w - tip}L{x + w} {y + h // 2}L{x + w - tip} {y + h}H{x}z"
            return f'<path class="emit round" stroke-width="2" d="{arrow}"/>'
        case "op":
            return f'<rect class="{tint}" {rect} rx="6" stroke-width="1.4"/>'
        case "get":
            return f'<rect class="box" {rect} rx="4" stroke-dasharray="3 3"/>'
        case _:
            return f'<rect class="box" {rect} rx="{min(h // 2, 13)}"/>'


def _box(box: Box) -> Iterator[str]:
    yield _outline(box)
    is_emission = box.shape in ("emission", "output")
    x = box.x + box.w // 2 - (4 if is_emission else 0)
    y = box.y + box.h // 2 + (4 if box.shape == "state" else 0)
    lines = item_lines(box)
    y -= sum(size + 4 for _, size in lines) // 2
    for text, size in lines:
        css_class = ("t b" if box.shape == "op" else "t") if size == TITLE else "n"
        y += size + 4
        yield f'<text class="{css_class} m{" emit-t" if is_emission else ""}" x="{x}" y="{y - 4}">{escape(text)}</text>'


def _legend_entry(entry: LegendEntry) -> Iterator[str]:
    end = entry.x + SAMPLE_PX
    if entry.color is not None:
        tint = f"k{entry.color % len(LIGHT_TINTS)}"
        yield f'<rect class="{tint}" x="{entry.x + 8}" y="{entry.y - 6}" width="{SAMPLE_PX - 8}" height="12" rx="3"/>'
    else:
        path = f'd="M{entry.x} {entry.y}H{end}"'
        name = "cross" if entry.style == "crosses" else entry.style
        if entry.style == "pipe":
            yield f'<path class="e pipe" {path}/>'
        yield f'<path class="e {"flow" if name == "pipe" else name}" {path} marker-end="url(#mstar-{name})"/>'
    yield f'<text class="l" x="{end + 7}" y="{entry.y + 4}">{escape(entry.text)}</text>'

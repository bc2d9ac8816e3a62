"""Diagrams: nothing overlaps, everything is inside its frame, and edges touch what they connect."""

import json
import re
from itertools import combinations, pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from mstar.draw import to_json, to_mermaid, to_picture, to_svg
from mstar.draw.builder import MAX_NOTE_CHARS
from mstar.draw.text_size import CAPTION, LABEL, item_lines, text_width
from mstar.graph import ir
from mstar.graph.types import TensorType
from tests.draw.sample_walks import all_walks

GOLDEN = Path(__file__).parent / "golden"
WALKS = all_walks()
TOKEN = TensorType("int64", (1,))


def backward():
    """A walk that no tracer produces: a loop reads what a later loop writes."""
    pad = ir.Value("pad", TOKEN)
    actual, made = ir.Value("got", TOKEN), ir.Value("made", TOKEN)

    def once(name, *body):
        return ir.Loop(3, ir.Value(name, TOKEN), (), (), (), body)

    reads = once("i", ir.Get("late", pad, actual), ir.Emit("Text", actual))
    fills = once("j", ir.Call("lm", "make", (("token", pad),), (made,)), ir.Put("late", made))
    return ir.Walk("backward", (pad,), (ir.Open("late", TOKEN), reads, fills), (pad,))


WALKS["backward"] = backward()
PICTURES = {name: to_picture(walk) for name, walk in WALKS.items()}

TALK = {"thinker": "gpu0", "talker": "gpu1", "vocoder": "gpu2"}
PLACED = {
    f"{component}.{op}": (worker,) for component, worker in TALK.items() for op in ("prefill", "decode", "is_end")
}

every_picture = pytest.mark.parametrize("name", sorted(PICTURES))


def overlap(one, two):
    return one[0] < two[2] and two[0] < one[2] and one[1] < two[3] and two[1] < one[3]


def area(part):
    return part.x, part.y, part.x + part.w, part.y + part.h


def within(inner, outer):
    return outer[0] <= inner[0] and outer[1] <= inner[1] and inner[2] <= outer[2] and inner[3] <= outer[3]


def label_area(edge):
    return edge.label_x, edge.label_y - LABEL, edge.label_x + text_width(edge.label, LABEL), edge.label_y


def points(path):
    """Yield points along a path, at most a few pixels apart."""
    at = path[0]
    for step in path[1:]:
        corners = [at, *zip(step[::2], step[1::2], strict=True)]
        for part in range(101):
            left = corners
            while len(left) > 1:
                left = [
                    (a[0] + (b[0] - a[0]) * part / 100, a[1] + (b[1] - a[1]) * part / 100) for a, b in pairwise(left)
                ]
            yield left[0]
        at = corners[-1]


def on_border(point, box):
    x, y = point
    return (x in (box[0], box[2]) and box[1] <= y <= box[3]) or (y in (box[1], box[3]) and box[0] <= x <= box[2])


@every_picture
def test_siblings_do_not_overlap(name):
    parts = [*PICTURES[name].boxes, *PICTURES[name].frames]
    clashes = [
        (one.id, two.id)
        for one, two in combinations(parts, 2)
        if one.frame == two.frame and overlap(area(one), area(two))
    ]
    assert not clashes


@every_picture
def test_everything_is_inside_its_frame(name):
    image = PICTURES[name]
    frames = {frame.id: area(frame) for frame in image.frames} | {"": (0, 0, image.width, image.height)}
    assert [part.id for part in (*image.boxes, *image.frames) if not within(area(part), frames[part.frame])] == []
    for edge in image.edges:
        assert all(within((x, y, x, y), frames[edge.frame]) for x, y in points(edge.path))


@every_picture
def test_edges_touch_what_they_connect(name):
    image = PICTURES[name]
    areas = {part.id: area(part) for part in (*image.boxes, *image.frames)}
    for edge in image.edges:
        for end, terminal in ((edge.path[0], edge.source), (edge.path[-1][-2:], edge.target)):
            assert on_border(end, areas[re.split("[<>]", terminal)[0]]), (terminal, end)


@every_picture
def test_edges_cross_no_box_and_no_text(name):
    image = PICTURES[name]
    captions = [
        (frame.caption_x, frame.y + 8, frame.caption_x + text_width(frame.caption, CAPTION), frame.y + 20)
        for frame in image.frames
    ]
    labels = [label_area(edge) for edge in image.edges if edge.label]
    paths = {(edge.source, edge.target): list(points(edge.path)) for edge in image.edges}
    for x0, y0, x1, y1 in (*map(area, image.boxes), *captions, *labels):
        for ends, path in paths.items():
            assert not any(x0 < x < x1 and y0 < y < y1 for x, y in path), (ends, (x0, y0, x1, y1))


@every_picture
def test_text_fits(name):
    image = PICTURES[name]
    for box in image.boxes:
        lines = item_lines(box)
        assert max(text_width(text, size) for text, size in lines) <= box.w
        assert sum(size + 2 for _, size in lines) <= box.h
    for frame in image.frames:
        assert frame.caption_x + text_width(frame.caption, CAPTION, is_bold=True) <= frame.x + frame.w
    labels = [label_area(edge) for edge in image.edges if edge.label]
    assert not any(overlap(one, two) for one, two in combinations(labels, 2))
    assert not any(overlap(label, area(box)) for label in labels for box in image.boxes)
    assert all(key.x + text_width(key.text, LABEL) < image.width for key in image.legend)


@every_picture
def test_coordinates_are_integers(name):
    numbers = re.findall(r'"(?:x|y|w|h|width|height|label_x|label_y)":([^,}]+)', to_json(PICTURES[name]))
    assert numbers
    assert all(re.fullmatch(r"-?\d+", number) for number in numbers)


def test_the_same_walk_gives_the_same_picture():
    again = {name: to_picture(walk) for name, walk in all_walks().items()}
    assert again == {name: image for name, image in PICTURES.items() if name != "backward"}


@every_picture
def test_svg_is_well_formed_and_self_contained(name):
    text = to_svg(PICTURES[name])
    root = ElementTree.fromstring(text)
    tags = {child.tag.rpartition("}")[2] for child in root.iter()}
    assert {"title", "desc", "style"} <= tags
    assert not tags & {"script", "image", "foreignObject", "use"}
    assert "prefers-color-scheme:dark" in text
    assert text.count("http") == 1  # the namespace


@every_picture
def test_json_contains_the_whole_picture(name):
    image = PICTURES[name]
    shape = json.loads(to_json(image))
    assert [box["id"] for box in shape["boxes"]] == [box.id for box in image.boxes]
    assert [tuple(map(tuple, edge["path"])) for edge in shape["edges"]] == [edge.path for edge in image.edges]


@every_picture
def test_mermaid_is_balanced_and_defines_its_nodes(name):
    lines = [line.strip() for line in to_mermaid(WALKS[name]).splitlines()]
    assert lines[0] == "flowchart LR"
    assert sum(line.startswith("subgraph ") for line in lines) == lines.count("end")
    links = [re.fullmatch(r'(\w+) (?:-->|-\.->|==>|--o)(?:\|"[^"]*"\|)? (\w+)', line) for line in lines]
    named = {match[0] for line in lines if (match := re.findall(r"^(?:subgraph )?(n_\w+)", line))}
    ends = {end for link in links if link for end in link.groups()}
    assert ends <= named


def test_ops_are_colored_by_component_without_a_placement():
    image = PICTURES["talk"]
    colors = {box.title.split(".")[0]: box.color for box in image.boxes if box.shape == "op"}
    assert len(set(colors.values())) == 3
    assert not any(edge.crosses for edge in image.edges)


def test_edges_between_workers_are_marked():
    image = to_picture(WALKS["talk"], PLACED)
    crossing = {edge.value for edge in image.edges if edge.crosses}
    # Thoughts go to the talker, codes to the vocoder; everything else stays on its worker.
    assert {"~thoughts", "~codes"} <= crossing
    assert not {"prefill", "decode", "kv", "prompt"} & crossing
    assert {key.text for key in image.legend} >= {"gpu0", "gpu1", "gpu2", "to another worker"}


def test_a_state_that_moves_is_marked():
    split = {"lm.prefill": ("gpu0",), "lm.decode": ("gpu1",), "lm.is_end": ("gpu1",), "snac.decode": ("gpu1",)}
    image = to_picture(WALKS["speak"], split)
    assert {edge.value for edge in image.edges if edge.crosses} == {"kv", "prefill"}


def test_an_unplaced_op_has_no_color_and_no_crossings():
    image = to_picture(WALKS["speak"], {"lm.decode": ("gpu0",)})
    placed = {box.title: box.color for box in image.boxes if box.shape == "op"}
    assert placed["lm.decode"] == 0
    assert placed["snac.decode"] is None
    assert not any(edge.crosses for edge in image.edges)


def test_constants_fields_and_elements_are_folded():
    titles = {box.title for box in PICTURES["rollout"].boxes}
    assert not titles & {"step", "actions[step]", "max_tokens"}
    assert "actions[step]" in {edge.label for edge in PICTURES["rollout"].edges}
    (frame,) = [frame for frame in PICTURES["speak"].frames if frame.kind == "loop"]
    assert frame.caption == "loop ≤ sampling.max_tokens, until is_end"


@pytest.mark.parametrize(("length", "is_truncated"), [(MAX_NOTE_CHARS, False), (MAX_NOTE_CHARS + 1, True)])
def test_a_long_note_is_truncated_to_its_limit(length, is_truncated):
    made, note = ir.Value("made", TOKEN), "text='".ljust(length - 1, "x") + "'"
    walk = ir.Walk("long", (), (ir.Call("lm", "make", (), (made,), static=(("text", note[6:-1]),)),), (made,))
    [box] = [box for box in to_picture(walk).boxes if box.shape == "op"]
    assert box.note == (note[: MAX_NOTE_CHARS - 1] + "…" if is_truncated else note)


def test_writers_and_readers_of_a_stream_are_stacked():
    loop, read = PICTURES["speak"].frames
    assert loop.x == read.x
    assert loop.y + loop.h < read.y


def test_golden_mermaid(golden):
    golden(GOLDEN / "speak.mmd", to_mermaid(WALKS["speak"]))


def test_golden_mermaid_with_a_placement(golden):
    golden(GOLDEN / "talk_placed.mmd", to_mermaid(WALKS["talk"], PLACED))

"""Pictures show a claim and its rows to scale."""

from xml.etree import ElementTree

import pytest

from bench import plots
from bench.claims import Row
from bench.publication import Publication, Run
from tests.bench.toy_history import make_record


def parsed(*values: float, rows=(), **details):
    records = [make_record(value, "abc", rows, details=details) for value in values]
    runs = [Run(record, record.claim) for record in records]
    return ElementTree.fromstring(plots.render_svg("toy", Publication(runs, [])))


def of_class(picture, name: str):
    return [one for one in picture.iter() if name in one.get("class", "").split()]


def texts(picture) -> str:
    return " ".join("".join(one.itertext()) for one in picture.iter() if one.tag.endswith("text"))


def test_bars_are_to_scale_and_the_target_is_marked():
    rows = [Row("one", "ms", [10, 20, 30]), Row("other", "ms", [40]), Row("many", "/s", [7])]
    picture = parsed(1.5, rows=rows)
    room = plots.TO - plots.FROM
    assert [float(one.get("width")) / room for one in of_class(picture, "met")] == [0.5]
    assert of_class(picture, "bar")[0].get("d").startswith(f"M{plots.TO}")
    assert [float(one.get("width")) / room for one in of_class(picture, "row")] == [0.5, 1, 1]
    [spread] = of_class(picture, "spread")
    assert spread.get("d").startswith(f"M{plots.FROM + room / 4} ")
    assert f"H{plots.FROM + room * 3 / 4}v" in spread.get("d")
    assert of_class(parsed(3.5), "missed")


def test_a_stalled_repeat_does_not_flatten_the_others():
    picture = parsed(1.5, rows=[Row("one", "ms", [2, 2, 900]), Row("other", "ms", [1])])
    bars = [float(one.get("width")) / (plots.TO - plots.FROM) for one in of_class(picture, "row")]
    assert bars == pytest.approx([0.4, 0.2], abs=0.001)
    assert of_class(picture, "spread")[0].get("d").endswith(f"H{plots.TO}.0")


def test_all_runs_are_the_spread_of_a_claim():
    picture = parsed(1.0, 4.0, 2.0)
    [spread] = of_class(picture, "spread")
    assert spread.get("d").startswith(f"M{plots.FROM + (plots.TO - plots.FROM) / 4:.1f} ")
    assert f"H{plots.TO}.0v" in spread.get("d")
    assert "target met in 2 of 3 runs" in texts(picture)
    assert "target 3" in texts(picture)


def test_a_curve_is_drawn():
    curve = {"x": [0, 1, 2], "series": {"ours": [100, 90, 50], "theirs": [100, 40, 0]}, "axes": ["load", "on time"]}
    picture = parsed(1.0, curve=curve)
    dots = [[(float(one.get("cx")), float(one.get("cy"))) for one in of_class(picture, f"d{at}")] for at in (0, 1)]
    (_, top), (middle, _), (right, half) = dots[0]
    assert right == plots.TO
    assert middle == pytest.approx((dots[0][0][0] + right) / 2, abs=0.1)
    assert half - top == pytest.approx(plots.HIGH / 2, abs=0.1)
    assert dots[1][2][1] - top == pytest.approx(plots.HIGH, abs=0.1)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 100, [0, 20, 40, 60, 80, 100]),
        (0.25, 3, [0, 1, 2, 3]),
        (99.1, 99.9, [99, 99.2, 99.4, 99.6, 99.8, 100]),
        (7, 7, [0, 10]),
        (0, 0, [0, 1]),
    ],
)
def test_ticks_are_round_numbers(low, high, ticks):
    assert plots._ticks(low, high) == ticks


@pytest.mark.parametrize(
    ("value", "text"), [(0.9432, "0.943"), (14.23, "14.2"), (1682.4, "1,682"), (3.0, "3"), (-0.5, "-0.5"), (0, "0")]
)
def test_numbers_are_short(value, text):
    assert plots.format_number(value) == text

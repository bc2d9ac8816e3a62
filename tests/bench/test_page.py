"""The page of figures is what the recorded runs give; runs are recorded as they were; pictures show them to scale."""

import ast
import json
import statistics
from xml.etree import ElementTree

import pytest

from bench import __main__ as command
from bench import page, plots, records
from bench.claims import Bench, Claim, Row, print_table
from bench.records import Machine, Record

MACHINE = Machine("a processor", 2, 0.3, "3.11.0", "2.13.0", "abc1234")
TOY = Bench("Is it cheap?", "tests.bench.test_page:cheap", "What it costs.", "At most 3 ms.", "Too slow.")


def cheap() -> Claim:
    print_table([Row("a thing", "ms", [2.0, 1.0, 4.0]), Row("  times faster", "x", [3.0])])
    return Claim(
        "a thing costs at most 3 ms",
        2.0,
        3.0,
        is_met=True,
        details={"unit": "ms", "worst_ms": 4.0, "of": {"1": 0.5, "same": True}},
    )


def run(value: float, rows=(), *, holds: bool = True, **more) -> Record:
    return Record("2026-01-02 03:04:05", 6.7, MACHINE, Claim("it is so", value, 3.0, holds, more), rows)


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A repository with pages that hold nothing yet, and one bench."""
    for module in (page, records):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(records, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(command, "BENCHES", {"toy": TOY})
    marks = "<!-- {0}: written by bench/page.py -->\n<!-- end of {0} -->\n".format
    (tmp_path / "docs" / "pictures").mkdir(parents=True)
    (tmp_path / "docs" / "performance.md").write_text(marks("questions") + "between\n" + marks("figures"))
    return tmp_path


# ---------------------------------------------------------------- this repository
def test_the_pages_are_what_was_recorded():
    files = page.render_files(command.BENCHES)
    stale = [str(path) for path, text in files.items() if (page.ROOT / path).read_text("utf-8") != text]
    assert stale == [], "fix: python -m bench page"
    there = {path.relative_to(page.ROOT) for path in (page.ROOT / page.PICTURES).iterdir()}
    assert there == {path for path in files if path.suffix == ".svg"}, "fix: python -m bench page"


def test_every_record_is_of_a_bench():
    assert {path.stem for path in records.RESULTS.iterdir()} <= command.BENCHES.keys()


@pytest.mark.parametrize("bench", command.BENCHES.values(), ids=command.BENCHES)
def test_every_bench_is_there(bench):
    module, _, function = bench.function.partition(":")
    source = records.ROOT / (module.replace(".", "/") + ".py")
    assert function in {one.name for one in ast.parse(source.read_text()).body if isinstance(one, ast.FunctionDef)}


# ---------------------------------------------------------------- a run
def test_a_run_is_recorded_and_the_page_follows(tree, capsys):
    assert command.main(["toy"]) == 0
    payload = json.loads(capsys.readouterr().out.splitlines()[-1])
    [kept] = records.records("toy")
    assert payload == {
        "claim": "a thing costs at most 3 ms",
        "value": 2.0,
        "bar": 3.0,
        "holds": True,
        "more": payload["more"],
    }
    assert kept.claim == cheap()
    assert [(row.name, row.unit, row.values) for row in kept.rows] == [
        ("a thing", "ms", [2, 1, 4]),
        ("  times faster", "x", [3]),
    ]
    text = (tree / "docs/performance.md").read_text()
    assert "| [Is it cheap?](#toy) | At most 3 ms. | target 3, measured 2 ms: met |  |" in text
    assert "between" in text
    assert "| a thing | 2 | 1 | 4 | ms | 3 |\n| · times faster | 3 | 3 | 3 | x | 1 |\n" in text
    assert "- worst ms: 4\n- of: 1 0.5, same yes\n" in text


def test_a_bench_that_was_not_run_says_so(tree):
    assert command.main(["page"]) == 0
    text = (tree / "docs/performance.md").read_text()
    assert (
        "### toy\n\nIs it cheap? `python -m bench toy`\n\nWhat it costs. Target: At most 3 ms.\n\nNot run yet." in text
    )


def test_a_missed_target_is_shown(tree):
    records.add_record("toy", run(2.5))
    records.add_record("toy", run(3.5, holds=False))
    page.write(command.BENCHES)
    text = (tree / "docs/performance.md").read_text()
    assert "| At most 3 ms. | target 3, measured 3.5, 2.5 to 3.5 in 2 runs: **missed** | Too slow. |" in text


def test_plots_of_removed_benches_are_deleted(tree):
    records.add_record("toy", run(2.5))
    page.write({"toy": TOY})
    assert (tree / page.PICTURES / "toy.svg").exists()
    page.write({"other": TOY})
    assert list((tree / page.PICTURES).iterdir()) == []


def test_what_cannot_be_recorded_is_reported_all_the_same(tree, capsys):
    (tree / "results").write_text("a file is in the way")
    assert command.main(["toy"]) == 0
    payload = capsys.readouterr()
    assert json.loads(payload.out.splitlines()[-1])["holds"]
    assert "not recorded" in payload.err


def test_a_page_without_markers_is_an_error():
    with pytest.raises(ValueError, match=r"(?s)<!-- end of figures -->.*fix: "):
        page.replace_section("nothing", "figures", [])


def test_the_last_runs_are_kept_and_many_values_thinned(tree):
    values = [float(value % 997) for value in range(5000)]
    for at in range(records.MAX_RECORDS + 2):
        records.add_record("toy", run(at, [Row("a word", "ms", values)]))
    kept = records.records("toy")
    assert [one.claim.value for one in kept] == list(range(2, records.MAX_RECORDS + 2))
    [row] = kept[-1].rows
    assert len(row.values) == records.MAX_VALUES
    assert (min(row.values), max(row.values)) == (0, 996)
    assert row.median == pytest.approx(statistics.median(values), abs=1)


# ---------------------------------------------------------------- several
def test_whatever_happens_to_one_the_others_run(capfd):
    assert command.measure_in_subprocesses(["no-such", "nor-this"]) == 1
    payload = capfd.readouterr().out
    assert "[1/2] no-such: no earlier run" in payload
    assert "[2/2] nor-this: no earlier run" in payload
    assert payload.endswith("nor-this             ENDED WITHOUT A CLAIM, exit code 2\n")


def test_one_that_does_not_end_is_stopped(monkeypatch):
    monkeypatch.setattr(command, "TIMEOUT_S", 0.0)
    assert command.run_in_subprocess("no-such") == "STOPPED after 0 s"


# ---------------------------------------------------------------- pictures
def parsed(*runs: Record):
    return ElementTree.fromstring(plots.render_svg("toy", runs))


def of_class(picture, name: str):
    return [one for one in picture.iter() if name in one.get("class", "").split()]


def test_bars_are_to_scale_and_the_target_is_marked():
    rows = [Row("one", "ms", [10, 20, 30]), Row("other", "ms", [40]), Row("many", "/s", [7])]
    picture = parsed(run(1.5, rows, holds=False))
    room = plots.TO - plots.FROM
    assert [float(one.get("width")) / room for one in of_class(picture, "fails")] == [0.5]
    assert of_class(picture, "bar")[0].get("d").startswith(f"M{plots.TO}")
    assert [float(one.get("width")) / room for one in of_class(picture, "row")] == [0.5, 1, 1]
    [spread] = of_class(picture, "spread")
    assert spread.get("d").startswith(f"M{plots.FROM + room / 4} ")
    assert f"H{plots.FROM + room * 3 / 4}v" in spread.get("d")
    assert of_class(parsed(run(1.5)), "holds")


def test_a_stalled_repeat_does_not_flatten_the_others():
    picture = parsed(run(1.5, [Row("one", "ms", [2, 2, 900]), Row("other", "ms", [1])]))
    bars = [float(one.get("width")) / (plots.TO - plots.FROM) for one in of_class(picture, "row")]
    assert bars == pytest.approx([0.4, 0.2], abs=0.001)
    assert of_class(picture, "spread")[0].get("d").endswith(f"H{plots.TO}.0")


def test_earlier_runs_are_the_spread_of_a_claim():
    [spread] = of_class(parsed(run(1.0), run(3.0), run(2.0)), "spread")
    assert spread.get("d").startswith(f"M{plots.FROM + (plots.TO - plots.FROM) / 3:.1f} ")
    assert f"H{plots.TO}.0v" in spread.get("d")


def test_a_curve_is_drawn_and_reported(tree):
    curve = {"x": [0, 1, 2], "series": {"ours": [100, 90, 50], "theirs": [100, 40, 0]}, "axes": ["load", "on time"]}
    picture = parsed(run(1.0, curve=curve))
    dots = [[(float(one.get("cx")), float(one.get("cy"))) for one in of_class(picture, f"d{at}")] for at in (0, 1)]
    (_, top), (middle, _), (right, half) = dots[0]
    assert right == plots.TO
    assert middle == pytest.approx((dots[0][0][0] + right) / 2, abs=0.1)
    assert half - top == pytest.approx(plots.HIGH / 2, abs=0.1)
    assert dots[1][2][1] - top == pytest.approx(plots.HIGH, abs=0.1)
    records.add_record("toy", run(1.0, curve=curve))
    text = page.render_files({"toy": TOY})[page.PAGE]
    assert "| load | ours | theirs |\n|---|---|---|\n| 0 | 100 | 100 |\n| 1 | 90 | 40 |\n| 2 | 50 | 0 |\n" in text
    assert "- curve" not in text


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

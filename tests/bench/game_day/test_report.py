"""The report lists every promise and fault, and the picture shows them to scale."""

from xml.etree import ElementTree

import pytest

from bench.game_day.faults import FAULTS
from bench.game_day.observations import WRONG
from bench.game_day.promises import PROMISES, judge
from bench.game_day.report import BEGIN, END, PAGE, PICTURE, render_report, write_report
from bench.game_day.timeline import LEFT_EDGE, SPAN, WIDTH, render_timeline
from bench.repository import ROOT
from tests.bench.game_day.toy_observations import make_observations, with_request

DATE = "2026-01-02 03:04"


def lines(seen):
    return [*render_report(seen, judge(seen), DATE)]


def of_class(picture, name):
    return [one for one in picture.iter() if one.get("class") == name and one.tag.endswith("rect")]


def parsed(seen):
    return ElementTree.fromstring(render_timeline(seen, "a <day>"))


def test_every_promise_has_a_row_with_its_verdict():
    text = lines(make_observations())
    for promise in PROMISES:
        [row] = [line for line in text if line.startswith(f"| {promise.name} | [")]
        assert row.endswith(("| kept |", "| not checked |"))
    assert any("| disk |" in line and "not checked" in line for line in text)


def test_a_broken_promise_has_its_reasons():
    seen = make_observations()
    for _ in range(5):
        seen = with_request(seen, outcome=WRONG)
    text = lines(seen)
    assert any(line.startswith("| partial |") and line.endswith("| **broken** (5) |") for line in text)
    at = text.index("Broken, partial:")
    assert text[at + 2].startswith("- count of toy at 1.0 s: wrong")
    assert text[at + 5] == "- and 2 more"


def test_every_fault_has_a_row_with_its_time():
    text = lines(make_observations())
    assert any(line.startswith("| 10.0 s | kill-worker | t1 | 0.1 s | SIGKILL to a worker |") for line in text)
    assert any("| fill-disk |" in line and "skipped: no permission to mount" in line for line in text)


def test_the_command_repeats_the_run():
    assert lines(make_observations())[0] == f"`python -m bench game-day --minutes 1 --seed 7`, {DATE} UTC:"


def test_requests_are_counted_by_their_end():
    text = lines(make_observations())
    assert any(line.startswith("| unread stream | toy | 1 | 1 `overloaded` |") for line in text)


def test_the_page_keeps_what_is_written_by_hand(tmp_path):
    (tmp_path / PICTURE).parent.mkdir(parents=True)
    (tmp_path / PAGE).write_text(f"# Title\n\n{BEGIN}earlier run\n{END}\nafter\n")
    seen = make_observations()
    for _ in range(2):
        write_report(tmp_path, seen, judge(seen), DATE)
    text = (tmp_path / PAGE).read_text()
    assert text.startswith(f"# Title\n\n{BEGIN}\n`python -m bench game-day")
    assert text.endswith(f"{END}\nafter\n")
    assert "earlier run" not in text
    assert (tmp_path / PICTURE).read_text() == render_timeline(seen, "Game day, seed 7")


def test_the_page_of_the_repository_has_the_markers_and_the_picture():
    page = (ROOT / PAGE).read_text("utf-8")
    assert page.count(BEGIN) == page.count(END) == 1
    assert (ROOT / PICTURE).is_file()


def test_the_page_lists_every_fault():
    page = (ROOT / PAGE).read_text("utf-8")
    assert [name for name, fault in FAULTS.items() if f"| `{name}` | {fault.what} |" not in page] == []


# ---------------------------------------------------------------- picture
def test_faults_are_drawn_to_scale():
    bars = of_class(parsed(make_observations()), "fault")[:-1]  # the last one is in the legend
    assert len(bars) == 4
    assert float(bars[1].get("x")) == pytest.approx(LEFT_EDGE + 20 / 60 * SPAN, abs=0.1)
    assert float(bars[1].get("width")) == pytest.approx(2 / 60 * SPAN, abs=0.1)


def test_a_request_that_is_not_as_promised_is_marked():
    assert len(of_class(parsed(make_observations()), "broken")) == 1  # the legend
    [mark, _] = of_class(parsed(with_request(make_observations(), begun=30.0, ended=31.0, outcome=WRONG)), "broken")
    assert float(mark.get("x")) == pytest.approx(LEFT_EDGE + 31 / 60 * SPAN, abs=4)


def test_expected_errors_are_marked_as_errors():
    assert len(of_class(parsed(make_observations()), "error")) > 3


def test_everything_is_inside_the_picture():
    picture = parsed(make_observations())
    for one in picture.iter():
        if one.tag.endswith("rect"):
            assert 0 <= float(one.get("x", 0)) <= WIDTH
            assert float(one.get("x", 0)) + float(one.get("width")) <= WIDTH

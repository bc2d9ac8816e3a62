"""What is remembered of requests is bounded, and what a request did before it came again is not forgotten."""

from math import inf

from mstar.wire.figures import Span
from mstar.wire.recent import ENDED, SPANS, Recent


def span(name, end=1.0):
    return Span("op", name, "w", 0, 0, 0.5, end)


def names(recent, rid):
    return [one.name for one in recent.told(7.0, rid)]


def test_the_last_that_ended_are_remembered_and_all_that_run():
    recent = Recent()
    recent.spans("long").append(span("x"))
    for number in range(ENDED + 10):
        recent.spans(f"r{number}").append(span("x"))
        recent.end(f"r{number}")
    assert [names(recent, f"r{number}") for number in (0, 9, 10, ENDED + 9)] == [[], [], ["x"], ["x"]]
    assert names(recent, "long") == ["x"]


def test_of_one_request_the_newest_spans_are_remembered():
    recent = Recent()
    for number in range(SPANS + 5):
        recent.spans("r").append(span(str(number)))
    assert names(recent, "r") == [str(number) for number in range(5, SPANS + 5)]


def test_a_request_that_comes_again_goes_on_where_it_was():
    recent = Recent()
    recent.spans("r").append(span("first"))
    recent.end("r")
    recent.spans("r").append(span("second"))
    assert names(recent, "r") == ["first", "second"]
    recent.end("r")
    recent.end("r")
    assert names(recent, "r") == ["first", "second"]


def test_what_goes_on_lasts_until_now_for_who_asks():
    recent = Recent()
    going_on = span("x", inf)
    recent.spans("r").append(going_on)
    assert [one.end for one in recent.told(7.0, "r")] == [7.0]
    assert going_on.end == inf

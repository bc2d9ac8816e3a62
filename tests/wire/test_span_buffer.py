"""What is remembered of requests is bounded, and what a request did before it came again is not forgotten."""

from math import inf

from mstar.wire.span_buffer import MAX_FINISHED_REQUESTS, MAX_SPANS_PER_REQUEST, SpanBuffer
from mstar.wire.stats import Span


def span(name, end=1.0):
    return Span("op", name, "w", 0, 0, 0.5, end)


def names(recent, rid):
    return [one.name for one in recent.snapshot(7.0, rid)]


def test_the_last_that_ended_are_remembered_and_all_that_run():
    recent = SpanBuffer()
    recent.spans("long").append(span("x"))
    for number in range(MAX_FINISHED_REQUESTS + 10):
        recent.spans(f"r{number}").append(span("x"))
        recent.finish(f"r{number}")
    assert [names(recent, f"r{number}") for number in (0, 9, 10, MAX_FINISHED_REQUESTS + 9)] == [[], [], ["x"], ["x"]]
    assert names(recent, "long") == ["x"]


def test_of_one_request_the_newest_spans_are_remembered():
    recent = SpanBuffer()
    for number in range(MAX_SPANS_PER_REQUEST + 5):
        recent.spans("r").append(span(str(number)))
    assert names(recent, "r") == [str(number) for number in range(5, MAX_SPANS_PER_REQUEST + 5)]


def test_a_resubmitted_request_keeps_its_spans():
    recent = SpanBuffer()
    recent.spans("r").append(span("first"))
    recent.finish("r")
    recent.spans("r").append(span("second"))
    assert names(recent, "r") == ["first", "second"]
    recent.finish("r")
    recent.finish("r")
    assert names(recent, "r") == ["first", "second"]


def test_an_open_span_lasts_until_the_query():
    recent = SpanBuffer()
    going_on = span("x", inf)
    recent.spans("r").append(going_on)
    assert [one.end for one in recent.snapshot(7.0, "r")] == [7.0]
    assert going_on.end == inf

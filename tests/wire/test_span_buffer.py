"""Span buffer: bounds, resubmitted requests, open spans, and the clock offset."""

import time
from math import inf

import pytest

from mstar.wire import span_buffer
from mstar.wire.span_buffer import MAX_FINISHED_REQUESTS, MAX_SPANS_PER_REQUEST, SpanBuffer
from mstar.wire.stats import Span


def span(name, end=1.0):
    return Span("op", name, "w", 0, 0, 0.5, end)


def names(buffer, rid):
    return [each.name for each in buffer.snapshot(7.0, rid)]


def test_it_keeps_all_running_and_the_latest_finished_requests():
    buffer = SpanBuffer()
    buffer.spans("long").append(span("x"))
    for number in range(MAX_FINISHED_REQUESTS + 10):
        buffer.spans(f"r{number}").append(span("x"))
        buffer.finish(f"r{number}")
    assert [names(buffer, f"r{number}") for number in (0, 9, 10, MAX_FINISHED_REQUESTS + 9)] == [[], [], ["x"], ["x"]]
    assert names(buffer, "long") == ["x"]


def test_it_keeps_the_newest_spans_of_a_request():
    buffer = SpanBuffer()
    for number in range(MAX_SPANS_PER_REQUEST + 5):
        buffer.spans("r").append(span(str(number)))
    assert names(buffer, "r") == [str(number) for number in range(5, MAX_SPANS_PER_REQUEST + 5)]


def test_a_resubmitted_request_keeps_its_spans():
    buffer = SpanBuffer()
    buffer.spans("r").append(span("first"))
    buffer.finish("r")
    buffer.spans("r").append(span("second"))
    assert names(buffer, "r") == ["first", "second"]
    buffer.finish("r")
    buffer.finish("r")
    assert names(buffer, "r") == ["first", "second"]


def test_an_open_span_lasts_until_the_query():
    buffer = SpanBuffer()
    open_span = span("x", inf)
    buffer.spans("r").append(open_span)
    assert [each.end for each in buffer.snapshot(7.0, "r")] == [7.0]
    assert open_span.end == inf


def test_a_pause_between_two_clock_reads_does_not_skew_the_offset(monkeypatch):
    reads = 0

    def monotonic() -> float:
        nonlocal reads
        reads += 1
        if reads == 2:
            time.sleep(0.3)
        return time.monotonic()

    expected = time.time() - time.monotonic()
    monkeypatch.setattr(span_buffer, "monotonic", monotonic)
    assert span_buffer.measure_clock_offset() == pytest.approx(expected, abs=0.01)
    assert reads == 2 * span_buffer.CLOCK_SAMPLES

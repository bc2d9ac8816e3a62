"""Invariants of what clients see."""

import re

import pytest

from mstar.sim.history import REFUSED, History, Violation

STREAMS = {"Text": [b"a", b"b"]}


@pytest.fixture
def history() -> History:
    history = History()
    history.submit(0.0, "r", STREAMS, b"result")
    return history


def test_a_complete_stream(history):
    history.deliver("r", "Text", 0, b"a")
    assert history.pending_requests() == ["r"]
    history.deliver("r", "Text", 1, b"b")
    history.end(1.0, "r", "ok", b"result")
    assert history.pending_requests() == []


def test_a_failed_request_can_deliver_a_part(history):
    history.deliver("r", "Text", 0, b"a")
    history.end(1.0, "r", "failed", b"None")
    assert history.requests["r"].status == "failed"


@pytest.mark.parametrize(
    ("delivered", "text"),
    [
        ([(0, b"a"), (0, b"a")], "I1 r received Text 0 after 1 of them"),
        ([(1, b"b")], "I1 r received Text 1 after 0 of them"),
        ([(0, b"x")], "I1 r received Text 0 = x, expected a"),
        ([(0, b"a"), (1, b"b"), (2, b"c")], "I1 r received Text 2 = c, expected nothing"),
    ],
    ids=["twice", "out of order", "wrong", "too many"],
)
def test_wrong_deliveries_raise(history, delivered, text):
    *before, (last, wrong) = delivered
    for index, digest in before:
        history.deliver("r", "Text", index, digest)
    with pytest.raises(Violation, match=f"^{re.escape(text)}$"):
        history.deliver("r", "Text", last, wrong)


def test_ok_needs_all_outputs(history):
    history.deliver("r", "Text", 0, b"a")
    with pytest.raises(Violation, match="I3"):
        history.end(1.0, "r", "ok", b"result")


def test_ok_needs_the_result(history):
    history.deliver("r", "Text", 0, b"a")
    history.deliver("r", "Text", 1, b"b")
    with pytest.raises(Violation, match="I3"):
        history.end(1.0, "r", "ok", b"another")


def test_a_request_ends_once(history):
    history.end(1.0, "r", "failed", b"None")
    with pytest.raises(Violation, match="I2"):
        history.end(1.0, "r", "failed", b"None")


def test_nothing_after_the_end(history):
    history.end(1.0, "r", "failed", b"None")
    with pytest.raises(Violation, match="I2"):
        history.deliver("r", "Text", 0, b"a")


def test_a_request_can_be_rejected_before_it_is_admitted(history):
    history.end(1.0, "r", REFUSED, b"")
    assert history.pending_requests() == []


def test_an_admitted_request_is_not_rejected(history):
    history.deliver("r", "Text", 0, b"a")
    with pytest.raises(Violation, match="I4"):
        history.end(1.0, "r", REFUSED, b"")


def test_nothing_after_a_client_left(history):
    history.disconnect("r")
    assert history.pending_requests() == []
    with pytest.raises(Violation, match="I8"):
        history.deliver("r", "Text", 0, b"a")
    with pytest.raises(Violation, match="I8"):
        history.end(1.0, "r", "ok", b"result")

"""FrontendActor: queries time out, and listeners are dropped with their requests."""

import time
import weakref

import pytest

from mstar.frontend.actor import QUERY_TIMEOUT_S, FrontendActor
from mstar.frontend.core import Deliver, RequestEnded
from mstar.wire import messages as m

FRONTEND, CONDUCTOR, WORKER = m.Peer("front", 0), m.Peer("conductor", 0), m.Peer("gpu0", 0)


class Loop:
    """An actor loop that waits or has a turn. It records what is sent, and what runs later."""

    def __init__(self):
        self.sent = []
        self.is_waiting = True
        self.callbacks = []

    def try_run(self, function):
        if self.is_waiting:
            function()
        return self.is_waiting

    def call_soon(self, function):
        self.callbacks.append(function)

    call_after_turn = call_soon

    def send(self, sender, to, message):
        self.sent.append((to, message))


class Listener:
    """Records the events of a request."""

    def __init__(self):
        self.events = []

    def __call__(self, event):
        self.events.append(event)


@pytest.fixture
def loop():
    return Loop()


@pytest.fixture
def actor(loop):
    return FrontendActor(loop, FRONTEND, {"chat": CONDUCTOR})


def submit(actor, rid):
    listener = Listener()
    actor.submit(m.Submit(rid, "chat", m.Value("hi")), listener)
    return listener


def test_a_query_fails_after_its_timeout_and_not_before(actor):
    future = actor.query_stats(WORKER)
    actor.tick(time.monotonic() + QUERY_TIMEOUT_S - 1)
    assert not future.done()
    actor.tick(time.monotonic() + QUERY_TIMEOUT_S + 1)
    with pytest.raises(TimeoutError):
        future.result(0)


def test_a_request_is_sent_without_a_wake_up_of_the_loop_unless_it_has_a_turn(actor, loop):
    submit(actor, "one")
    assert [message.rid for _, message in loop.sent] == ["one"]
    assert loop.callbacks == []
    loop.is_waiting = False
    submit(actor, "two")
    assert [message.rid for _, message in loop.sent] == ["one"]
    for callback in loop.callbacks:
        callback()
    assert [message.rid for _, message in loop.sent] == ["one", "two"]


def test_each_request_has_its_own_listener(actor):
    one, other = submit(actor, "one"), submit(actor, "other")
    actor.receive(0.0, WORKER, m.Emit("one", 0, "Text", 0, m.Value("a")))
    assert one.events == [Deliver("one", "Text", 0, "a", ())]
    assert other.events == []


def test_a_closed_request_does_not_keep_its_listener(actor):
    listener = submit(actor, "r")
    is_kept = weakref.ref(listener)
    del listener
    assert is_kept() is not None
    actor.close("r")
    assert is_kept() is None


def test_a_finished_request_does_not_keep_its_listener(actor):
    listener = submit(actor, "r")
    end = m.RequestRejected("r", 429, "full")
    actor.receive(0.0, CONDUCTOR, end)
    assert listener.events == [RequestEnded("r", end)]
    is_kept = weakref.ref(listener)
    del listener
    assert is_kept() is None

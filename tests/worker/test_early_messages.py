"""Buffer of data that arrives before its walk: order, expiry, limits."""

from mstar.wire import messages as m
from mstar.worker import early_messages
from mstar.worker.early_messages import EARLY_MESSAGE_TTL_S, EarlyMessages
from tests.worker.worker_harness import CONDUCTOR, W1, WorkerHarness


def data(rid="r", attempt=0, walk_index=0):
    return m.DataBatch(rid, attempt, walk_index, [])


def test_messages_of_a_walk_are_taken_once_in_order_of_arrival():
    early = EarlyMessages()
    messages = [data(), data(walk_index=1), data()]
    for message in messages:
        assert early.add(0.0, message)
    assert early.take(("r", 0, 0)) == [messages[0], messages[2]]
    assert early.take(("r", 0, 0)) == []
    assert len(early) == 1


def test_messages_expire_after_the_ttl_of_the_first_one():
    early = EarlyMessages()
    early.add(0.0, data("old"))
    early.add(EARLY_MESSAGE_TTL_S - 0.1, data("old"))
    early.add(1.0, data("new"))
    assert [*early.expire(EARLY_MESSAGE_TTL_S)] == []
    assert [*early.expire(EARLY_MESSAGE_TTL_S + 0.1)] == [("old", 0, 0)], "a later message does not extend the time"
    assert len(early) == 1
    assert [*early.expire(EARLY_MESSAGE_TTL_S + 1.1)] == [("new", 0, 0)]
    assert len(early) == 0


def test_an_expired_walk_is_reported_once_and_its_buffer_is_free_again(monkeypatch):
    monkeypatch.setattr(early_messages, "MAX_EARLY_MESSAGES", 2)
    worker = WorkerHarness().receive(data(attempt=3), data(attempt=3), data("other"), sender=W1)
    assert worker.core.stats()["early"] == 2, "the third message does not fit"
    worker.tick(EARLY_MESSAGE_TTL_S)
    assert worker.take_sent(m.RetryNeeded) == []
    worker.tick(EARLY_MESSAGE_TTL_S + 0.1)
    ((to, retry),) = worker.take_sent(m.RetryNeeded)
    assert (to, retry.rid, retry.attempt) == (CONDUCTOR, "r", 3)
    worker.tick(2 * EARLY_MESSAGE_TTL_S)
    assert worker.take_sent(m.RetryNeeded) == []
    worker.receive(data("other"), data("other"), sender=W1)
    assert worker.core.stats()["early"] == 2


def test_a_walk_that_starts_in_time_does_not_expire():
    worker = WorkerHarness(W1).receive(data(), sender=m.Peer("w0", 0)).start("split", inputs={})
    worker.tick(EARLY_MESSAGE_TTL_S + 1.0)
    assert worker.take_sent(m.RetryNeeded) == []
    assert worker.core.stats()["early"] == 0


def test_messages_of_finished_attempts_are_rejected():
    early = EarlyMessages()
    early.add(0.0, data(attempt=1))
    early.add(0.0, data(attempt=2))
    early.drop("r", 1)
    assert len(early) == 1
    assert not early.add(0.0, data(attempt=1))
    assert early.add(0.0, data(attempt=3))

"""Turns of an actor loop in other threads: `ActorLoop.try_run`."""

import os
import threading
import time

import pytest

from mstar.wire.messages import Cancel, Peer
from mstar.wire.transport.actor_loop import ActorLoop, TickInterval
from mstar.wire.transport.address_book import AddressBook
from tests.wire.actors import KEY, EchoActor, MsgpackCodec, RecordingActor, run_loop, wait_until

A, B = Peer("a", 0), Peer("b", 0)


class SlowActor(RecordingActor):
    """Actor that ticks every five seconds: what it receives earlier needs a wake-up."""

    tick_interval = TickInterval(5.0, 5.0)


@pytest.fixture
def wake_ups(monkeypatch):
    """Descriptors that were written to wake up a loop."""
    written, write = [], os.eventfd_write
    monkeypatch.setattr(os, "eventfd_write", lambda fd, value: (written.append(fd), write(fd, value)))
    return written


def make_loop(directory, *names):
    actor_loop = ActorLoop(AddressBook(directory), KEY, MsgpackCodec())
    for actor in map(SlowActor, names):
        actor_loop.add(actor)
        yield actor
    yield actor_loop


def try_until_run(actor_loop, function):
    wait_until(lambda: actor_loop.try_run(function))


def test_a_result_is_sent_from_its_thread_without_a_wake_up(tmp_path, wake_ups):
    left = ActorLoop(AddressBook(tmp_path), KEY, MsgpackCodec())
    left.add(a := RecordingActor("a"))  # it ticks before the frame has to be resent
    b, right = make_loop(tmp_path, "b")
    with run_loop(left), run_loop(right):
        a.wait(lambda: a.ticks)
        b.wait(lambda: b.ticks)
        threads = []
        try_until_run(left, lambda: (threads.append(threading.get_ident()), left.send(A, B, Cancel("x"))))
        b.wait(lambda: b.received_rids == ["x"], timeout_s=4)
        assert threads == [threading.get_ident()]
        assert wake_ups == []


def test_a_message_to_an_actor_of_the_loop_is_received_by_the_loop(tmp_path):
    a, b, actor_loop = make_loop(tmp_path, "a", "b")
    threads = []
    b.receive = lambda *_: threads.append(threading.get_ident())
    with run_loop(actor_loop):
        a.wait(lambda: a.ticks)
        try_until_run(actor_loop, lambda: actor_loop.send(A, B, Cancel("x")))
        wait_until(lambda: threads, timeout_s=4)
    assert threads != [threading.get_ident()]


def test_an_earlier_tick_ends_the_wait_of_the_loop(tmp_path):
    a, actor_loop = make_loop(tmp_path, "a")
    with run_loop(actor_loop):
        a.wait(lambda: len(a.ticks) == 1)
        try_until_run(actor_loop, lambda: actor_loop.tick_within(A, 0.01))
        a.wait(lambda: len(a.ticks) == 2, timeout_s=4)


def test_a_lost_frame_is_resent_in_time(tmp_path):
    a, left = make_loop(tmp_path, "a")
    with run_loop(left):
        a.wait(lambda: a.ticks)
        try_until_run(left, lambda: left.send(A, B, Cancel("x")))  # before the receiver listens
        b, right = make_loop(tmp_path, "b")
        with run_loop(right):
            b.wait(lambda: b.received_rids == ["x"], timeout_s=4)


def test_a_busy_loop_is_not_interrupted_and_callbacks_come_first(tmp_path):
    a, actor_loop = make_loop(tmp_path, "a")
    order, is_busy, may_end = [], threading.Event(), threading.Event()
    with run_loop(actor_loop):
        a.wait(lambda: a.ticks)
        actor_loop.call_soon(lambda: (is_busy.set(), may_end.wait(10)))
        assert is_busy.wait(10)
        assert not actor_loop.try_run(lambda: order.append("busy"))
        actor_loop.call_soon(lambda: order.append("first"))
        may_end.set()
        try_until_run(actor_loop, lambda: order.append("second"))
    assert order == ["first", "second"]
    assert not actor_loop.try_run(lambda: order.append("closed"))
    assert order == ["first", "second"]


def test_an_exception_is_logged_and_an_exit_ends_the_loop(tmp_path):
    a, actor_loop = make_loop(tmp_path, "a")
    errors = []

    def run():
        try:
            actor_loop.run()
        except SystemExit as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    a.wait(lambda: a.ticks)
    try_until_run(actor_loop, lambda: 1 / 0)
    assert actor_loop.counters["raised"] == 1
    ending = SystemExit(3)

    def end():
        raise ending

    try_until_run(actor_loop, end)
    thread.join(4)
    assert errors == [ending]


def test_messages_of_several_threads_arrive_once_and_in_order(tmp_path):
    """Three threads send beside the loop, which receives the echoes and acknowledges them."""
    counts, per_thread = [0, 0, 0], 400
    a, left = make_loop(tmp_path, "a")
    right = ActorLoop(AddressBook(tmp_path), KEY, MsgpackCodec())
    right.add(EchoActor(right, "b", 0))

    def send(number):
        for index in range(per_thread):
            message = Cancel(f"{number}:{index}")
            if left.try_run(lambda message=message: left.send(A, B, message)):
                counts[number] += 1
            else:
                left.call_soon(lambda message=message: left.send(A, B, message))
            time.sleep(0.0002)

    with run_loop(left), run_loop(right):
        threads = [threading.Thread(target=send, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        a.wait(lambda: len(a.received) == 3 * per_thread)
        wait_until(lambda: left.stats()["unacked"] == right.stats()["unacked"] == 0)
    for number in range(3):
        mine = [rid for rid in a.received_rids if rid.startswith(f"b.0:{number}:")]
        assert mine == [f"b.0:{number}:{index}" for index in range(per_thread)]
    assert min(counts) > 0

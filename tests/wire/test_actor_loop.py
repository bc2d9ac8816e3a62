"""Actor loop: messages within and between processes that crash, restart, forge frames or fall behind."""

import functools
import gc
import logging
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from mstar.errors import MstarError
from mstar.wire.frame import Frame, FrameSigner, MessageCodec, encode_peers, pack_payloads
from mstar.wire.link import ACK_DELAY_S
from mstar.wire.messages import AttemptReleased, Cancel, Credit, Heartbeat, Peer, Submit, Value
from mstar.wire.transport import actor_loop as actor_loop_module
from mstar.wire.transport.actor_loop import SLOW_TICKS, TICK_INTERVAL_S, ActorLoop
from mstar.wire.transport.address_book import AddressBook
from tests.wire import actors
from tests.wire.actors import KEY, EchoActor, MsgpackCodec, RecordingActor, run_loop, send_cancels, wait_until


@contextmanager
def run_actor_loop(directory, *hosted, key=KEY):
    """Run an actor loop with these actors."""
    actor_loop = ActorLoop(AddressBook(directory) if directory else None, key, MsgpackCodec() if directory else None)
    for actor in hosted:
        actor_loop.add(actor)
    with run_loop(actor_loop):
        yield actor_loop


@contextmanager
def echo_process(directory, incarnation):
    """Child process with an echo actor."""
    command = [sys.executable, actors.__file__, directory, "echo", str(incarnation)]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[2])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def raw_sender(directory, peer):
    """Send raw frames to an actor."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(f"{directory}/{peer}")
        yield lambda frame: connection.sendall(struct.pack("<I", len(frame)) + frame)


A, B = Peer("a", 0), Peer("b", 0)


# ---------------------------------------------------------------- one process


def test_messages_within_a_process_are_passed_by_reference_and_in_order():
    actor_loop, b = ActorLoop(None, b"", None), RecordingActor("b")
    actor_loop.add(b)
    messages = [Submit(str(n), "m", Value(object())) for n in range(10_000)]
    with run_loop(actor_loop):
        actor_loop.call_soon(lambda: [actor_loop.send(A, B, message) for message in messages])
        b.wait(lambda: len(b.received) == 10_000)
    assert all(sender is A and received is sent for (sender, received), sent in zip(b.received, messages, strict=True))


def test_remote_actors_are_unreachable_without_a_directory():
    with run_actor_loop(None, b := RecordingActor("b")) as actor_loop:
        send_cancels(actor_loop, B, Peer("b", 1), "x")
        send_cancels(actor_loop, B, B, "y")
        b.wait(lambda: b.received)
    assert actor_loop.counters == {"dropped": 1}
    assert b.received_rids == ["y"]


def test_chatty_actors_do_not_starve_ticks():
    actor_loop = ActorLoop(None, b"", None)
    for name in ("a", "b"):
        actor_loop.add(EchoActor(actor_loop, name, 0))
    recorder = RecordingActor("c")
    actor_loop.add(recorder)
    actor_loop.send(A, B, Cancel(""))
    with run_loop(actor_loop):
        recorder.wait(lambda: len(recorder.ticks) >= 5)
    assert all(
        later - earlier >= TICK_INTERVAL_S for earlier, later in zip(recorder.ticks, recorder.ticks[1:], strict=False)
    )


class SlowActor(RecordingActor):
    tick_interval = SLOW_TICKS


class ManualClock:
    """The time module of an actor loop that a test runs turn by turn."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now


class TimeoutRecorder:
    """An epoll without events: its timeouts pass at once on the clock, and are recorded."""

    def __init__(self, clock):
        self.timeouts = []
        self._clock = clock

    def poll(self, timeout_s):
        self.timeouts.append(round(timeout_s, 3))
        self._clock.now += timeout_s
        return []


@pytest.fixture
def manual_loop(monkeypatch):
    """An actor loop with a slow actor, a clock and an epoll that the test controls. It has ticked once."""
    clock = ManualClock()
    monkeypatch.setattr(actor_loop_module, "time", clock)
    actor_loop = ActorLoop(None, b"", None)
    actor_loop._epoll.close()
    actor_loop._epoll = TimeoutRecorder(clock)
    actor_loop.add(b := SlowActor("b"))
    actor_loop._run_once()
    actor_loop._epoll.timeouts.clear()
    yield actor_loop, b, clock
    os.close(actor_loop._wakeup_fd)


def test_an_actor_ticks_when_it_is_awake_for_a_message(manual_loop):
    actor_loop, b, clock = manual_loop
    for seconds in (0.1, 0.11, 0.1, 0.11, 0.1, 0.11):
        clock.now += seconds
        actor_loop.send(A, B, Cancel("x"))
        actor_loop._run_once()
    assert [tick - 100.0 for tick in b.ticks] == pytest.approx([0.0, 0.21, 0.42, 0.63])
    assert set(actor_loop._epoll.timeouts) == {0.0}, "no turn was for a tick only"


def test_an_idle_actor_waits_for_its_next_tick(manual_loop):
    actor_loop, b, _ = manual_loop
    for _ in range(3):
        actor_loop._run_once()
    assert actor_loop._epoll.timeouts == [0.24, 0.24, 0.24]
    assert len(b.ticks) == 4


def test_a_function_runs_after_all_messages_of_a_turn(manual_loop):
    actor_loop, b, _ = manual_loop
    handled = []
    for rid in ("x", "y"):
        actor_loop.send(A, B, Cancel(rid))
    actor_loop.call_after_turn(lambda: handled.append(len(b.received)))
    actor_loop._run_once()
    actor_loop._run_once()
    assert handled == [2]


def test_idle_actors_share_their_wake_ups(manual_loop):
    actor_loop, b, clock = manual_loop
    clock.now += 0.1
    actor_loop.add(late := SlowActor("late"))
    actor_loop._run_once()
    actor_loop._epoll.timeouts.clear()
    for _ in range(3):
        actor_loop._run_once()
    assert actor_loop._epoll.timeouts == [0.14, 0.24, 0.24]
    assert b.ticks[1:] == late.ticks[1:]


def test_an_actor_can_ask_for_an_earlier_tick(manual_loop):
    actor_loop, b, _ = manual_loop
    actor_loop.tick_within(B, 0.03)
    actor_loop.tick_within(B, 0.05)
    actor_loop._run_once()
    actor_loop._run_once()
    assert actor_loop._epoll.timeouts == [0.03, 0.24]
    assert [tick - 100.0 for tick in b.ticks] == pytest.approx([0.0, 0.03, 0.27])


class RaisingActor(RecordingActor):
    """Actor that raises the exception that a message names."""

    def receive(self, now, sender, message):
        super().receive(now, sender, message)
        if message.rid != "fine":
            raise {"error": ValueError, "interrupt": KeyboardInterrupt, "exit": SystemExit}[message.rid]("secret")


def test_an_exception_costs_one_message(caplog):
    with run_actor_loop(None, b := RaisingActor("b")) as actor_loop, caplog.at_level(logging.ERROR, "mstar.wire"):
        send_cancels(actor_loop, A, B, "error", "fine", "error", "fine")
        actor_loop.call_soon(lambda: 1 / 0)
        send_cancels(actor_loop, A, B, "fine")
        b.wait(lambda: len(b.received) == 5)
    assert actor_loop.counters["raised"] == 3
    logged = sorted((record.exc_info[0].__name__, record.getMessage()) for record in caplog.records)
    of_message = ("ValueError", "b.0 raised an exception on ['float', 'Peer', 'Cancel']")
    assert logged == [of_message, of_message, ("ZeroDivisionError", "a callback raised an exception on []")]


@pytest.mark.parametrize(("rid", "error"), [("interrupt", KeyboardInterrupt), ("exit", SystemExit)])
def test_an_actor_can_end_the_process(tmp_path, rid, error):
    codec = MsgpackCodec()
    actor_loop = ActorLoop(AddressBook(tmp_path), KEY, codec)
    actor_loop.add(RaisingActor("b"))
    actor_loop.send(A, B, Cancel(rid))
    with pytest.raises(error):
        actor_loop.run()
    assert codec.is_closed
    assert list(tmp_path.iterdir()) == []


def test_many_calls_wake_the_loop_once(monkeypatch):
    writes, write, called = [], os.eventfd_write, []
    monkeypatch.setattr(os, "eventfd_write", lambda fd, value: (writes.append(fd), write(fd, value)))
    actor_loop = ActorLoop(None, b"", None)
    actor_loop.add(b := RecordingActor("b"))
    for n in range(100):
        actor_loop.call_soon(lambda n=n: called.append(n))
    assert len(writes) == 1
    with run_loop(actor_loop):
        b.wait(lambda: b.ticks)
        actor_loop.call_soon(lambda: actor_loop.send(A, B, Cancel("x")))
        b.wait(lambda: b.received)
    assert called == list(range(100))


def test_calls_after_the_stop_are_ignored():
    with run_actor_loop(None) as actor_loop:
        pass
    actor_loop.call_soon(lambda: 1 / 0)
    actor_loop.stop()
    assert actor_loop.counters == {}


# ---------------------------------------------------------------- several processes


def test_ten_thousand_messages_arrive_in_order(tmp_path):
    rids = [str(n) for n in range(10_000)]
    with run_actor_loop(tmp_path, a := RecordingActor("a")) as actor_loop, echo_process(tmp_path, 0):
        for rid in rids:
            send_cancels(actor_loop, A, Peer("echo", 0), rid)
        a.wait(lambda: len(a.received) == 10_000)
        wait_until(lambda: actor_loop.stats()["unacked"] == 0)
    assert a.received_rids == [f"echo.0:{rid}" for rid in rids]


def test_a_frame_holds_all_messages_of_a_turn(tmp_path):
    with run_actor_loop(tmp_path, RecordingActor("a")) as left, run_actor_loop(tmp_path, b := RecordingActor("b")):
        send_cancels(left, A, B, *map(str, range(1000)))
        b.wait(lambda: len(b.received) == 1000)
        wait_until(lambda: left.counters["sent"] == 1)  # counted after the peer could have received it


def test_a_heartbeat_is_one_frame_without_an_acknowledgement(tmp_path):
    with (
        run_actor_loop(tmp_path, RecordingActor("a")) as left,
        run_actor_loop(tmp_path, b := RecordingActor("b")) as right,
    ):
        for n in range(5):
            left.call_soon(lambda: left.send(A, B, Heartbeat()))
            b.wait(lambda n=n: len(b.received) == n + 1)
        assert left.stats()["unacked"] == 0
        time.sleep(3 * ACK_DELAY_S)
        assert (left.counters["sent"], right.counters["sent"]) == (5, 0)
        left.call_soon(lambda: [left.send(A, B, Heartbeat()), left.send(A, B, Cancel("x"))])
        wait_until(lambda: right.counters["sent"] == 1)  # a frame with another message is acknowledged
        wait_until(lambda: left.stats()["unacked"] == 0)
    assert len(b.received) == 7


def test_credits_of_many_streams_are_one_frame(tmp_path):
    with run_actor_loop(tmp_path, RecordingActor("a")) as left, run_actor_loop(tmp_path, b := RecordingActor("b")):
        left.call_soon(
            lambda: [left.call_soon(lambda n=n: left.send(A, B, Credit(str(n), 0, "Text", 16))) for n in range(64)]
        )
        b.wait(lambda: len(b.received) == 64)
        wait_until(lambda: left.counters["sent"])
        assert left.counters["sent"] <= 3, "one; more if this machine stalls for 20 ms between two turns"
        left.call_soon(lambda: [left.send(A, B, Credit("x", 0, "Text", 32)), left.send(A, B, Cancel("y"))])
        b.wait(lambda: len(b.received) == 66)
    assert b.received_rids == [*map(str, range(64)), "x", "y"]


def test_a_confirmation_that_can_wait_shares_a_frame(tmp_path):
    with run_actor_loop(tmp_path, RecordingActor("a")) as left, run_actor_loop(tmp_path, b := RecordingActor("b")):
        send = functools.partial(left.send, A, B)
        left.call_soon(lambda: [send(AttemptReleased("x", 0, can_wait=True)), send(Cancel("y"))])
        b.wait(lambda: len(b.received) == 2)
        left.call_soon(lambda: send(AttemptReleased("z", 0, can_wait=True)))  # alone, it is sent a little later
        b.wait(lambda: len(b.received) == 3)
        wait_until(lambda: left.counters["sent"] == 2)
    assert b.received_rids == ["x", "y", "z"]


def test_a_heartbeat_carries_the_acknowledgement_that_is_due(tmp_path):
    a, b = RecordingActor("a"), EchoActor(None, "b", 0)
    with run_actor_loop(tmp_path, a) as left, run_actor_loop(tmp_path, b) as right:
        b.receive = lambda now, sender, message: right.send(B, A, Heartbeat())
        send_cancels(left, A, B, "x")
        a.wait(lambda: a.received)
        wait_until(lambda: left.stats()["unacked"] == 0)
        time.sleep(3 * ACK_DELAY_S)
        assert right.counters["sent"] == 1


def test_a_peer_that_starts_later_gets_all_messages(tmp_path):
    with run_actor_loop(tmp_path, RecordingActor("a")) as left:
        send_cancels(left, A, B, "1", "2")
        wait_until(lambda: left.stats()["unacked"] == 1)
        with run_actor_loop(tmp_path, b := RecordingActor("b")):
            b.wait(lambda: len(b.received) == 2)
            wait_until(lambda: left.stats()["unacked"] == 0)
    assert b.received_rids == ["1", "2"]


def test_two_actors_of_a_loop_have_links_of_their_own(tmp_path):
    with (
        run_actor_loop(tmp_path, RecordingActor("a"), RecordingActor("c")) as left,
        run_actor_loop(tmp_path, b := RecordingActor("b")) as right,
    ):
        for n in range(50):
            send_cancels(left, A, B, f"a{n}")
            send_cancels(left, Peer("c", 0), B, f"c{n}")
        b.wait(lambda: len(b.received) == 100)
        assert left.stats()["links"] == right.stats()["links"] == 2
    for name in "ac":
        assert [rid for rid in b.received_rids if rid[0] == name] == [f"{name}{n}" for n in range(50)]
        assert {sender.name for sender, message in b.received if message.rid[0] == name} == {name}


def test_a_killed_process_returns_as_a_new_incarnation(tmp_path):
    first, second = Peer("echo", 1), Peer("echo", 2)
    with run_actor_loop(tmp_path, a := RecordingActor("a")) as actor_loop:
        with echo_process(tmp_path, 1) as process:
            send_cancels(actor_loop, A, first, "x")
            a.wait(lambda: a.received_rids == ["echo.1:x"])
            process.send_signal(signal.SIGKILL)
            process.wait()
        send_cancels(actor_loop, A, first, "lost")
        wait_until(lambda: actor_loop.stats()["unacked"] == 1 and actor_loop.counters["full"] > 1)
        with echo_process(tmp_path, 2):
            send_cancels(actor_loop, A, second, "y")
            send_cancels(actor_loop, A, first, "also lost")
            a.wait(lambda: len(a.received) == 2)
            wait_until(lambda: actor_loop.stats() == {"inbox": 0, "links": 1, "unacked": 0, "decoding": 0})
    assert a.received_rids == ["echo.1:x", "echo.2:y"]
    assert actor_loop.counters["dropped"] == 1


def test_an_earlier_incarnation_of_itself_gets_no_messages(tmp_path):
    with run_actor_loop(tmp_path, b := RecordingActor("b", 3)) as actor_loop:
        send_cancels(actor_loop, b.peer, Peer("b", 2), "x")
        wait_until(lambda: actor_loop.counters["dropped"])
        assert actor_loop.stats()["links"] == 0


def test_a_paused_process_misses_no_message(tmp_path):
    echo = Peer("echo", 0)
    with run_actor_loop(tmp_path, a := RecordingActor("a")) as actor_loop, echo_process(tmp_path, 0) as process:
        send_cancels(actor_loop, A, echo, "first")
        a.wait(lambda: a.received)
        process.send_signal(signal.SIGSTOP)
        for n in range(1000):
            send_cancels(actor_loop, A, echo, str(n))
            if n % 100 == 0:
                time.sleep(0.05)  # several frames, some of them resent
        process.send_signal(signal.SIGCONT)
        a.wait(lambda: len(a.received) == 1001)
        wait_until(lambda: actor_loop.stats()["unacked"] == 0)
    assert a.received_rids[1:] == [f"echo.0:{n}" for n in range(1000)]


def test_messages_of_a_dead_incarnation_are_ignored(tmp_path):
    with (
        run_actor_loop(tmp_path, b := RecordingActor("b")) as actor_loop,
        run_actor_loop(tmp_path, RecordingActor("a", 4)) as old,
    ):
        send_cancels(old, Peer("a", 4), B, "old")
        b.wait(lambda: b.received_rids == ["old"])
        with run_actor_loop(tmp_path, RecordingActor("a", 5)) as new:
            send_cancels(new, Peer("a", 5), B, "new")
            b.wait(lambda: b.received_rids == ["old", "new"])
            send_cancels(old, Peer("a", 4), B, "stale")
            wait_until(lambda: actor_loop.counters["refused_old"])
            send_cancels(new, Peer("a", 5), B, "newer")
            b.wait(lambda: len(b.received) == 3)
    assert b.received_rids == ["old", "new", "newer"]


def test_a_removed_peer_gets_and_sends_nothing_and_is_freed(tmp_path):
    codec = MsgpackCodec()
    actor_loop = ActorLoop(AddressBook(tmp_path), KEY, codec)
    actor_loop.add(b := RecordingActor("b"))
    with run_loop(actor_loop), run_actor_loop(tmp_path, RecordingActor("a")) as other:
        send_cancels(other, A, B, "before")
        b.wait(lambda: b.received_rids == ["before"])
        actor_loop.call_soon(lambda: [actor_loop.send(B, A, Cancel("answer")), actor_loop.forget(A)])
        send_cancels(other, A, B, "after")
        send_cancels(actor_loop, B, A, "answer")
        wait_until(lambda: actor_loop.counters["refused_old"] and actor_loop.counters["dropped"])
        assert actor_loop.stats() == {"inbox": 0, "links": 0, "unacked": 0, "decoding": 0}
    assert b.received_rids == ["before"]
    assert codec.forgotten == [A]


def test_messages_of_a_removed_peer_in_this_turn_are_dropped():
    actor_loop = ActorLoop(None, b"", None)

    class Forgetful(RecordingActor):
        def receive(self, now, sender, message):
            super().receive(now, sender, message)
            actor_loop.forget(A)

    actor_loop.add(b := Forgetful("b"))
    for sender in (A, A, Peer("c", 0)):
        actor_loop.send(sender, B, Cancel("x"))
    with run_loop(actor_loop):
        b.wait(lambda: b.ticks)
    assert [sender.name for sender, _ in b.received] == ["a", "c"]


# ---------------------------------------------------------------- invalid frames


def signed_frame(*rids, number=1, sender=A, receiver=B, key=KEY):
    codec = MessageCodec(MsgpackCodec())
    payload = pack_payloads([codec.encode(Cancel(rid), receiver) for rid in rids])[0] if rids else b"nonsense"
    return FrameSigner(key).sign(Frame(encode_peers(sender, receiver), number, 0, payload))


def test_forged_misdirected_duplicate_and_invalid_frames_are_rejected(tmp_path):
    with run_actor_loop(tmp_path, b := RecordingActor("b")) as actor_loop, raw_sender(tmp_path, B) as send:
        good = signed_frame("good")
        for data in (b"", b"x" * 500, signed_frame("bad", key=b"k" * 32), good[:-1] + bytes((good[-1] ^ 1,))):
            send(data)
        send(signed_frame("bad", receiver=Peer("b", 1)))
        send(signed_frame("bad", receiver=Peer("c", 0)))
        send(signed_frame("bad", sender=Peer("../a", 0)))
        for data in (good, good, signed_frame(number=2), signed_frame("last", number=3), good):
            send(data)
        b.wait(lambda: len(b.received) == 2)
        wait_until(lambda: actor_loop.counters["received"] == 12)
    assert b.received_rids == ["good", "last"]
    names = ("refused_mac", "refused_other", "undecoded", "raised")
    assert [actor_loop.counters[name] for name in names] == [5, 2, 1, 0]


def test_an_invalid_name_or_directory_is_rejected(tmp_path):
    actor_loop = ActorLoop(AddressBook(tmp_path), KEY, MsgpackCodec())
    for name in ("", "a/b", "x" * 65):
        with pytest.raises(MstarError, match=r"invalid process name '.*'\n  fix: use 1 to 64 bytes without a slash"):
            actor_loop.add(RecordingActor(name))
    deep = ActorLoop(AddressBook(tmp_path / ("d" * 100)), KEY, MsgpackCodec())
    with pytest.raises(MstarError, match=r"the limit is 107\n  fix: use a shorter directory"):
        deep.add(RecordingActor("a"))
    for each in (actor_loop, deep):
        each.stop()
        each.run()


# ---------------------------------------------------------------- leaks


def open_resources(directory):
    """Count open descriptors and threads, and list socket files."""
    gc.collect()
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), os.listdir(directory)


def test_nothing_is_left_after_many_incarnations(tmp_path):
    def live(incarnation):
        a, b = RecordingActor("a", incarnation), RecordingActor("b", incarnation)
        with run_actor_loop(tmp_path, a) as one, run_actor_loop(tmp_path, b) as other:
            send_cancels(one, a.peer, b.peer, "x")
            b.wait(lambda: b.received)
            send_cancels(other, b.peer, a.peer, "y")
            a.wait(lambda: a.received)

    live(0)
    before = open_resources(tmp_path)
    for incarnation in range(1, 51):
        live(incarnation)
    assert open_resources(tmp_path) == before
    assert before[2] == []

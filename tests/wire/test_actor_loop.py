"""Nodes: messages between actors, in one process and between several that die, come back, lie and fall behind."""

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
from mstar.wire.messages import Cancel, Peer, Submit, Value
from mstar.wire.transport.actor_loop import TICK_INTERVAL_S, ActorLoop
from mstar.wire.transport.address_book import AddressBook
from tests.wire import actors
from tests.wire.actors import KEY, EchoActor, MsgpackCodec, RecordingActor, run_loop, send_cancels, wait_until


@contextmanager
def run_actor_loop(directory, *ears, key=KEY):
    """A node that hosts these, running."""
    node = ActorLoop(AddressBook(directory) if directory else None, key, MsgpackCodec() if directory else None)
    for ear in ears:
        node.add(ear)
    with run_loop(node):
        yield node


@contextmanager
def echo_process(directory, incarnation):
    """A process that hosts echo."""
    command = [sys.executable, actors.__file__, directory, "echo", str(incarnation)]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[2])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def raw_sender(directory, peer):
    """A way to send an actor whatever one likes."""
    with socket.socket(socket.AF_UNIX) as way:
        way.connect(f"{directory}/{peer}")
        yield lambda frame: way.sendall(struct.pack("<I", len(frame)) + frame)


A, B = Peer("a", 0), Peer("b", 0)


# ---------------------------------------------------------------- one process


def test_inside_a_process_messages_go_by_reference_and_in_order():
    node, b = ActorLoop(None, b"", None), RecordingActor("b")
    node.add(b)
    messages = [Submit(str(n), "m", Value(object())) for n in range(10_000)]
    with run_loop(node):
        node.call_soon(lambda: [node.send(A, B, message) for message in messages])
        b.wait(lambda: len(b.received) == 10_000)
    assert all(sender is A and got is sent for (sender, got), sent in zip(b.received, messages, strict=True))


def test_remote_actors_are_unreachable_without_a_directory():
    with run_actor_loop(None, b := RecordingActor("b")) as node:
        send_cancels(node, B, Peer("b", 1), "x")
        send_cancels(node, B, B, "y")
        b.wait(lambda: b.received)
    assert node.counters == {"dropped": 1}
    assert b.received_rids == ["y"]


def test_actors_are_ticked_even_when_they_never_stop_talking():
    node = ActorLoop(None, b"", None)
    for name in ("a", "b"):
        node.add(EchoActor(node, name, 0))
    ear = RecordingActor("c")
    node.add(ear)
    node.send(A, B, Cancel(""))
    with run_loop(node):
        ear.wait(lambda: len(ear.ticks) >= 5)
    assert all(later - earlier >= TICK_INTERVAL_S for earlier, later in zip(ear.ticks, ear.ticks[1:], strict=False))


class RaisingActor(RecordingActor):
    """An actor that raises what it is told to raise."""

    def receive(self, now, sender, message):
        super().receive(now, sender, message)
        if message.rid != "fine":
            raise {"error": ValueError, "interrupt": KeyboardInterrupt, "exit": SystemExit}[message.rid]("secret")


def test_an_exception_costs_one_message(caplog):
    with run_actor_loop(None, b := RaisingActor("b")) as node, caplog.at_level(logging.ERROR, "mstar.wire"):
        send_cancels(node, A, B, "error", "fine", "error", "fine")
        node.call_soon(lambda: 1 / 0)
        send_cancels(node, A, B, "fine")
        b.wait(lambda: len(b.received) == 5)
    assert node.counters["raised"] == 3
    told = sorted((record.exc_info[0].__name__, record.getMessage()) for record in caplog.records)
    of_message = ("ValueError", "b.0 raised, given ['float', 'Peer', 'Cancel']")
    assert told == [of_message, of_message, ("ZeroDivisionError", "a call raised, given []")]


@pytest.mark.parametrize(("rid", "error"), [("interrupt", KeyboardInterrupt), ("exit", SystemExit)])
def test_an_actor_may_end_the_process(tmp_path, rid, error):
    codec = MsgpackCodec()
    node = ActorLoop(AddressBook(tmp_path), KEY, codec)
    node.add(RaisingActor("b"))
    node.send(A, B, Cancel(rid))
    with pytest.raises(error):
        node.run()
    assert codec.is_closed
    assert list(tmp_path.iterdir()) == []


def test_after_the_end_nothing_happens():
    with run_actor_loop(None) as node:
        pass
    node.call_soon(lambda: 1 / 0)
    node.stop()
    assert node.counters == {}


# ---------------------------------------------------------------- several processes


def test_ten_thousand_messages_arrive_in_order(tmp_path):
    rids = [str(n) for n in range(10_000)]
    with run_actor_loop(tmp_path, a := RecordingActor("a")) as node, echo_process(tmp_path, 0):
        for rid in rids:
            send_cancels(node, A, Peer("echo", 0), rid)
        a.wait(lambda: len(a.received) == 10_000)
        wait_until(lambda: node.stats()["unacked"] == 0)
    assert a.received_rids == [f"echo.0:{rid}" for rid in rids]


def test_a_frame_holds_all_messages_of_a_turn(tmp_path):
    with run_actor_loop(tmp_path, RecordingActor("a")) as left, run_actor_loop(tmp_path, b := RecordingActor("b")):
        send_cancels(left, A, B, *map(str, range(1000)))
        b.wait(lambda: len(b.received) == 1000)
        wait_until(lambda: left.counters["sent"] == 1)  # it is counted when the other side may have heard it


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
    with run_actor_loop(tmp_path, a := RecordingActor("a")) as node:
        with echo_process(tmp_path, 1) as process:
            send_cancels(node, A, first, "x")
            a.wait(lambda: a.received_rids == ["echo.1:x"])
            process.send_signal(signal.SIGKILL)
            process.wait()
        send_cancels(node, A, first, "nobody hears this")
        wait_until(lambda: node.stats()["unacked"] == 1 and node.counters["resent"])
        with echo_process(tmp_path, 2):
            send_cancels(node, A, second, "y")
            send_cancels(node, A, first, "nor this")
            a.wait(lambda: len(a.received) == 2)
            wait_until(lambda: node.stats() == {"inbox": 0, "links": 1, "unacked": 0, "decoding": 0})
    assert a.received_rids == ["echo.1:x", "echo.2:y"]
    assert node.counters["dropped"] == 1


def test_an_earlier_incarnation_of_itself_gets_no_messages(tmp_path):
    with run_actor_loop(tmp_path, b := RecordingActor("b", 3)) as node:
        send_cancels(node, b.peer, Peer("b", 2), "x")
        wait_until(lambda: node.counters["dropped"])
        assert node.stats()["links"] == 0


def test_a_process_that_stands_still_misses_nothing(tmp_path):
    echo = Peer("echo", 0)
    with run_actor_loop(tmp_path, a := RecordingActor("a")) as node, echo_process(tmp_path, 0) as process:
        send_cancels(node, A, echo, "first")
        a.wait(lambda: a.received)
        process.send_signal(signal.SIGSTOP)
        for n in range(1000):
            send_cancels(node, A, echo, str(n))
            if n % 100 == 0:
                time.sleep(0.05)  # so that they do not all travel in one frame, and some are sent again
        process.send_signal(signal.SIGCONT)
        a.wait(lambda: len(a.received) == 1001)
        wait_until(lambda: node.stats()["unacked"] == 0)
    assert a.received_rids[1:] == [f"echo.0:{n}" for n in range(1000)]


def test_messages_of_a_dead_incarnation_are_ignored(tmp_path):
    with (
        run_actor_loop(tmp_path, b := RecordingActor("b")) as node,
        run_actor_loop(tmp_path, RecordingActor("a", 4)) as old,
    ):
        send_cancels(old, Peer("a", 4), B, "old")
        b.wait(lambda: b.received_rids == ["old"])
        with run_actor_loop(tmp_path, RecordingActor("a", 5)) as new:
            send_cancels(new, Peer("a", 5), B, "new")
            b.wait(lambda: b.received_rids == ["old", "new"])
            send_cancels(old, Peer("a", 4), B, "stale")
            wait_until(lambda: node.counters["refused_old"])
            send_cancels(new, Peer("a", 5), B, "newer")
            b.wait(lambda: len(b.received) == 3)
    assert b.received_rids == ["old", "new", "newer"]


def test_a_removed_peer_gets_and_sends_nothing_and_is_freed(tmp_path):
    codec = MsgpackCodec()
    node = ActorLoop(AddressBook(tmp_path), KEY, codec)
    node.add(b := RecordingActor("b"))
    with run_loop(node), run_actor_loop(tmp_path, RecordingActor("a")) as other:
        send_cancels(other, A, B, "before")
        b.wait(lambda: b.received_rids == ["before"])
        node.call_soon(lambda: [node.send(B, A, Cancel("answer")), node.forget(A)])
        send_cancels(other, A, B, "after")
        send_cancels(node, B, A, "answer")
        wait_until(lambda: node.counters["refused_old"] and node.counters["dropped"])
        assert node.stats() == {"inbox": 0, "links": 0, "unacked": 0, "decoding": 0}
    assert b.received_rids == ["before"]
    assert codec.forgotten == [A]


def test_messages_of_a_removed_peer_in_this_turn_are_dropped():
    node = ActorLoop(None, b"", None)

    class Forgetful(RecordingActor):
        def receive(self, now, sender, message):
            super().receive(now, sender, message)
            node.forget(A)

    node.add(b := Forgetful("b"))
    for sender in (A, A, Peer("c", 0)):
        node.send(sender, B, Cancel("x"))
    with run_loop(node):
        b.wait(lambda: b.ticks)
    assert [sender.name for sender, _ in b.received] == ["a", "c"]


# ---------------------------------------------------------------- liars


def sealed(*rids, number=1, sender=A, receiver=B, key=KEY):
    translator = MessageCodec(MsgpackCodec())
    payload = pack_payloads([translator.encode(Cancel(rid), receiver) for rid in rids])[0] if rids else b"nonsense"
    return FrameSigner(key).sign(Frame(encode_peers(sender, receiver), number, 0, payload))


def test_forged_misdirected_repeated_and_broken_frames_are_refused(tmp_path):
    with run_actor_loop(tmp_path, b := RecordingActor("b")) as node, raw_sender(tmp_path, B) as send:
        good = sealed("good")
        for data in (b"", b"x" * 500, sealed("bad", key=b"k" * 32), good[:-1] + bytes((good[-1] ^ 1,))):
            send(data)
        send(sealed("bad", receiver=Peer("b", 1)))
        send(sealed("bad", receiver=Peer("c", 0)))
        send(sealed("bad", sender=Peer("../a", 0)))
        for data in (good, good, sealed(number=2), sealed("last", number=3), good):
            send(data)
        b.wait(lambda: len(b.received) == 2)
        wait_until(lambda: node.counters["received"] == 12)
    assert b.received_rids == ["good", "last"]
    told = ("refused_mac", "refused_other", "undecoded", "raised")
    assert [node.counters[name] for name in told] == [5, 2, 1, 0]


def test_a_name_or_directory_that_cannot_be_an_address_is_refused(tmp_path):
    node = ActorLoop(AddressBook(tmp_path), KEY, MsgpackCodec())
    for name in ("", "a/b", "x" * 65):
        with pytest.raises(MstarError, match=r"cannot be called '.*'\n  fix: use 1 to 64 bytes without a slash"):
            node.add(RecordingActor(name))
    deep = ActorLoop(AddressBook(tmp_path / ("d" * 100)), KEY, MsgpackCodec())
    with pytest.raises(MstarError, match=r"too long for a socket\n  fix: use a shorter directory"):
        deep.add(RecordingActor("a"))
    for made in (node, deep):
        made.stop()
        made.run()


# ---------------------------------------------------------------- what is left


def open_resources(directory):
    """Open descriptors, threads and socket files."""
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

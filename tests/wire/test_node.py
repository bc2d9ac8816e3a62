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
from mstar.wire.frame import Frame, Seal, Translator, joined, write_ends
from mstar.wire.messages import Cancel, Peer, Submit, Value
from mstar.wire.node import TICK, Node
from mstar.wire.whereabouts import Whereabouts
from tests.wire import parts
from tests.wire.parts import KEY, Ear, Echo, Plain, eventually, running, say


@contextmanager
def hosting(directory, *ears, key=KEY):
    """A node that hosts these, running."""
    node = Node(Whereabouts(directory) if directory else None, key, Plain() if directory else None)
    for ear in ears:
        node.add(ear)
    with running(node):
        yield node


@contextmanager
def echo_process(directory, incarnation):
    """A process that hosts echo."""
    command = [sys.executable, parts.__file__, directory, "echo", str(incarnation)]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[2])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def intruder(directory, peer):
    """A way to send an actor whatever one likes."""
    with socket.socket(socket.AF_UNIX) as way:
        way.connect(f"{directory}/{peer}")
        yield lambda frame: way.sendall(struct.pack("<I", len(frame)) + frame)


A, B = Peer("a", 0), Peer("b", 0)


# ---------------------------------------------------------------- one process


def test_inside_a_process_messages_go_by_reference_and_in_order():
    node, b = Node(None, b"", None), Ear("b")
    node.add(b)
    messages = [Submit(str(n), "m", Value(object())) for n in range(10_000)]
    with running(node):
        node.call(lambda: [node.send(A, B, message) for message in messages])
        b.wait(lambda: len(b.heard) == 10_000)
    assert all(sender is A and got is sent for (sender, got), sent in zip(b.heard, messages, strict=True))


def test_whoever_does_not_live_here_cannot_be_reached_from_a_node_without_a_directory():
    with hosting(None, b := Ear("b")) as node:
        say(node, B, Peer("b", 1), "x")
        say(node, B, B, "y")
        b.wait(lambda: b.heard)
    assert node.counters == {"dropped": 1}
    assert b.said == ["y"]


def test_actors_are_ticked_even_when_they_never_stop_talking():
    node = Node(None, b"", None)
    for name in ("a", "b"):
        node.add(Echo(node, name, 0))
    ear = Ear("c")
    node.add(ear)
    node.send(A, B, Cancel(""))
    with running(node):
        ear.wait(lambda: len(ear.ticks) >= 5)
    assert all(later - earlier >= TICK for earlier, later in zip(ear.ticks, ear.ticks[1:], strict=False))


class Clumsy(Ear):
    """An actor that raises what it is told to raise."""

    def receive(self, now, sender, message):
        super().receive(now, sender, message)
        if message.rid != "fine":
            raise {"error": ValueError, "interrupt": KeyboardInterrupt, "exit": SystemExit}[message.rid]("secret")


def test_an_exception_costs_one_message(caplog):
    with hosting(None, b := Clumsy("b")) as node, caplog.at_level(logging.ERROR, "mstar.wire"):
        say(node, A, B, "error", "fine", "error", "fine")
        node.call(lambda: 1 / 0)
        say(node, A, B, "fine")
        b.wait(lambda: len(b.heard) == 5)
    assert node.counters["raised"] == 3
    told = sorted((record.exc_info[0].__name__, record.getMessage()) for record in caplog.records)
    of_message = ("ValueError", "b.0 raised, given ['float', 'Peer', 'Cancel']")
    assert told == [of_message, of_message, ("ZeroDivisionError", "a call raised, given []")]


@pytest.mark.parametrize(("rid", "error"), [("interrupt", KeyboardInterrupt), ("exit", SystemExit)])
def test_who_wants_to_end_the_process_may(tmp_path, rid, error):
    codec = Plain()
    node = Node(Whereabouts(tmp_path), KEY, codec)
    node.add(Clumsy("b"))
    node.send(A, B, Cancel(rid))
    with pytest.raises(error):
        node.run()
    assert codec.is_closed
    assert list(tmp_path.iterdir()) == []


def test_after_the_end_nothing_happens():
    with hosting(None) as node:
        pass
    node.call(lambda: 1 / 0)
    node.stop()
    assert node.counters == {}


# ---------------------------------------------------------------- several processes


def test_ten_thousand_messages_arrive_in_order(tmp_path):
    rids = [str(n) for n in range(10_000)]
    with hosting(tmp_path, a := Ear("a")) as node, echo_process(tmp_path, 0):
        for rid in rids:
            say(node, A, Peer("echo", 0), rid)
        a.wait(lambda: len(a.heard) == 10_000)
        eventually(lambda: node.stock()["unacked"] == 0)
    assert a.said == [f"echo.0:{rid}" for rid in rids]


def test_a_frame_holds_all_that_was_said_in_a_turn(tmp_path):
    with hosting(tmp_path, Ear("a")) as left, hosting(tmp_path, b := Ear("b")):
        say(left, A, B, *map(str, range(1000)))
        b.wait(lambda: len(b.heard) == 1000)
        eventually(lambda: left.counters["sent"] == 1)  # it is counted when the other side may have heard it


def test_who_is_not_there_yet_hears_everything_later(tmp_path):
    with hosting(tmp_path, Ear("a")) as left:
        say(left, A, B, "1", "2")
        eventually(lambda: left.stock()["unacked"] == 1)
        with hosting(tmp_path, b := Ear("b")):
            b.wait(lambda: len(b.heard) == 2)
            eventually(lambda: left.stock()["unacked"] == 0)
    assert b.said == ["1", "2"]


def test_two_actors_of_a_node_have_links_of_their_own(tmp_path):
    with hosting(tmp_path, Ear("a"), Ear("c")) as left, hosting(tmp_path, b := Ear("b")) as right:
        for n in range(50):
            say(left, A, B, f"a{n}")
            say(left, Peer("c", 0), B, f"c{n}")
        b.wait(lambda: len(b.heard) == 100)
        assert left.stock()["links"] == right.stock()["links"] == 2
    for name in "ac":
        assert [rid for rid in b.said if rid[0] == name] == [f"{name}{n}" for n in range(50)]
        assert {sender.name for sender, message in b.heard if message.rid[0] == name} == {name}


def test_a_process_that_was_killed_comes_back_in_a_new_life(tmp_path):
    first, second = Peer("echo", 1), Peer("echo", 2)
    with hosting(tmp_path, a := Ear("a")) as node:
        with echo_process(tmp_path, 1) as process:
            say(node, A, first, "x")
            a.wait(lambda: a.said == ["echo.1:x"])
            process.send_signal(signal.SIGKILL)
            process.wait()
        say(node, A, first, "nobody hears this")
        eventually(lambda: node.stock()["unacked"] == 1 and node.counters["resent"])
        with echo_process(tmp_path, 2):
            say(node, A, second, "y")
            say(node, A, first, "nor this")
            a.wait(lambda: len(a.heard) == 2)
            eventually(lambda: node.stock() == {"arrived": 0, "links": 1, "unacked": 0, "fetching": 0})
    assert a.said == ["echo.1:x", "echo.2:y"]
    assert node.counters["dropped"] == 1


def test_an_earlier_life_of_oneself_is_not_spoken_to(tmp_path):
    with hosting(tmp_path, b := Ear("b", 3)) as node:
        say(node, b.peer, Peer("b", 2), "x")
        eventually(lambda: node.counters["dropped"])
        assert node.stock()["links"] == 0


def test_a_process_that_stands_still_misses_nothing(tmp_path):
    echo = Peer("echo", 0)
    with hosting(tmp_path, a := Ear("a")) as node, echo_process(tmp_path, 0) as process:
        say(node, A, echo, "first")
        a.wait(lambda: a.heard)
        process.send_signal(signal.SIGSTOP)
        for n in range(1000):
            say(node, A, echo, str(n))
            if n % 100 == 0:
                time.sleep(0.05)  # so that they do not all travel in one frame, and some are sent again
        process.send_signal(signal.SIGCONT)
        a.wait(lambda: len(a.heard) == 1001)
        eventually(lambda: node.stock()["unacked"] == 0)
    assert a.said[1:] == [f"echo.0:{n}" for n in range(1000)]


def test_a_life_that_is_over_is_not_heard(tmp_path):
    with hosting(tmp_path, b := Ear("b")) as node, hosting(tmp_path, Ear("a", 4)) as old:
        say(old, Peer("a", 4), B, "old")
        b.wait(lambda: b.said == ["old"])
        with hosting(tmp_path, Ear("a", 5)) as new:
            say(new, Peer("a", 5), B, "new")
            b.wait(lambda: b.said == ["old", "new"])
            say(old, Peer("a", 4), B, "stale")
            eventually(lambda: node.counters["refused_old"])
            say(new, Peer("a", 5), B, "newer")
            b.wait(lambda: len(b.heard) == 3)
    assert b.said == ["old", "new", "newer"]


def test_who_is_forgotten_is_neither_heard_nor_told_and_nothing_is_kept(tmp_path):
    codec = Plain()
    node = Node(Whereabouts(tmp_path), KEY, codec)
    node.add(b := Ear("b"))
    with running(node), hosting(tmp_path, Ear("a")) as other:
        say(other, A, B, "before")
        b.wait(lambda: b.said == ["before"])
        node.call(lambda: [node.send(B, A, Cancel("answer")), node.forget(A)])
        say(other, A, B, "after")
        say(node, B, A, "answer")
        eventually(lambda: node.counters["refused_old"] and node.counters["dropped"])
        assert node.stock() == {"arrived": 0, "links": 0, "unacked": 0, "fetching": 0}
    assert b.said == ["before"]
    assert codec.forgotten == [A]


def test_what_a_forgotten_life_said_in_this_turn_is_not_delivered():
    node = Node(None, b"", None)

    class Forgetful(Ear):
        def receive(self, now, sender, message):
            super().receive(now, sender, message)
            node.forget(A)

    node.add(b := Forgetful("b"))
    for sender in (A, A, Peer("c", 0)):
        node.send(sender, B, Cancel("x"))
    with running(node):
        b.wait(lambda: b.ticks)
    assert [sender.name for sender, _ in b.heard] == ["a", "c"]


# ---------------------------------------------------------------- liars


def sealed(*rids, number=1, sender=A, receiver=B, key=KEY):
    translator = Translator(Plain())
    payload = joined([translator.encode(Cancel(rid), receiver) for rid in rids])[0] if rids else b"nonsense"
    return Seal(key).close(Frame(write_ends(sender, receiver), number, 0, payload))


def test_forged_misdirected_repeated_and_broken_frames_are_refused(tmp_path):
    with hosting(tmp_path, b := Ear("b")) as node, intruder(tmp_path, B) as send:
        good = sealed("good")
        for data in (b"", b"x" * 500, sealed("bad", key=b"k" * 32), good[:-1] + bytes((good[-1] ^ 1,))):
            send(data)
        send(sealed("bad", receiver=Peer("b", 1)))
        send(sealed("bad", receiver=Peer("c", 0)))
        send(sealed("bad", sender=Peer("../a", 0)))
        for data in (good, good, sealed(number=2), sealed("last", number=3), good):
            send(data)
        b.wait(lambda: len(b.heard) == 2)
        eventually(lambda: node.counters["received"] == 12)
    assert b.said == ["good", "last"]
    told = ("refused_mac", "refused_other", "undecoded", "raised")
    assert [node.counters[name] for name in told] == [5, 2, 1, 0]


def test_a_name_or_directory_that_cannot_be_an_address_is_refused(tmp_path):
    node = Node(Whereabouts(tmp_path), KEY, Plain())
    for name in ("", "a/b", "x" * 65):
        with pytest.raises(MstarError, match=r"cannot be called '.*'\n  fix: use 1 to 64 bytes without a slash"):
            node.add(Ear(name))
    deep = Node(Whereabouts(tmp_path / ("d" * 100)), KEY, Plain())
    with pytest.raises(MstarError, match=r"too long for a socket\n  fix: use a shorter directory"):
        deep.add(Ear("a"))
    for made in (node, deep):
        made.stop()
        made.run()


# ---------------------------------------------------------------- what is left


def left(directory):
    """Open descriptors, threads and socket files."""
    gc.collect()
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), os.listdir(directory)


def test_nothing_is_left_after_many_lives(tmp_path):
    def live(incarnation):
        a, b = Ear("a", incarnation), Ear("b", incarnation)
        with hosting(tmp_path, a) as one, hosting(tmp_path, b) as other:
            say(one, a.peer, b.peer, "x")
            b.wait(lambda: b.heard)
            say(other, b.peer, a.peer, "y")
            a.wait(lambda: a.heard)

    live(0)
    before = left(tmp_path)
    for incarnation in range(1, 51):
        live(incarnation)
    assert left(tmp_path) == before
    assert before[2] == []

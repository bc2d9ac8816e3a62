"""Ports: frames between hosts, here two addresses of one, with and without the key, to readers of all kinds."""

import gc
import os
import secrets
import select
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq

from mstar.errors import MstarError
from mstar.wire import ports
from mstar.wire.frame import FRAME_BYTES, MESSAGE_BYTES
from mstar.wire.messages import Peer
from mstar.wire.node import Node
from mstar.wire.ports import KEPT_FRAMES, READ_BYTES, Ports
from mstar.wire.whereabouts import Whereabouts
from tests.wire import parts
from tests.wire.parts import KEY, Ear, Plain, eventually, running, say

HERE, THERE = "127.0.0.1", "127.0.0.2"
A, B, C = Peer("a", 0), Peer("b", 0), Peer("c", 0)


class Process:
    """Ports and what came through them."""

    def __init__(self, ip, key=KEY):
        self.epoll = select.epoll()
        self.where = Whereabouts(Path("/tmp/x"), ip)
        self.counters = Counter()
        self.ports = Ports(self.epoll, self.where, key, self.counters)
        self.frames = []

    @property
    def endpoint(self):
        return f"{self.where.ip}:{self.where.port}"

    def turn(self, seconds=0.0):
        files = [file for file, _ in self.epoll.poll(0.0 if self.ports.has_more else seconds)]
        self.frames += self.ports.ready(files)

    def close(self):
        self.ports.close()
        self.epoll.close()


@contextmanager
def processes(*all_given):
    made = [Process(*given) for given in all_given]
    try:
        yield made
    finally:
        for each in made:
            each.close()


@pytest.fixture
def pair():
    with processes((HERE,), (THERE,)) as made:
        yield made


def turn_until(condition, *turning, timeout_s=10):
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, "it did not come true in time"
        for process in turning:
            process.turn(0.001)


def connect(one, other):
    turn_until(lambda: one.ports.send(other.endpoint, b"first"), one, other)
    turn_until(lambda: other.frames, other)
    other.frames.clear()


# ---------------------------------------------------------------- ports


def test_frames_arrive_whole_and_in_order_with_the_address_of_their_sender(pair):
    one, other = pair
    connect(one, other)
    sent = [bytes([number]) * size for number, size in enumerate((0, 1, 300, 100_000, 3, 900_000, 2))]
    for frame in sent:
        assert one.ports.send(other.endpoint, frame)
    turn_until(lambda: len(other.frames) == len(sent), other)
    assert other.frames == [(one.where.mine, frame) for frame in sent]
    assert one.where.mine == f"{one.endpoint}/tmp/x"


def test_the_longest_frame_passes_and_a_longer_one_does_not(pair):
    one, other = pair
    connect(one, other)
    assert one.ports.send(other.endpoint, bytes(FRAME_BYTES))
    turn_until(lambda: other.frames, other, timeout_s=30)
    assert [len(frame) for _, frame in other.frames] == [FRAME_BYTES]
    other.frames.clear()
    assert one.ports.send(other.endpoint, bytes(FRAME_BYTES + ports.SLACK_BYTES))
    turn_until(lambda: one.ports.send(other.endpoint, b"after") and other.frames, one, other, timeout_s=30)
    assert {frame for _, frame in other.frames} == {b"after"}


def test_a_slow_reader_is_not_waited_for(pair):
    one, other = pair
    connect(one, other)
    frame, count, last = bytes(200_000), 0, time.monotonic()
    while time.monotonic() - last < 0.1:  # and it must not be silent for so long that it is given up
        if one.ports.send(other.endpoint, frame):
            count, last = count + 1, time.monotonic()
    assert KEPT_FRAMES <= count <= 4 * KEPT_FRAMES
    turn_until(lambda: len(other.frames) == count, other)
    turn_until(lambda: one.ports.send(other.endpoint, b"on it goes"), one)
    turn_until(lambda: other.frames[-1][1] == b"on it goes", other)


def test_a_turn_does_not_read_without_end(pair):
    one, other = pair
    connect(one, other)
    frame = bytes(READ_BYTES // 4 + 1)
    for _ in range(12):
        assert one.ports.send(other.endpoint, frame)
    time.sleep(0.2)
    seen = []
    while len(other.frames) < 12:
        before = len(other.frames)
        other.turn(0.1)
        seen.append(len(other.frames) - before)
    assert max(seen) == 4
    assert not other.ports.has_more


def test_an_endpoint_where_nobody_is_and_what_is_no_endpoint_are_refused(pair):
    one, other = pair
    connect(one, other)
    other.close()
    turn_until(lambda: not one.ports.send(other.endpoint, b"x"), one)
    begin = time.monotonic()
    for endpoint in (f"{THERE}:9", "nonsense", "", "1.2.3.4:99999"):
        assert not one.ports.send(endpoint, b"x")
        assert not one.ports.send(endpoint, b"x")
        one.ports.leave(endpoint)
    one.ports.leave("never heard of")
    assert time.monotonic() - begin < 2
    other.__init__(THERE)  # for the fixture to close


def test_whoever_left_an_endpoint_can_come_back(pair):
    one, other = pair
    for _ in range(3):
        connect(one, other)
        one.ports.leave(other.endpoint)


def test_a_port_that_cannot_be_here_is_refused_and_nothing_is_left():
    before = len(os.listdir("/proc/self/fd"))
    for ip in ("192.0.2.1", "nonsense"):
        with select.epoll() as epoll, pytest.raises(MstarError, match=r"cannot reach .*\n  fix: give every process"):
            Ports(epoll, Whereabouts(Path("/tmp"), ip), KEY, Counter())
    assert len(os.listdir("/proc/self/fd")) == before


# ---------------------------------------------------------------- who may come in


def test_who_has_another_key_is_refused_and_counted_and_hears_nothing():
    with processes((HERE,), (THERE, b"k" * 32), (HERE,)) as (ours, theirs, friend):
        turn_until(lambda: theirs.ports.send(ours.endpoint, b"x") or ours.counters["refused_key"] >= 2, ours, theirs)
        turn_until(lambda: ours.ports.send(theirs.endpoint, b"x") or theirs.counters["refused_key"] >= 2, ours, theirs)
        connect(friend, ours)
        assert (ours.frames, theirs.frames) == ([], [])


@contextmanager
def stranger(endpoint, public=b"", pair=(b"", b"")):
    """Somebody who connects with what keys they have."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as way:
        way.linger = 0
        way.setsockopt(zmq.IMMEDIATE, 1)
        if public:
            way.curve_serverkey = public
            way.curve_publickey, way.curve_secretkey = pair
        way.connect(f"tcp://{endpoint}")
        yield way


def test_who_knows_the_public_key_but_not_the_secret_one_is_refused(pair):
    ours, _ = pair
    secret, public = ports._key_pair(KEY)
    with stranger(ours.endpoint, public, zmq.curve_keypair()):
        turn_until(lambda: ours.counters["refused_key"], ours)
    with stranger(ours.endpoint, public, (public, zmq.curve_keypair()[1])):
        before = ours.counters["refused_key"]
        turn_until(lambda: ours.counters["refused_key"] > before, ours)
    with stranger(ours.endpoint) as way:
        for _ in range(50):
            ours.turn(0.01)
            assert not way.poll(0, zmq.POLLOUT)
    with stranger(ours.endpoint, public, (public, secret)) as way:  # the same, with the right one
        turn_until(lambda: way.poll(0, zmq.POLLOUT), ours)
        way.send(b"hello")
        turn_until(lambda: ours.frames, ours)
    assert [frame for _, frame in ours.frames] == [b"hello"]


def test_other_deployments_have_other_keys_and_the_same_one_has_the_same():
    pairs = {ports._key_pair(key) for key in (KEY, KEY, secrets.token_bytes(32), secrets.token_bytes(32))}
    assert len(pairs) == 3
    assert all(KEY.hex().encode() not in part for pair in pairs for part in pair)


# ---------------------------------------------------------------- nodes on several hosts


@contextmanager
def host(directory, ip, *ears, key=KEY, known=None):
    """A node with an address, running. The directory is its own."""
    directory.mkdir(exist_ok=True)
    where = Whereabouts(directory, ip, known)
    node = Node(where, key, Plain())
    for ear in ears:
        node.add(ear)
    with running(node):
        yield node, where


def test_messages_go_both_ways_and_who_is_heard_can_be_answered(tmp_path):
    with (
        host(tmp_path / "b", THERE, b := Ear("b")) as (right, where),
        host(tmp_path / "a", HERE, a := Ear("a"), known={B: where.mine}) as (left, mine),
    ):
        rids = [str(n) for n in range(2000)]
        for rid in rids:
            say(left, A, B, rid)
        b.wait(lambda: len(b.heard) == 2000)
        for rid in rids:
            say(right, B, A, rid)
        a.wait(lambda: len(a.heard) == 2000)
        eventually(lambda: left.stock()["unacked"] == right.stock()["unacked"] == 0)
        assert where.known()[A] == mine.mine
    assert (a.said, b.said) == (rids, rids)


def test_who_is_on_the_same_host_is_reached_by_its_socket_and_tells_its_whole_address(tmp_path):
    with (
        host(tmp_path / "b", HERE, b := Ear("b")) as (right, where),
        host(tmp_path / "a", HERE, a := Ear("a"), known={B: where.mine}) as (left, mine),
    ):
        say(left, A, B, "x")
        b.wait(lambda: b.heard)
        say(right, B, A, "y")
        a.wait(lambda: a.heard)
        assert left.counters["full"] == 0  # a port refuses the first frame, a socket does not
        assert where.known()[A] == mine.mine


def test_whom_nobody_has_told_of_hears_everything_later(tmp_path):
    with host(tmp_path / "a", HERE, Ear("a")) as (left, _), host(tmp_path / "b", THERE, b := Ear("b")) as (_, where):
        say(left, A, B, "1", "2")
        eventually(lambda: left.counters["full"] >= 3)
        assert not b.heard
        left.call(lambda: left.meet(B, where.mine))
        b.wait(lambda: b.said == ["1", "2"])


def test_a_message_as_long_as_may_be_arrives(tmp_path):
    with (
        host(tmp_path / "b", THERE, b := Ear("b")) as (_, where),
        host(tmp_path / "a", HERE, Ear("a"), known={B: where.mine}) as (left, _),
    ):
        rid = "x" * (MESSAGE_BYTES - 100)
        say(left, A, B, "before", rid, "after")
        b.wait(lambda: len(b.heard) == 3, timeout_s=40)
    assert b.said == ["before", rid, "after"]


def test_a_node_with_another_key_is_not_heard(tmp_path):
    with (
        host(tmp_path / "b", THERE, b := Ear("b")) as (right, where),
        host(tmp_path / "a", HERE, Ear("a"), known={B: where.mine}, key=b"k" * 32) as (left, _),
    ):
        say(left, A, B, "x")
        eventually(lambda: right.counters["refused_key"] >= 2)
        assert (b.heard, right.counters["received"], left.counters["sent"]) == ([], 0, 0)


@contextmanager
def echo_process(directory, incarnation):
    """A process on the other host, and its address."""
    directory.mkdir(exist_ok=True)
    command = [sys.executable, parts.__file__, directory, "echo", str(incarnation), THERE]
    with subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def test_a_process_that_comes_back_at_another_port_in_another_life_is_found(tmp_path):
    first, second = Peer("echo", 0), Peer("echo", 1)
    with host(tmp_path / "a", HERE, a := Ear("a")) as (node, where):
        with echo_process(tmp_path / "b", 0) as (process, address):
            node.call(lambda: node.meet(first, address))
            say(node, A, first, "x")
            a.wait(lambda: a.said == ["echo.0:x"])
            process.kill()
            process.wait()
        say(node, A, first, "nobody hears this")
        eventually(lambda: node.stock()["unacked"] == 1)
        with echo_process(tmp_path / "b", 1) as (_, other_address):
            assert other_address != address
            node.call(lambda: node.meet(second, other_address))
            say(node, A, second, "y")
            a.wait(lambda: len(a.heard) == 2)
            eventually(lambda: node.stock() == {"arrived": 0, "links": 1, "unacked": 0, "fetching": 0})
            assert where.known() == {A: where.mine, second: other_address}
    assert a.said == ["echo.0:x", "echo.1:y"]


def test_an_endpoint_is_left_only_when_the_last_who_lives_there_is_gone(tmp_path):
    with (
        host(tmp_path / "b", THERE, b := Ear("b"), c := Ear("c")) as (_, where),
        host(tmp_path / "a", HERE, Ear("a"), known={B: where.mine, C: where.mine}) as (left, _),
    ):
        say(left, A, B, "x")
        b.wait(lambda: b.heard)
        eventually(lambda: left.stock()["unacked"] == 0)
        refused = left.counters["full"]
        left.call(lambda: left.forget(B))
        say(left, A, C, "y")
        c.wait(lambda: c.heard)
        assert left.counters["full"] == refused  # it was still connected
        held = len(os.listdir("/proc/self/fd"))
        left.call(lambda: left.forget(C))
        eventually(lambda: len(os.listdir("/proc/self/fd")) < held)


def test_a_single_machine_does_not_load_zeromq(tmp_path):
    code = (
        "import sys; from pathlib import Path; from mstar.wire.node import Node; "
        "from mstar.wire.whereabouts import Whereabouts; from tests.wire.parts import *; "
        "Node(Whereabouts(Path(sys.argv[1])), KEY, Plain()); sys.exit('zmq' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path], cwd=Path(__file__).parents[2], check=True)


def test_nothing_is_left_after_many_lives(tmp_path):
    def live():
        with (
            host(tmp_path / "b", THERE, b := Ear("b")) as (_, where),
            host(tmp_path / "a", HERE, Ear("a"), known={B: where.mine}) as (left, _),
        ):
            say(left, A, B, "x")
            b.wait(lambda: b.heard)

    def left_over():
        gc.collect()
        return len(os.listdir("/proc/self/fd")), threading.active_count(), len(os.listdir("/proc/self/task"))

    live()
    before = left_over()
    for _ in range(10):
        live()
    assert left_over() == before

"""ZeroMQ transport: frames between two addresses of this host, with and without the key, to slow and absent peers."""

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
from mstar.wire.frame import MAX_FRAME_BYTES, MAX_MESSAGE_BYTES
from mstar.wire.messages import Peer
from mstar.wire.transport import zmq as zmq_transport
from mstar.wire.transport.actor_loop import ActorLoop
from mstar.wire.transport.address_book import AddressBook
from mstar.wire.transport.zmq import MAX_QUEUED_FRAMES, READ_BUDGET_BYTES, ZmqTransport
from tests.machine_share import TimeLimit
from tests.wire import actors
from tests.wire.actors import KEY, MsgpackCodec, RecordingActor, run_loop, send_cancels, wait_until

LOCAL_IP, REMOTE_IP = "127.0.0.1", "127.0.0.2"
A, B, C = Peer("a", 0), Peer("b", 0), Peer("c", 0)


class Process:
    """A transport and the frames it received."""

    def __init__(self, ip, key=KEY):
        self.epoll = select.epoll()
        self.book = AddressBook(Path("/tmp/x"), ip)
        self.counters = Counter()
        self.transport = ZmqTransport(self.epoll, self.book, key, self.counters)
        self.frames = []

    @property
    def endpoint(self):
        return f"{self.book.ip}:{self.book.port}"

    def turn(self, seconds=0.0):
        fds = [fd for fd, _ in self.epoll.poll(0.0 if self.transport.has_more else seconds)]
        self.frames += self.transport.receive(fds)

    def close(self):
        self.transport.close()
        self.epoll.close()


@contextmanager
def processes(*arguments):
    created = [Process(*argument) for argument in arguments]
    try:
        yield created
    finally:
        for process in created:
            process.close()


@pytest.fixture
def pair():
    with processes((LOCAL_IP,), (REMOTE_IP,)) as created:
        yield created


def turn_until(condition, *running, timeout_s=10):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"condition not met within {timeout_s} s"
        for process in running:
            process.turn(0.001)


def connect(one, other):
    turn_until(lambda: one.transport.send(other.endpoint, b"first"), one, other)
    turn_until(lambda: other.frames, other)
    other.frames.clear()


# ---------------------------------------------------------------- the transport


def test_frames_arrive_whole_and_in_order_with_the_address_of_their_sender(pair):
    one, other = pair
    connect(one, other)
    sent = [bytes([number]) * size for number, size in enumerate((0, 1, 300, 100_000, 3, 900_000, 2))]
    for frame in sent:
        assert one.transport.send(other.endpoint, frame)
    turn_until(lambda: len(other.frames) == len(sent), other)
    assert other.frames == [(one.book.own_address, frame) for frame in sent]
    assert one.book.own_address == f"{one.endpoint}/tmp/x"


def test_the_longest_frame_passes_and_a_longer_one_does_not(pair):
    one, other = pair
    connect(one, other)
    assert one.transport.send(other.endpoint, bytes(MAX_FRAME_BYTES))
    turn_until(lambda: other.frames, other, timeout_s=30)
    assert [len(frame) for _, frame in other.frames] == [MAX_FRAME_BYTES]
    other.frames.clear()
    assert one.transport.send(other.endpoint, bytes(MAX_FRAME_BYTES + zmq_transport.ENCRYPTION_OVERHEAD_BYTES))
    turn_until(lambda: one.transport.send(other.endpoint, b"after") and other.frames, one, other, timeout_s=30)
    assert {frame for _, frame in other.frames} == {b"after"}


def test_a_slow_reader_does_not_block_the_sender(pair):
    one, other = pair
    connect(one, other)
    frame, count, last = bytes(200_000), 0, time.monotonic()
    # 0.1 s is shorter than the heartbeat timeout; a paused machine can use it up before the queue is full.
    while time.monotonic() - last < (0.1 if count >= MAX_QUEUED_FRAMES else 5.0):
        if one.transport.send(other.endpoint, frame):
            count, last = count + 1, time.monotonic()
    assert MAX_QUEUED_FRAMES <= count <= 4 * MAX_QUEUED_FRAMES
    turn_until(lambda: len(other.frames) == count, other)
    turn_until(lambda: one.transport.send(other.endpoint, b"next"), one)
    turn_until(lambda: other.frames[-1][1] == b"next", other)


def test_a_turn_reads_a_bounded_number_of_frames(pair):
    one, other = pair
    connect(one, other)
    frame = bytes(READ_BUDGET_BYTES // 4 + 1)
    for _ in range(12):
        assert one.transport.send(other.endpoint, frame)
    time.sleep(0.2)
    seen = []
    while len(other.frames) < 12:
        before = len(other.frames)
        other.turn(0.1)
        seen.append(len(other.frames) - before)
    assert max(seen) == 4
    assert not other.transport.has_more


def test_frames_to_unconnected_and_invalid_endpoints_are_refused(pair):
    one, other = pair
    connect(one, other)
    other.close()
    turn_until(lambda: not one.transport.send(other.endpoint, b"x"), one)
    with TimeLimit(0.5):
        for endpoint in (f"{REMOTE_IP}:9", "nonsense", "", "1.2.3.4:99999"):
            assert not one.transport.send(endpoint, b"x")
            assert not one.transport.send(endpoint, b"x")
            one.transport.disconnect(endpoint)
        one.transport.disconnect("unknown")
    other.__init__(REMOTE_IP)  # for the fixture to close


def test_a_disconnected_endpoint_can_reconnect(pair):
    one, other = pair
    for _ in range(3):
        connect(one, other)
        one.transport.disconnect(other.endpoint)


def test_an_invalid_listen_address_is_rejected_and_leaks_nothing():
    before = len(os.listdir("/proc/self/fd"))
    for ip in ("192.0.2.1", "nonsense"):
        with (
            select.epoll() as epoll,
            pytest.raises(MstarError, match=r"cannot listen at .*\n  fix: configure an IP address"),
        ):
            ZmqTransport(epoll, AddressBook(Path("/tmp"), ip), KEY, Counter())
    assert len(os.listdir("/proc/self/fd")) == before


# ---------------------------------------------------------------- authentication


def test_a_peer_with_another_key_is_rejected_and_counted():
    with processes((LOCAL_IP,), (REMOTE_IP, b"k" * 32), (LOCAL_IP,)) as (ours, theirs, friend):
        turn_until(
            lambda: theirs.transport.send(ours.endpoint, b"x") or ours.counters["refused_key"] >= 2, ours, theirs
        )
        turn_until(
            lambda: ours.transport.send(theirs.endpoint, b"x") or theirs.counters["refused_key"] >= 2, ours, theirs
        )
        connect(friend, ours)
        assert (ours.frames, theirs.frames) == ([], [])


@contextmanager
def raw_dealer(endpoint, public=b"", pair=(b"", b"")):
    """A DEALER socket with any keys."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.setsockopt(zmq.IMMEDIATE, 1)
        if public:
            dealer.curve_serverkey = public
            dealer.curve_publickey, dealer.curve_secretkey = pair
        dealer.connect(f"tcp://{endpoint}")
        yield dealer


def test_a_peer_without_the_secret_key_is_rejected(pair):
    ours, _ = pair
    secret, public = zmq_transport._derive_key_pair(KEY)
    with raw_dealer(ours.endpoint, public, zmq.curve_keypair()):
        turn_until(lambda: ours.counters["refused_key"], ours)
    with raw_dealer(ours.endpoint, public, (public, zmq.curve_keypair()[1])):
        before = ours.counters["refused_key"]
        turn_until(lambda: ours.counters["refused_key"] > before, ours)
    with raw_dealer(ours.endpoint) as dealer:
        for _ in range(50):
            ours.turn(0.01)
            assert not dealer.poll(0, zmq.POLLOUT)
    with raw_dealer(ours.endpoint, public, (public, secret)) as dealer:  # the same with the right secret
        turn_until(lambda: dealer.poll(0, zmq.POLLOUT), ours)
        dealer.send(b"hello")
        turn_until(lambda: ours.frames, ours)
    assert [frame for _, frame in ours.frames] == [b"hello"]


def test_keys_are_derived_from_the_deployment_key():
    pairs = {
        zmq_transport._derive_key_pair(key) for key in (KEY, KEY, secrets.token_bytes(32), secrets.token_bytes(32))
    }
    assert len(pairs) == 3
    assert all(KEY.hex().encode() not in part for pair in pairs for part in pair)


# ---------------------------------------------------------------- actor loops on several hosts


@contextmanager
def host(directory, ip, *hosted, key=KEY, known=None):
    """Run an actor loop with an address and its own directory."""
    directory.mkdir(exist_ok=True)
    book = AddressBook(directory, ip, known)
    actor_loop = ActorLoop(book, key, MsgpackCodec())
    for actor in hosted:
        actor_loop.add(actor)
    with run_loop(actor_loop):
        yield actor_loop, book


def test_messages_and_replies_cross_hosts(tmp_path):
    with (
        host(tmp_path / "b", REMOTE_IP, b := RecordingActor("b")) as (right, book),
        host(tmp_path / "a", LOCAL_IP, a := RecordingActor("a"), known={B: book.own_address}) as (left, mine),
    ):
        rids = [str(n) for n in range(2000)]
        for rid in rids:
            send_cancels(left, A, B, rid)
        b.wait(lambda: len(b.received) == 2000)
        for rid in rids:
            send_cancels(right, B, A, rid)
        a.wait(lambda: len(a.received) == 2000)
        wait_until(lambda: left.stats()["unacked"] == right.stats()["unacked"] == 0)
        assert book.addresses()[A] == mine.own_address
    assert (a.received_rids, b.received_rids) == (rids, rids)


def test_a_peer_on_the_same_host_is_reached_by_its_unix_socket_and_reports_its_full_address(tmp_path):
    with (
        host(tmp_path / "b", LOCAL_IP, b := RecordingActor("b")) as (right, book),
        host(tmp_path / "a", LOCAL_IP, a := RecordingActor("a"), known={B: book.own_address}) as (left, mine),
    ):
        send_cancels(left, A, B, "x")
        b.wait(lambda: b.received)
        send_cancels(right, B, A, "y")
        a.wait(lambda: a.received)
        assert left.counters["full"] == 0  # ZeroMQ refuses the first frame, a Unix socket does not
        assert book.addresses()[A] == mine.own_address


def test_a_peer_without_an_address_gets_all_messages_later(tmp_path):
    with (
        host(tmp_path / "a", LOCAL_IP, RecordingActor("a")) as (left, _),
        host(tmp_path / "b", REMOTE_IP, b := RecordingActor("b")) as (_, book),
    ):
        send_cancels(left, A, B, "1", "2")
        wait_until(lambda: left.counters["full"] >= 3)
        assert not b.received
        left.call_soon(lambda: left.set_address(B, book.own_address))
        b.wait(lambda: b.received_rids == ["1", "2"])


def test_a_message_of_the_maximum_size_arrives(tmp_path):
    with (
        host(tmp_path / "b", REMOTE_IP, b := RecordingActor("b")) as (_, book),
        host(tmp_path / "a", LOCAL_IP, RecordingActor("a"), known={B: book.own_address}) as (left, _),
    ):
        rid = "x" * (MAX_MESSAGE_BYTES - 100)
        send_cancels(left, A, B, "before", rid, "after")
        b.wait(lambda: len(b.received) == 3, timeout_s=40)
    assert b.received_rids == ["before", rid, "after"]


def test_an_actor_loop_with_another_key_is_ignored(tmp_path):
    with (
        host(tmp_path / "b", REMOTE_IP, b := RecordingActor("b")) as (right, book),
        host(tmp_path / "a", LOCAL_IP, RecordingActor("a"), known={B: book.own_address}, key=b"k" * 32) as (left, _),
    ):
        send_cancels(left, A, B, "x")
        wait_until(lambda: right.counters["refused_key"] >= 2)
        assert (b.received, right.counters["received"], left.counters["sent"]) == ([], 0, 0)


@contextmanager
def echo_process(directory, incarnation):
    """Echo process on the other host, and its address."""
    directory.mkdir(exist_ok=True)
    command = [sys.executable, actors.__file__, directory, "echo", str(incarnation), REMOTE_IP]
    with subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def test_a_restarted_process_at_another_port_is_reachable(tmp_path):
    first, second = Peer("echo", 0), Peer("echo", 1)
    with host(tmp_path / "a", LOCAL_IP, a := RecordingActor("a")) as (actor_loop, book):
        with echo_process(tmp_path / "b", 0) as (process, address):
            actor_loop.call_soon(lambda: actor_loop.set_address(first, address))
            send_cancels(actor_loop, A, first, "x")
            a.wait(lambda: a.received_rids == ["echo.0:x"])
            process.kill()
            process.wait()
        send_cancels(actor_loop, A, first, "lost")
        wait_until(lambda: actor_loop.stats()["unacked"] == 1)
        with echo_process(tmp_path / "b", 1) as (_, other_address):
            assert other_address != address
            actor_loop.call_soon(lambda: actor_loop.set_address(second, other_address))
            send_cancels(actor_loop, A, second, "y")
            a.wait(lambda: len(a.received) == 2)
            wait_until(lambda: actor_loop.stats() == {"inbox": 0, "links": 1, "unacked": 0, "decoding": 0})
            assert book.addresses() == {A: book.own_address, second: other_address}
    assert a.received_rids == ["echo.0:x", "echo.1:y"]


def test_an_endpoint_is_disconnected_with_its_last_peer(tmp_path):
    with (
        host(tmp_path / "b", REMOTE_IP, b := RecordingActor("b"), c := RecordingActor("c")) as (_, book),
        host(tmp_path / "a", LOCAL_IP, RecordingActor("a"), known={B: book.own_address, C: book.own_address}) as (
            left,
            _,
        ),
    ):
        send_cancels(left, A, B, "x")
        b.wait(lambda: b.received)
        wait_until(lambda: left.stats()["unacked"] == 0)
        refused = left.counters["full"]
        left.call_soon(lambda: left.forget(B))
        send_cancels(left, A, C, "y")
        c.wait(lambda: c.received)
        assert left.counters["full"] == refused  # still connected
        open_fds = len(os.listdir("/proc/self/fd"))
        left.call_soon(lambda: left.forget(C))
        wait_until(lambda: len(os.listdir("/proc/self/fd")) < open_fds)


def test_a_single_machine_does_not_load_zeromq(tmp_path):
    code = (
        "import sys; from pathlib import Path; from mstar.wire.transport.actor_loop import ActorLoop; "
        "from mstar.wire.transport.address_book import AddressBook; from tests.wire.actors import *; "
        "ActorLoop(AddressBook(Path(sys.argv[1])), KEY, MsgpackCodec()); sys.exit('zmq' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path], cwd=Path(__file__).parents[2], check=True)


def test_nothing_is_left_after_many_incarnations(tmp_path):
    def live():
        with (
            host(tmp_path / "b", REMOTE_IP, b := RecordingActor("b")) as (_, book),
            host(tmp_path / "a", LOCAL_IP, RecordingActor("a"), known={B: book.own_address}) as (left, _),
        ):
            send_cancels(left, A, B, "x")
            b.wait(lambda: b.received)

    def left_over():
        gc.collect()
        return len(os.listdir("/proc/self/fd")), threading.active_count(), len(os.listdir("/proc/self/task"))

    live()
    before = left_over()
    for _ in range(10):
        live()
    assert left_over() == before

"""Unix transport: whole frames of any size, and readers that are slow, absent, dead or send invalid data."""

import select
import socket
import struct
import time
from contextlib import contextmanager

import pytest

from mstar.wire.frame import MAX_FRAME_BYTES
from mstar.wire.transport.unix import MAX_QUEUED_BYTES, UnixTransport


class Process:
    """A transport and the frames it received."""

    def __init__(self):
        self.epoll = select.epoll()
        self.transport = UnixTransport(self.epoll)
        self.frames = []

    def turn(self, seconds=0.0):
        for fd, _ in self.epoll.poll(seconds):
            self.frames += [frame for _, frame in self.transport.receive(fd)]

    def close(self):
        self.transport.close()
        self.epoll.close()


@pytest.fixture
def pair():
    one, other = Process(), Process()
    yield one, other
    one.close()
    other.close()


def turn_until(condition, *processes):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        for process in processes:
            process.turn(0.001)


def test_frames_arrive_whole_and_in_order_whatever_their_size(pair, tmp_path):
    one, other = pair
    other.transport.listen(tmp_path / "other")
    sent = [bytes([number]) * size for number, size in enumerate((0, 1, 300, 100_000, 3, 900_000, 2))]
    for frame in sent:
        assert one.transport.send(tmp_path / "other", frame)
    turn_until(lambda: len(other.frames) == len(sent), one, other)
    assert other.frames == sent


def test_a_slow_reader_gets_a_bounded_queue(pair, tmp_path):
    one, other = pair
    other.transport.listen(tmp_path / "other")
    frame, count = bytes(100_000), 0
    while one.transport.send(tmp_path / "other", frame):
        count += 1
    assert MAX_QUEUED_BYTES <= count * len(frame) <= MAX_QUEUED_BYTES + 1_000_000
    turn_until(lambda: len(other.frames) == count, one, other)
    assert one.transport.send(tmp_path / "other", b"next")
    turn_until(lambda: other.frames[-1] == b"next", one, other)


def test_a_peer_that_starts_later_can_be_reached(pair, tmp_path):
    one, other = pair
    assert not one.transport.send(tmp_path / "other", b"too early")
    other.transport.listen(tmp_path / "other")
    assert one.transport.send(tmp_path / "other", b"now")
    turn_until(lambda: other.frames == [b"now"], other)


def test_a_closed_peer_is_noticed_and_costs_nothing(pair, tmp_path):
    one, other = pair
    other.transport.listen(tmp_path / "other")
    assert one.transport.send(tmp_path / "other", b"hello")
    other.transport.close()
    assert not all(one.transport.send(tmp_path / "other", b"ping") for _ in range(3))


@contextmanager
def raw_connection(path):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        yield connection


def test_a_frame_over_the_limit_closes_the_connection(pair, tmp_path):
    _, other = pair
    other.transport.listen(tmp_path / "other")
    with raw_connection(tmp_path / "other") as connection:
        connection.sendall(struct.pack("<I", 2) + b"ok" + struct.pack("<I", MAX_FRAME_BYTES + 1))
        connection.settimeout(0.001)
        turn_until(lambda: other.frames == [b"ok"], other)
        other.turn(0.01)
        connection.settimeout(5)
        assert connection.recv(1) == b"", "closed"


def test_nothing_is_kept_of_a_connection_that_its_peer_closed(pair, tmp_path):
    _, other = pair
    other.transport.listen(tmp_path / "other")
    with raw_connection(tmp_path / "other"):
        turn_until(lambda: other.transport._inbound, other)
    # Otherwise the events of a new socket with the same descriptor would go to the old connection.
    turn_until(lambda: not other.transport._inbound, other)


def test_a_frame_in_many_pieces_is_one_frame(pair, tmp_path):
    _, other = pair
    other.transport.listen(tmp_path / "other")
    with raw_connection(tmp_path / "other") as connection:
        for piece in struct.pack("<I", 5) + b"hello" + struct.pack("<I", 1) + b"!":
            connection.sendall(bytes([piece]))
            other.turn(0.001)
        turn_until(lambda: len(other.frames) == 2, other)
    assert other.frames == [b"hello", b"!"]

"""Shared-memory arena: each slot is read once, freed after the read, and never returns wrong bytes."""

import os
import secrets
import signal
import subprocess
import sys

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from mstar.errors import ReadFailed
from mstar.transfer.arena import _RESERVE_BYTES, Arena, ArenaReader, Descriptor

CAPACITY_BYTES = 64 << 10
"""Capacity of a small arena: four slots."""


def put(arena, data, to="reader"):
    return arena.put(memoryview(data), to)


@pytest.fixture
def arena():
    created = Arena(CAPACITY_BYTES, poison=True)
    yield created
    created.close()


@pytest.fixture
def reader():
    created = ArenaReader()
    yield created
    created.close()


def fails(reader, descriptor, reason=""):
    with pytest.raises(ReadFailed, match=rf"cannot read .*{reason}[\s\S]*\n  fix: "):
        reader.read(descriptor, "writer")


def test_bytes_are_read_once_and_then_free(arena, reader):
    descriptor = put(arena, b"abc" * 9)
    assert arena.stats() == {"slots": 1, "slot_bytes": 27}
    data = reader.read(descriptor, "writer")
    assert data == b"abc" * 9
    assert arena.stats() == {"slots": 0, "slot_bytes": 0}
    put(arena, b"x" * 27)
    assert data == b"abc" * 9, "the result is a copy"
    fails(reader, descriptor, "already read or freed")


def test_a_second_read_is_refused_also_before_the_slot_is_reclaimed(arena, reader):
    descriptor = put(arena, b"abc")
    reader.read(descriptor, "writer")
    fails(reader, descriptor, "already read")


def test_a_full_arena_refuses_until_a_slot_is_read(arena, reader):
    held = [put(arena, bytes([number]) * (CAPACITY_BYTES // 4)) for number in range(4)]
    assert put(arena, b"x") is None
    assert reader.read(held.pop(2), "writer") == b"\2" * (CAPACITY_BYTES // 4)
    assert put(arena, b"x" * (CAPACITY_BYTES // 4 + 1)) is None, "too large for the gap"
    held.append(put(arena, b"\3" * (CAPACITY_BYTES // 4)))
    assert [reader.read(descriptor, "writer")[0] for descriptor in held] == [0, 1, 3, 3]
    assert put(arena, b"y" * CAPACITY_BYTES) is not None, "free ranges are coalesced"


def test_only_slots_of_a_dead_peer_are_freed(arena, reader):
    lost, unread = put(arena, b"a" * 20_000, to="dead"), put(arena, b"b" * 20_000)
    arena.forget("dead")
    assert arena.stats()["slots"] == 1
    put(arena, b"c" * 20_000)
    fails(reader, lost)
    assert reader.read(unread, "writer") == b"b" * 20_000


def test_a_late_read_mark_frees_no_reused_slot(arena, reader):
    old = put(arena, b"a" * 20_000, to="dead")
    arena.forget("dead")
    new = put(arena, b"b" * 20_000)
    assert (new.slot, new.offset) == (old.slot, old.offset), "the slot is reused"
    fails(reader, old)
    memory = reader._arenas["writer"][1]
    memory.words[2 + 4 * old.slot + 3] = old.generation  # a late mark
    assert arena.stats()["slots"] == 1
    memory.words[2 + 4 * old.slot + 3] = 0
    assert reader.read(new, "writer") == b"b" * 20_000


def test_a_slot_freed_during_the_copy_is_rejected(arena, reader, monkeypatch):
    descriptor = put(arena, b"a" * 20_000)

    def slow(data):
        arena.forget("reader")
        return bytearray(data)

    monkeypatch.setattr("mstar.transfer.arena.bytearray", slow, raising=False)
    fails(reader, descriptor, "freed during the read")


@pytest.mark.parametrize("name", Descriptor.__struct_fields__)
@pytest.mark.parametrize("change", [3, -1, 1 << 40])
def test_an_invalid_descriptor_is_rejected(arena, reader, name, change):
    descriptor = put(arena, b"a" * 100)
    put(arena, b"b" * 100)
    # A neighbouring fd could be this arena opened again, a neighbouring pid a thread of this process.
    change *= 1000 if name in ("fd", "pid") else 1
    fails(reader, msgspec.structs.replace(descriptor, **{name: getattr(descriptor, name) + change}))
    assert reader.read(descriptor, "writer") == b"a" * 100


def test_a_restarted_peer_has_another_arena(arena, reader):
    other = Arena(CAPACITY_BYTES)
    assert reader.read(put(arena, b"old"), "writer") == b"old"
    assert reader.read(put(other, b"new"), "writer") == b"new"
    other.close()


# ---------------------------------------------------------------- any order
class ArenaMachine(RuleBasedStateMachine):
    """Stateful test: put, read, forget and misuse in any order, compared with a model."""

    sent = Bundle("sent")

    def __init__(self):
        super().__init__()
        self.arena, self.reader = Arena(CAPACITY_BYTES, poison=True), ArenaReader()
        self.waiting = {}
        self.consumed = []

    @rule(target=sent, size=st.integers(0, CAPACITY_BYTES // 2), to=st.sampled_from("abc"))
    def put(self, size, to):
        data = secrets.token_bytes(size)
        descriptor = put(self.arena, data, to)
        if descriptor is None:
            waiting = sum(-(-max(1, len(data)) // 64) * 64 for data, _ in self.waiting.values())
            assert len(self.waiting) == 4 or waiting + size > CAPACITY_BYTES // 2, "not nearly full"
            return multiple()
        self.waiting[descriptor] = data, to
        return descriptor

    @rule(descriptor=consumes(sent))
    def take(self, descriptor):
        if descriptor in self.waiting:
            assert self.reader.read(descriptor, "writer") == self.waiting.pop(descriptor)[0]
        self.consumed.append(descriptor)
        fails(self.reader, descriptor)

    @rule(to=st.sampled_from("abc"))
    def forget(self, to):
        self.arena.forget(to)
        self.consumed += [descriptor for descriptor, (_, peer) in self.waiting.items() if peer == to]
        self.waiting = {descriptor: (data, peer) for descriptor, (data, peer) in self.waiting.items() if peer != to}

    @rule()
    def close_and_open_again(self):
        self.reader.forget("writer")

    @rule()
    def read_what_is_over(self):
        for descriptor in self.consumed:
            fails(self.reader, descriptor)

    @invariant()
    def nothing_leaks(self):
        sizes = [len(data) for data, _ in self.waiting.values()]
        assert self.arena.stats() == {"slots": len(sizes), "slot_bytes": sum(sizes)}
        free = sum(size for _, size in self.arena._gaps)
        assert free + sum(used.size for used in self.arena._used.values()) == CAPACITY_BYTES + _RESERVE_BYTES
        for descriptor, (data, _) in self.waiting.items():
            assert self.arena.memory.view[descriptor.offset :][: len(data)] == data, "intact until it is read"

    def teardown(self):
        self.reader.close()
        self.arena.close()


TestArenaMachine = ArenaMachine.TestCase
TestArenaMachine.settings = settings(
    max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


# ---------------------------------------------------------------- processes
PEER_SCRIPT = """
import sys, msgspec
from mstar.transfer.arena import Arena, Descriptor, ArenaReader
arena, reader = Arena(), ArenaReader()
for line in sys.stdin.buffer:
    if line.strip() == b"put":
        descriptor = arena.put(memoryview(bytes(range(256)) * 4096), "tests")
        sys.stdout.buffer.write(msgspec.json.encode(descriptor) + b"\\n")
    else:
        data = reader.read(msgspec.json.decode(line, type=Descriptor), "tests")
        sys.stdout.buffer.write(str(sum(data)).encode() + b"\\n")
    sys.stdout.buffer.flush()
"""


class Peer:
    """Another process with an arena and a reader."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-c", PEER_SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def send(self, command):
        self.process.stdin.write(command + b"\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()

    def put(self):
        return msgspec.json.decode(self.send(b"put"), type=Descriptor)

    def take(self, descriptor):
        return int(self.send(msgspec.json.encode(descriptor)))

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def peer():
    created = Peer()
    yield created
    created.kill()


def test_bytes_cross_processes_both_ways(arena, reader, peer):
    assert peer.take(put(arena, b"\1" * 30_000)) == 30_000
    assert arena.stats()["slots"] == 0
    assert reader.read(peer.put(), "writer") == bytes(range(256)) * 4096


def test_killed_processes_leave_nothing_behind(arena, reader):
    def files():
        return sorted(os.listdir("/dev/shm")), len(os.listdir("/proc/self/fd"))

    before = files()
    unread, unopened = Peer(), Peer()
    assert len(reader.read(unread.put(), "writer")) == 1 << 20
    for peer in (unread, unopened):
        held = peer.put()
        mine = put(arena, b"\1" * 30_000, to="peer")
        peer.kill()
        if peer is unopened:
            fails(reader, held, "cannot be opened")
        else:
            assert len(reader.read(held, "writer")) == 1 << 20, "mapped memory stays"
        reader.forget("writer")
        fails(reader, held, "cannot be opened")
        assert arena.stats()["slots"] == 1, "unread"
        arena.forget("peer")
        assert arena.stats()["slots"] == 0
        fails(reader, mine)
        reader.forget("writer")
    assert files() == before

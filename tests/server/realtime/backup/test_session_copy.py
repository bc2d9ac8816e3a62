"""A copy of a session has what the updates said, also when they arrive as a whole at another server."""

import random

import pytest

from mstar.server.realtime.backup.messages import MAX_CHUNK_BYTES, ChunkReader, decode_to_backup, encode, to_chunks
from mstar.server.realtime.backup.session_copy import MAX_EVENT_BYTES, SessionCopy, SessionUpdate
from mstar.server.realtime.backup.stored_copies import FENCE_TTL_S, Outcome, StoredCopies

KEY = ("tenant", "sess_1")


def update(number, epoch=0, **fields):
    return SessionUpdate(key=KEY, epoch=epoch, number=number, resume_timeout_s=30.0, **fields)


def content(copy):
    return copy.parts, [*copy.events], copy.audio_start, bytes(copy.audio), copy.epoch, copy.number


def size(copy):
    return sum(map(len, copy.parts.values())) + sum(len(message) for _, message in copy.events) + len(copy.audio)


def test_random_updates_leave_the_same_copy_as_the_whole():
    chosen = random.Random(5)
    stream = bytes(chosen.randrange(256) for _ in range(5000))
    copy, expected_parts, sent, start, end = SessionCopy(KEY, 30.0), {}, [], 0, 0
    for number in range(300):
        parts = {f"item/{chosen.randrange(9)}": chosen.randbytes(chosen.randrange(9)) for _ in range(2)}
        removed = [name for name in expected_parts if name not in parts and chosen.random() < 0.1]
        events = [(f"event_{number}_{n}", chosen.randbytes(20)) for n in range(chosen.randrange(3))]
        previous_end, end = end, min(end + chosen.randrange(40), len(stream))
        start = chosen.randint(start, end)  # also beyond what was sent before
        audio = stream[max(previous_end, start) : end]
        copy.apply(update(number, parts=parts, removed_parts=removed, events=events, audio_start=start, audio=audio))
        expected_parts = {name: part for name, part in (expected_parts | parts).items() if name not in removed}
        sent += events
        assert (copy.parts, bytes(copy.audio), [*copy.events]) == (expected_parts, stream[start:end], sent)
        assert copy.size_bytes == size(copy)
        other = SessionCopy.from_whole(copy.whole())
        assert content(other) == content(copy)
        assert other.size_bytes == copy.size_bytes


def test_the_oldest_events_are_dropped():
    copy = SessionCopy(KEY, 30.0)
    for number in range(12):
        copy.apply(update(number, events=[(f"event_{number}", bytes(MAX_EVENT_BYTES // 4))]))
    assert [event_id for event_id, _ in copy.events] == [f"event_{number}" for number in range(8, 12)]
    assert copy.size_bytes == size(copy)


def test_an_update_is_not_applied_twice_or_out_of_order():
    copy = SessionCopy(KEY, 30.0)
    copy.apply(update(0))
    for wrong in (update(0), update(2), update(1, epoch=1)):
        with pytest.raises(AssertionError):
            copy.apply(wrong)


@pytest.mark.parametrize("length", [0, 1, MAX_CHUNK_BYTES, MAX_CHUNK_BYTES + 1, 2 * MAX_CHUNK_BYTES])
def test_messages_are_joined_from_their_chunks(length):
    encoded, reader = encode(update(7, audio=bytes(length))), ChunkReader()
    chunks = [*to_chunks(encoded)]
    assert max(map(len, chunks)) <= MAX_CHUNK_BYTES + 1
    joined = [reader.feed(chunk) for chunk in chunks]
    assert joined == [None] * (len(chunks) - 1) + [encoded]
    assert decode_to_backup(joined[-1]) == update(7, audio=bytes(length))


class Memory:
    """Counts what is reserved."""

    def __init__(self, total):
        self.free = self.total = total

    def reserve(self, _tenant, count):
        if count > self.free:
            return False
        self.free -= count
        return True

    def release(self, _tenant, count):
        self.free += count


@pytest.fixture
def memory():
    return Memory(1000)


@pytest.fixture
def copies(memory):
    return StoredCopies(memory.reserve, memory.release)


def test_updates_of_the_old_server_are_refused_after_a_takeover(copies):
    assert copies.store(update(0, is_whole=True, parts={"items": b"old"})) is Outcome.STORED
    taken = copies.take(0.0, KEY, 1)
    assert taken.copy.parts == {"items": b"old"}
    assert copies.store(update(1, parts={"items": b"of a server that was cut off"})) is Outcome.FENCED
    assert copies.store(update(1, is_whole=True)) is Outcome.FENCED
    assert copies.store(update(0, epoch=1, is_whole=True, parts={"items": b"new"})) is Outcome.STORED
    assert copies.store(update(1, epoch=1)) is Outcome.STORED


def test_of_two_takeovers_the_later_one_counts(copies):
    copies.store(update(0, is_whole=True))
    assert all(copies.take(0.0, KEY, epoch).copy is not None for epoch in (1, 2))
    assert copies.store(update(0, epoch=1, is_whole=True)) is Outcome.FENCED
    assert copies.store(update(0, epoch=2, is_whole=True)) is Outcome.STORED


def test_a_request_that_arrives_late_takes_nothing(copies):
    """It is older than the copy, or the copy is that of the server that sent it. A slow clock asks again."""
    copies.store(update(4, epoch=50, is_whole=True))
    for late in (50, 40):
        assert copies.take(0.0, KEY, late) == (None, 50)
    assert copies.store(update(5, epoch=50)) is Outcome.STORED
    assert copies.take(0.0, KEY, 51).copy.number == 5


def test_a_takeover_is_remembered_without_a_copy(copies):
    """The old server must not come back when the copy has expired."""
    copies.store(update(0, is_whole=True))
    copies.take(0.0, KEY, 1)
    copies.expire(31.0)
    assert len(copies) == 0
    assert copies.store(update(1, is_whole=True)) is Outcome.FENCED
    copies.expire(FENCE_TTL_S + 1)
    assert copies.store(update(1, is_whole=True)) is Outcome.STORED


def test_a_server_that_knows_nothing_of_a_session_takes_nothing(copies):
    assert copies.take(0.0, KEY, 1) == (None, 0)
    assert copies.store(update(0, is_whole=True)) is Outcome.STORED, "asking for it did not fence it"


def test_a_missing_update_is_refused(copies):
    assert copies.store(update(3)) is Outcome.REFUSED
    copies.store(update(3, is_whole=True))
    assert copies.store(update(5)) is Outcome.REFUSED
    assert copies.store(update(4)) is Outcome.STORED
    assert copies.store(update(4, is_whole=True)) is Outcome.STORED, "the whole session after a lost connection"


def test_memory_is_reserved_and_released(copies, memory):
    copies.store(update(0, is_whole=True, parts={"items": bytes(600)}))
    assert memory.free == 400
    assert copies.store(update(1, parts={"item/1": bytes(500)})) is Outcome.REFUSED
    assert (memory.free, len(copies)) == (1000, 0)
    copies.store(update(0, is_whole=True, parts={"items": bytes(600)}))
    copies.store(update(1, parts={"items": bytes(100)}))
    assert memory.free == 900
    copies.end(KEY, 0)
    assert memory.free == 1000


def test_a_copy_waits_for_its_client_and_not_longer(copies, memory):
    copies.store(update(0, is_whole=True, parts={"items": bytes(10)}))
    copies.expire(1e9)
    assert len(copies) == 1, "its server is connected"
    copies.on_lost(100.0, KEY)
    copies.expire(129.0)
    assert len(copies) == 1
    copies.store(update(1))
    copies.expire(1e9)
    assert len(copies) == 1, "its server is back"
    copies.on_lost(200.0, KEY)
    copies.expire(230.0)
    assert (len(copies), memory.free) == (0, 1000)


def test_an_old_server_does_not_end_a_session_that_was_taken_over(copies):
    copies.store(update(0, epoch=1, is_whole=True))
    copies.end(KEY, 0)
    assert len(copies) == 1

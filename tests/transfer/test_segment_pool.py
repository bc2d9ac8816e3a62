"""Memory of exports is used again, but not before its reader has released it, and not after the reader was lost."""

import gc
import os
import subprocess
import sys

import numpy as np
import pytest

from mstar.errors import ReadFailed
from mstar.transfer import segment_pool
from mstar.transfer.codec import ArenaCodec
from mstar.transfer.segment_pool import SegmentMappings, SegmentPool
from mstar.transfer.segments import address_of

SIZE = 9 << 20
CAPACITY = 1 << 20


@pytest.fixture
def codecs():
    pair = ArenaCodec(CAPACITY), ArenaCodec(CAPACITY)
    yield pair
    for codec in pair:
        codec.close()


def export(codec, byte, size=SIZE):
    """An array in memory for exports."""
    array = np.frombuffer(codec.exports.allocate(size), np.uint8)
    array.fill(byte)
    return array


def address(array):
    return array.__array_interface__["data"][0]


def recycle(sender):
    """Have the sender see what was read."""
    gc.collect()
    assert sender.stats()["slots"] == 0


def test_an_export_is_read_where_it_was_written(codecs):
    sender, reader = codecs
    array = export(sender, 1)
    received = reader.unpack(sender.pack({"data": array}, "reader"), "sender")["data"]
    array[5] = 9
    assert (received[4], received[5], received[-1], len(received)) == (1, 9, 1, SIZE)


def test_both_sides_use_the_memory_again(codecs):
    sender, reader = codecs
    places = set()
    for number in range(4):
        array = export(sender, number)
        received = reader.unpack(sender.pack(array, "reader"), "sender")
        assert (received == number).all()
        places.add((address(array), address(received)))
        del array, received
        recycle(sender)
    assert len(places) == 1


def test_memory_is_not_used_again_while_the_reader_has_it(codecs):
    sender, reader = codecs
    first = reader.unpack(sender.pack(export(sender, 1), "reader"), "sender")
    assert sender.stats()["slots"] == 1, "a slot is read when its array is released"
    second = reader.unpack(sender.pack(export(sender, 2), "reader"), "sender")
    assert (first == 1).all()
    assert (second == 2).all()


def test_memory_is_not_used_again_while_the_sender_has_it(codecs):
    sender, reader = codecs
    array = export(sender, 1)
    reader.unpack(sender.pack(array, "reader"), "sender")
    recycle(sender)
    export(sender, 2)
    assert (array == 1).all()


def test_memory_of_an_export_that_was_not_sent_is_used_again(codecs):
    sender, _ = codecs
    places = {address(export(sender, number)) for number in range(3)}
    assert len(places) == 1


def test_memory_of_a_lost_peer_is_not_used_again(codecs):
    sender, reader = codecs
    array = export(sender, 1)
    received = reader.unpack(sender.pack(array, "reader"), "sender")
    del array
    sender.forget("reader")
    assert sender.stats()["slots"] == 0
    gc.collect()
    for number in range(2, 5):
        export(sender, number)
    assert (received == 1).all(), "the peer may still run"
    reader.forget("sender")
    del received  # its slot is no longer its own
    gc.collect()


def test_two_peers_do_not_share_an_export(codecs):
    sender, reader = codecs
    array = export(sender, 1)
    packed = [sender.pack(array, peer) for peer in ("reader", "other")]
    first, second = (reader.unpack(data, "sender") for data in packed)
    first[0] = 7
    assert second[0] == 1


def test_a_shorter_export_shows_nothing_of_the_one_before(codecs):
    sender, reader = codecs
    reader.unpack(sender.pack(export(sender, 1), "reader"), "sender")
    recycle(sender)
    received = reader.unpack(sender.pack(export(sender, 2, SIZE - 4096), "reader"), "sender")
    assert len(received) == SIZE - 4096
    assert (received == 2).all()


def test_a_reference_to_an_earlier_use_is_rejected():
    pool, mappings, marks = SegmentPool(), SegmentMappings(), []

    def take():
        array = np.frombuffer(pool.allocate(SIZE), np.uint8)
        taken, _ = pool.take(address(array))
        return taken, taken.ref(SIZE)

    first, stale = take()
    mappings.open(stale, "sender", lambda: marks.append(1))
    first.mark_read()
    second, fresh = take()
    assert second.segment is first.segment
    with pytest.raises(ReadFailed, match="replaced"):
        mappings.open(stale, "sender", lambda: marks.append(2))
    with pytest.raises(ReadFailed, match="replaced"):
        mappings.open(second.ref(1 << 40), "sender", lambda: marks.append(3))
    assert len(mappings.open(fresh, "sender", lambda: marks.append(4))) == SIZE
    assert marks == [1, 4]


def test_free_memory_is_limited_and_its_readers_unmap_it(codecs, monkeypatch):
    monkeypatch.setattr(segment_pool, "MAX_FREE_BYTES", SIZE + 4096)
    sender, reader = codecs
    arrays = [export(sender, number) for number in range(3)]
    received = [reader.unpack(sender.pack(array, "reader"), "sender") for array in arrays]
    segments = [known[0].segment for known in sender.exports._in_use.values()]
    del arrays, received
    recycle(sender)
    last = export(sender, 3)
    kept = [os.fstat(segment.fd).st_blocks * 512 >= SIZE for segment in segments]
    assert kept.count(True) == 1
    reader.unpack(sender.pack(last, "reader"), "sender")
    assert [len(idle) for idle in reader._mappings._idle.values()] == [0], "the one that is kept is in use"
    del last
    recycle(sender)
    reader.unpack(sender.pack(export(sender, 4), "reader"), "sender")
    gc.collect()
    reader._mappings._collect()
    assert [len(idle) for idle in reader._mappings._idle.values()] == [1]


def test_addresses_are_those_of_arrays():
    array = np.zeros(8, np.uint8)
    assert address_of(memoryview(array)) == address(array)
    assert address_of(memoryview(b"bytes")) is None


READER = """
import sys
import numpy as np
from mstar.transfer.codec import ArenaCodec

codec = ArenaCodec()
for line in sys.stdin:
    print(int(codec.unpack(bytes.fromhex(line), "sender").astype(np.int64).sum()), flush=True)
"""


def test_another_process_reads_what_each_use_wrote(codecs):
    sender, _ = codecs
    places = set()
    command = [sys.executable, "-c", READER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as reader:
        for number in range(1, 6):
            array = export(sender, number)
            places.add(address(array))
            reader.stdin.write(sender.pack(array, "reader").hex() + "\n")
            assert int(reader.stdout.readline()) == number * SIZE
            del array
            recycle(sender)
        reader.stdin.close()
    assert len(places) == 1

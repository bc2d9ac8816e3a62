"""Segments: arrays above the capacity of an arena, forwarding without a copy, and their lifetime."""

import gc
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from mstar.errors import ReadFailed
from mstar.transfer.codec import SEGMENT_BYTES, ArenaCodec
from mstar.transfer.segments import DATA_OFFSET_BYTES, Segment, SegmentRef, find_segment

CAPACITY = 1 << 20
LARGE = SEGMENT_BYTES + 4096


@pytest.fixture
def codecs():
    created = ArenaCodec(CAPACITY, numpy_only=True), ArenaCodec(CAPACITY, forwards=True), ArenaCodec(CAPACITY)
    yield created
    for codec in created:
        codec.close()


def open_segments():
    """Number of segments that this process has open."""
    gc.collect()
    links = []
    for name in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue
    return sum("mstar-segment" in link for link in links)


def samples(count=LARGE // 4):
    return np.arange(count, dtype=np.float32)


def test_an_array_above_the_capacity_of_the_arena_is_sent(codecs):
    front, conductor, worker = codecs
    value = {"samples": samples(), "rate": 48_000}
    packed = front.pack(value, "conductor")
    assert len(packed) < 500
    at_conductor = conductor.unpack(packed, "front")
    at_worker = worker.unpack(conductor.pack(at_conductor, "worker"), "conductor")
    assert at_worker["rate"] == 48_000
    assert np.array_equal(at_worker["samples"], value["samples"])


def test_a_full_arena_does_not_fail_a_large_array(codecs):
    front, conductor, _ = codecs
    arrays = [np.full(CAPACITY // 4, number, np.float32) for number in range(4)]
    packed = [front.pack(array, "conductor") for array in arrays]
    assert all(len(data) < 500 for data in packed)
    for array, data in zip(arrays, packed, strict=True):
        assert np.array_equal(conductor.unpack(data, "front"), array)


def test_a_forwarded_array_is_not_copied(codecs):
    front, conductor, worker = codecs
    at_conductor = conductor.unpack(front.pack(samples(), "conductor"), "front")
    segment, _ = find_segment(memoryview(at_conductor.view("u1")))
    at_worker = worker.unpack(conductor.pack(at_conductor, "worker"), "conductor")
    inodes = {os.fstat(segment.fd).st_ino, os.fstat(at_worker.base.obj.fd).st_ino}
    assert len(inodes) == 1


def test_a_slice_of_a_received_array_is_forwarded(codecs):
    front, conductor, worker = codecs
    sent = samples(3 * LARGE)
    at_conductor = conductor.unpack(front.pack(sent, "conductor"), "front")
    for part in (slice(1000, 2 * LARGE), slice(10, 20_000), slice(0, -1, 3)):
        at_worker = worker.unpack(conductor.pack(at_conductor[part], "worker"), "conductor")
        assert np.array_equal(at_worker, sent[part])


def test_a_change_is_never_lost_or_shared(codecs):
    front, conductor, worker = codecs
    at_conductor = conductor.unpack(front.pack(samples(), "conductor"), "front")
    with pytest.raises(ValueError, match="read-only"):
        at_conductor[0] = 7
    first = worker.unpack(conductor.pack(at_conductor, "worker"), "conductor")
    first[0] = 7
    second = worker.unpack(conductor.pack(at_conductor, "worker"), "conductor")
    assert (first[0], second[0], at_conductor[0]) == (7, 0, 0)
    back = conductor.unpack(worker.pack(first, "conductor"), "worker")
    assert back[0] == 7


def test_tensors_arrive_writable(codecs):
    front, conductor, worker = codecs
    tensor = torch.arange(LARGE // 8)
    at_conductor = conductor.unpack(front.pack(tensor, "conductor"), "front")
    at_conductor[0] = 5
    at_worker = worker.unpack(conductor.pack(at_conductor, "worker"), "conductor")
    at_worker[1] = 6
    assert (at_worker[0], at_worker[1], int(at_worker[2])) == (5, 6, 2)


def test_segments_are_closed_with_their_arrays(codecs):
    front, conductor, _ = codecs
    before = open_segments()
    array = samples()
    packed = front.pack(array, "conductor")
    assert open_segments() > before
    received = conductor.unpack(packed, "front")
    assert front.stats()["slots"] == 0
    del received
    assert open_segments() == before


def test_an_unread_segment_is_closed_when_its_peer_is_forgotten(codecs):
    front, conductor, _ = codecs
    before = open_segments()
    packed = front.pack(samples(), "conductor")
    front.forget("conductor")
    assert open_segments() == before
    with pytest.raises(ReadFailed):
        conductor.unpack(packed, "front")


@pytest.mark.parametrize("change", [{"id": b"another!"}, {"length": 1 << 40}, {"fd": 0}, {"pid": 1 << 22}])
def test_a_reference_that_does_not_match_is_rejected(change):
    segment = Segment.copy_of(memoryview(b"x" * 100))
    fields = {name: getattr(segment.ref(64, 100), name) for name in SegmentRef.__struct_fields__}
    with pytest.raises(ReadFailed):
        Segment.open(SegmentRef(**fields | change), "peer", is_read_only=True)


SENDER = """
import sys
import numpy as np
from mstar.transfer.codec import ArenaCodec

codec = ArenaCodec()
data = codec.pack(np.full(80_000_000, 3, np.float32), "reader")
sys.stdout.buffer.write(len(data).to_bytes(4, "big") + data)
sys.stdout.flush()
sys.stdin.read()
"""


def test_an_array_above_256_mib_crosses_processes_and_outlives_its_sender():
    command = [sys.executable, "-c", SENDER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as sender:
        packed = sender.stdout.read(int.from_bytes(sender.stdout.read(4), "big"))
        codec = ArenaCodec(forwards=True)
        array = codec.unpack(packed, "sender")
        sender.stdin.close()
        sender.wait()
    assert (array.nbytes, array[0], array[-1]) == (320_000_000, 3, 3)
    codec.close()


def test_a_tensor_that_was_written_to_a_segment_is_sent_without_a_copy(codecs):
    _, conductor, worker = codecs
    before = open_segments()
    tensor = torch.frombuffer(Segment.create(LARGE).data, dtype=torch.uint8)
    tensor.random_()
    with_tensor = open_segments()
    packed = conductor.pack(tensor, "worker")
    assert open_segments() == with_tensor > before, "it is in the segment that it was written to"
    assert torch.equal(worker.unpack(packed, "conductor"), tensor)
    del tensor
    conductor.forget("worker")
    assert open_segments() == before


def test_memory_outside_of_segments_is_in_none():
    segment = Segment.create(LARGE)
    assert find_segment(memoryview(np.frombuffer(segment.data, np.uint8))) == (segment, DATA_OFFSET_BYTES)
    assert find_segment(memoryview(np.zeros(LARGE, np.uint8))) is None
    assert find_segment(memoryview(bytes(LARGE))) is None

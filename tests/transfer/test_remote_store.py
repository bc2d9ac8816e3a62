"""Exports for other hosts: Mooncake reads them where they were written, TCP from the arena."""

import gc

import pytest
import torch

from mstar.errors import ReadFailed
from mstar.testing.parity import is_identical
from mstar.transfer.codec import ArenaCodec, _decode
from mstar.transfer.remote_arrays import HostEndpoint

SIZE = 3 << 20
KEY = bytes(range(32))


@pytest.fixture(params=["mooncake", "tcp"])
def kind(request):
    if request.param == "mooncake":
        pytest.importorskip("mooncake")
    return request.param


@pytest.fixture
def codecs(kind):
    hosts = ("127.0.0.1", "127.0.0.2")
    pair = [ArenaCodec(8 << 20, endpoint=HostEndpoint(ip, KEY, lambda peer: peer == "near", kind)) for ip in hosts]
    yield pair
    for each in pair:
        each.close()


def export(codec, byte, size=SIZE):
    return torch.frombuffer(codec.exports.allocate(size), dtype=torch.uint8).fill_(byte)


def fetch(codec, data):
    return codec.unpack(data, "sender", may_wait=True)


def test_arrays_beside_exports_keep_their_places(codecs):
    sender, reader = codecs
    fetch(reader, sender.pack(torch.ones(1 << 16), "far"))  # exports are registered after the first contact
    small = [torch.full((1 << 15,), number, dtype=torch.uint8) for number in range(3)]
    value = [small[0], export(sender, 5), small[1], export(sender, 6, SIZE // 2), small[2]]
    assert is_identical(fetch(reader, sender.pack(value, "far")), value)
    alone = export(sender, 7)
    assert is_identical(fetch(reader, sender.pack(alone, "far")), alone)


def test_only_mooncake_reads_exports_where_they_are(codecs, kind):
    sender, reader = codecs
    data = sender.pack(export(sender, 1), "far")
    assert sender.stats()["slot_bytes"] == (0 if kind == "mooncake" else SIZE)
    assert len(_decode(data).remote_slot.exports) == (kind == "mooncake")
    assert (fetch(reader, data) == 1).all()


def test_memory_is_used_again_after_the_read(codecs):
    sender, reader = codecs
    places = set()
    for number in range(4):
        array = export(sender, number)
        places.add(array.data_ptr())
        data = sender.pack(array, "far")
        del array
        gc.collect()
        other = export(sender, 9)
        assert (fetch(reader, data) == number).all(), "it is kept until it is read"
        del other
        assert sender.stats()["slots"] == 0
        gc.collect()
    assert len(places) <= 2


def test_an_export_is_read_once(codecs):
    sender, reader = codecs
    data = sender.pack(export(sender, 1), "far")
    fetch(reader, data)
    with pytest.raises(ReadFailed, match="already read or freed"):
        fetch(reader, data)


def test_an_export_for_a_lost_peer_cannot_be_read(codecs):
    sender, reader = codecs
    data = sender.pack(export(sender, 1), "far")
    sender.forget("far")
    gc.collect()
    assert (export(sender, 2) == 2).all()
    with pytest.raises(ReadFailed):
        fetch(reader, data)


def test_an_export_goes_to_a_peer_of_the_same_host_too(codecs):
    sender, reader = codecs
    array = export(sender, 4, 9 << 20)
    received = reader.unpack(sender.pack(array, "near"), "sender")
    array[0] = 8
    assert (received[0], received[-1]) == (8, 4), "it is not copied"

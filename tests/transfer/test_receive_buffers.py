"""Receive buffers: reuse, and the limit of free memory."""

from mstar.transfer import receive_buffers
from mstar.transfer.receive_buffers import ReceiveBuffers


def test_receive_buffers_keep_a_bounded_amount(monkeypatch):
    monkeypatch.setattr(receive_buffers, "MAX_FREE_BYTES", 4 << 20)
    known = set()
    buffers = ReceiveBuffers(lambda address, _: known.add(address), known.discard)
    in_use = [buffers.acquire(2 << 20) for _ in range(4)]
    assert (len(known), buffers.in_use()) == (4, 4)
    in_use.clear()
    assert buffers.in_use() == 0
    assert len(known) == 2
    _, small = buffers.acquire(100)
    assert len(small) == 2 << 20, "a free buffer is reused"
    buffers.close()
    assert len(known) == 1, "buffers in use stay"


def test_a_free_buffer_of_just_the_right_size_is_reused():
    known = []
    buffers = ReceiveBuffers(lambda address, _: known.append(address), known.remove)
    for _ in range(2):
        _, memory = buffers.acquire(2 << 20)
        assert len(memory) == 2 << 20
        del memory
    assert len(known) == 1
    buffers.close()

"""Memory that bytes land in is used again, and only so much of it is kept."""

from mstar.transfer import receive_buffers
from mstar.transfer.receive_buffers import ReceiveBuffers


def test_receive_buffers_keep_a_bounded_amount(monkeypatch):
    monkeypatch.setattr(receive_buffers, "MAX_FREE_BYTES", 4 << 20)
    known = set()
    landings = ReceiveBuffers(lambda address, _: known.add(address), known.discard)
    held = [landings.acquire(2 << 20) for _ in range(4)]
    assert (len(known), landings.in_use()) == (4, 4)
    held.clear()
    assert landings.in_use() == 0
    assert len(known) == 2
    _, small = landings.acquire(100)
    assert len(small) == 2 << 20, "what is there is taken"
    landings.close()
    assert len(known) == 1, "what is in use stays"

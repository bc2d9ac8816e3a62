"""Memory that bytes land in is used again, and only so much of it is kept."""

from mstar.transfer import landing
from mstar.transfer.landing import Landings


def test_landings_keep_only_so_much(monkeypatch):
    monkeypatch.setattr(landing, "KEPT", 4 << 20)
    known = set()
    landings = Landings(lambda address, _: known.add(address), known.discard)
    held = [landings.lend(2 << 20) for _ in range(4)]
    assert (len(known), landings.lent()) == (4, 4)
    held.clear()
    assert landings.lent() == 0
    assert len(known) == 2
    _, small = landings.lend(100)
    assert len(small) == 2 << 20, "what is there is taken"
    landings.close()
    assert len(known) == 1, "what is in use stays"

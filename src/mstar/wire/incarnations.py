"""Live incarnations of peers: fencing of dead processes by name and incarnation.

A process restarts under its name with a later incarnation, so the first frame of a later incarnation means that the
earlier ones are dead: frames from them are rejected, and what is kept for them is dropped. A successor in a rolling
update runs beside its predecessor and therefore has another name (`message.process_names`).

The real transport and the simulator share this. It holds no connections.
"""

from __future__ import annotations

from mstar.wire.message import Peer


class LiveIncarnations:
    """The incarnations that one process considers live."""

    def __init__(self) -> None:
        self._oldest: dict[str, int] = {}
        """Oldest live incarnation, by name."""

    def oldest(self, name: str) -> int:
        """Return the oldest live incarnation of a name; -1 if none is known."""
        return self._oldest.get(name, -1)

    def is_live(self, peer: Peer) -> bool:
        """Return whether a peer is not known to be dead."""
        return peer.incarnation >= self._oldest.get(peer.name, -1)

    def add(self, peer: Peer) -> bool:
        """Note a live peer: earlier incarnations are dead. Returns whether that is new."""
        return self._raise_oldest(peer.name, peer.incarnation)

    def remove(self, peer: Peer) -> bool:
        """Note that this and earlier incarnations are dead. Returns whether that is new."""
        return self._raise_oldest(peer.name, peer.incarnation + 1)

    def _raise_oldest(self, name: str, incarnation: int) -> bool:
        if self._oldest.get(name, -1) >= incarnation:
            return False
        self._oldest[name] = incarnation
        return True

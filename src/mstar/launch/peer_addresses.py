"""Addresses of the processes of a deployment, which every process needs for its connections.

On a single host there are none: peers find each other by name in the run directory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mstar.launch.child import Child
from mstar.launch.deployment import known_addresses
from mstar.wire.messages import Message, Peer, PeerAddress
from mstar.wire.transport.address_book import AddressBook


class PeerAddresses:
    """Sends each new address to all processes."""

    def __init__(
        self, address_book: AddressBook, children: Mapping[str, Child], send: Callable[[Peer, Message], None]
    ) -> None:
        self.address_book = address_book
        self.frontends: dict[str, int] = {}
        """Incarnation of each front end, by name."""
        self._children = children
        self._send = send

    def add_frontend(self, frontend: Peer) -> None:
        """Register a front end of this process, and broadcast its address."""
        self.frontends[frontend.name] = frontend.incarnation
        self.broadcast(frontend, self.address_book.own_address)

    def broadcast(self, peer: Peer, address: str) -> None:
        """Send the address of a peer to every child, and all addresses to that peer: its own copy can be outdated."""
        if not self.address_book.ip:
            return
        for child in self._children.values():
            if child.process and child.peer != peer:
                self._send(child.peer, PeerAddress(peer, address))
        if peer.name in self._children:
            for other, other_address in known_addresses(self.address_book, self.frontends).items():
                if other != peer:
                    self._send(peer, PeerAddress(other, other_address))

"""Transport of a process: Unix sockets to peers on the same host, ZeroMQ with CURVE to other hosts.

The address book decides which. On a single machine there is no TCP port, and ZeroMQ is not imported.
"""

from __future__ import annotations

import select
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from mstar.wire.messages import Peer
from mstar.wire.transport.address_book import AddressBook
from mstar.wire.transport.unix import UnixTransport

if TYPE_CHECKING:
    from mstar.wire.transport.zmq import ZmqTransport


class Transport:
    """Unix and ZeroMQ sockets of one process, polled by one epoll."""

    def __init__(self, address_book: AddressBook, epoll: select.epoll, key: bytes, counters: Counter[str]) -> None:
        self._address_book = address_book
        self._zmq: ZmqTransport | None = None
        if address_book.ip:
            from mstar.wire.transport.zmq import ZmqTransport  # optional dependency: several hosts only

            self._zmq = ZmqTransport(epoll, address_book, key, counters)
        self._unix = UnixTransport(epoll, address_book.own_address if address_book.ip else "")
        self._listen_paths: list[Path] = []  # of the actors of this process

    @property
    def has_more(self) -> bool:
        """Whether frames are readable that the last `receive` left for the next turn."""
        return self._zmq is not None and self._zmq.has_more

    def listen(self, peer: Peer) -> None:
        """Accept connections for an actor of this process."""
        if self._zmq:
            self._address_book.set_address(peer, self._address_book.own_address)
        path = self._address_book.socket_path(peer)
        self._unix.listen(path)
        self._listen_paths.append(path)

    def check_name(self, peer: Peer) -> None:
        """Raise MstarError if the name of a peer is invalid."""
        self._address_book.socket_path(peer)

    def send(self, peer: Peer, frame: bytes) -> bool:
        """Send a frame. Returns False if the peer is not connected, too slow, or its address unknown."""
        if self._zmq is None or self._address_book.is_local(peer):
            return self._unix.send(self._address_book.socket_path(peer), frame)
        endpoint = self._address_book.endpoint(peer)
        return endpoint is not None and self._zmq.send(endpoint, frame)

    def receive(self, fds: list[int]) -> list[tuple[str, bytes]]:
        """Read frames from the ready descriptors, with the address of the sender if there are several hosts."""
        if self._zmq is None and len(fds) == 1:
            return self._unix.receive(fds[0])
        frames = [frame for fd in fds for frame in self._unix.receive(fd)]
        return frames + self._zmq.receive(fds) if self._zmq else frames

    def is_full(self, peer: Peer) -> bool:
        """Whether `send` would refuse a frame, as far as known in advance."""
        return self._address_book.is_local(peer) and self._unix.is_full(self._address_book.socket_path(peer))

    def set_address(self, peer: Peer, address: str) -> None:
        """Record the address of a peer."""
        self._address_book.set_address(peer, address)

    def on_peer_address(self, peer: Peer, address: str) -> None:
        """Record the address that a peer sent from, and connect to it for the reply."""
        self._address_book.set_address(peer, address)
        if self._zmq and not self._address_book.is_local(peer):
            self._zmq.connect(address.partition("/")[0])

    def disconnect(self, peer: Peer) -> None:
        """Close the connection to a dead peer."""
        self._unix.disconnect(self._address_book.socket_path(peer))

    def forget(self, peer: Peer) -> None:
        """Remove this and earlier incarnations from the address book, and close unused endpoints."""
        for endpoint in self._address_book.forget(peer):
            if self._zmq:
                self._zmq.disconnect(endpoint)

    def close(self) -> None:
        """Close all sockets."""
        self._unix.close()
        for path in self._listen_paths:
            path.unlink(missing_ok=True)
        if self._zmq:
            self._zmq.close()

"""Ways: how frames leave a process and come to it. By a socket on its own host, by a port on others.

Which of the two it is, whereabouts know. On a single machine there are no ports, and ZeroMQ is not imported.
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
    """The sockets and ports of one process, watched by one epoll."""

    def __init__(self, address_book: AddressBook, epoll: select.epoll, key: bytes, counters: Counter[str]) -> None:
        self._address_book = address_book
        self._zmq: ZmqTransport | None = None
        if address_book.ip:
            from mstar.wire.transport.zmq import ZmqTransport  # only who has other hosts needs ZeroMQ

            self._zmq = ZmqTransport(epoll, address_book, key, counters)
        self._unix = UnixTransport(epoll, address_book.own_address if address_book.ip else "")
        self._listen_paths: list[Path] = []  # where those who live here listen

    @property
    def has_more(self) -> bool:
        """Whether something has come that the last `ready` did not get to."""
        return self._zmq is not None and self._zmq.has_more

    def listen(self, peer: Peer) -> None:
        """Let others reach a process that lives here."""
        if self._zmq:
            self._address_book.set_address(peer, self._address_book.own_address)
        path = self._address_book.socket_path(peer)
        self._unix.listen(path)
        self._listen_paths.append(path)

    def check_name(self, peer: Peer) -> None:
        """Raise MstarError if a process cannot be called that."""
        self._address_book.socket_path(peer)

    def send(self, peer: Peer, frame: bytes) -> bool:
        """Send a frame; False if that cannot be now, or nobody knows where."""
        if self._zmq is None or self._address_book.is_local(peer):
            return self._unix.send(self._address_book.socket_path(peer), frame)
        endpoint = self._address_book.endpoint(peer)
        return endpoint is not None and self._zmq.send(endpoint, frame)

    def receive(self, fds: list[int]) -> list[tuple[str, bytes]]:
        """The frames that have come, each with the address of its sender, if there are several hosts."""
        frames = [frame for file in fds for frame in self._unix.receive(file)]
        return frames + self._zmq.receive(fds) if self._zmq else frames

    def is_full(self, peer: Peer) -> bool:
        """Whether `send` would refuse a frame, as far as that can be told before it is made."""
        return self._address_book.is_local(peer) and self._unix.is_full(self._address_book.socket_path(peer))

    def set_address(self, peer: Peer, address: str) -> None:
        """A process is there."""
        self._address_book.set_address(peer, address)

    def on_peer_address(self, peer: Peer, address: str) -> None:
        """A process has spoken from there: it will be answered."""
        self._address_book.set_address(peer, address)
        if self._zmq and not self._address_book.is_local(peer):
            self._zmq.connect(address.partition("/")[0])

    def disconnect(self, peer: Peer) -> None:
        """This life, which was spoken to, is over."""
        self._unix.disconnect(self._address_book.socket_path(peer))

    def forget(self, peer: Peer) -> None:
        """This life is over, and those before it: it is not known any more where they were."""
        for endpoint in self._address_book.forget(peer):
            if self._zmq:
                self._zmq.disconnect(endpoint)

    def close(self) -> None:
        """Close every socket and port."""
        self._unix.close()
        for path in self._listen_paths:
            path.unlink(missing_ok=True)
        if self._zmq:
            self._zmq.close()

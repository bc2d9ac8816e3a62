"""Ways: how frames leave a process and come to it. By a socket on its own host, by a port on others.

Which of the two it is, whereabouts know. On a single machine there are no ports, and ZeroMQ is not imported.
"""

from __future__ import annotations

import select
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from mstar.wire.messages import Peer
from mstar.wire.sockets import Sockets
from mstar.wire.whereabouts import Whereabouts

if TYPE_CHECKING:
    from mstar.wire.ports import Ports


class Ways:
    """The sockets and ports of one process, watched by one epoll."""

    def __init__(self, whereabouts: Whereabouts, epoll: select.epoll, key: bytes, counters: Counter[str]) -> None:
        self._whereabouts = whereabouts
        self._ports: Ports | None = None
        if whereabouts.ip:
            from mstar.wire.ports import Ports  # only who has other hosts needs ZeroMQ

            self._ports = Ports(epoll, whereabouts, key, counters)
        self._sockets = Sockets(epoll, whereabouts.mine if whereabouts.ip else "")
        self._paths: list[Path] = []  # where those who live here listen

    @property
    def has_more(self) -> bool:
        """Whether something has come that the last `ready` did not get to."""
        return self._ports is not None and self._ports.has_more

    def listen(self, peer: Peer) -> None:
        """Let others reach a process that lives here."""
        if self._ports:
            self._whereabouts.meet(peer, self._whereabouts.mine)
        path = self._whereabouts.path(peer)
        self._sockets.listen(path)
        self._paths.append(path)

    def check(self, peer: Peer) -> None:
        """Raise MstarError if a process cannot be called that."""
        self._whereabouts.path(peer)

    def send(self, peer: Peer, frame: bytes) -> bool:
        """Send a frame; False if that cannot be now, or nobody knows where."""
        if self._ports is None or self._whereabouts.is_here(peer):
            return self._sockets.send(self._whereabouts.path(peer), frame)
        endpoint = self._whereabouts.endpoint(peer)
        return endpoint is not None and self._ports.send(endpoint, frame)

    def ready(self, files: list[int]) -> list[tuple[str, bytes]]:
        """The frames that have come, each with the address of its sender, if there are several hosts."""
        frames = [frame for file in files for frame in self._sockets.ready(file)]
        return frames + self._ports.ready(files) if self._ports else frames

    def is_full(self, peer: Peer) -> bool:
        """Whether `send` would refuse a frame, as far as that can be told before it is made."""
        return self._whereabouts.is_here(peer) and self._sockets.is_full(self._whereabouts.path(peer))

    def meet(self, peer: Peer, address: str) -> None:
        """A process is there."""
        self._whereabouts.meet(peer, address)

    def hear_from(self, peer: Peer, address: str) -> None:
        """A process has spoken from there: it will be answered."""
        self._whereabouts.meet(peer, address)
        if self._ports and not self._whereabouts.is_here(peer):
            self._ports.connect(address.partition("/")[0])

    def leave(self, peer: Peer) -> None:
        """This life, which was spoken to, is over."""
        self._sockets.leave(self._whereabouts.path(peer))

    def forget(self, peer: Peer) -> None:
        """This life is over, and those before it: it is not known any more where they were."""
        for endpoint in self._whereabouts.forget(peer):
            if self._ports:
                self._ports.leave(endpoint)

    def close(self) -> None:
        """Close every socket and port."""
        self._sockets.close()
        for path in self._paths:
            path.unlink(missing_ok=True)
        if self._ports:
            self._ports.close()

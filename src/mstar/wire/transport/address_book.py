"""Where processes are: those of this host by a path, those of other hosts by a port.

An address is one text, "10.0.0.2:41231/tmp/mstar-x7": where other hosts reach a process, and where its own host does.
Two processes with one IP address are on one host. On a single machine nobody has an address: everybody is here. Nothing
here opens anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mstar.config import ProcessConfig
from mstar.errors import MstarError
from mstar.wire.frame import MAX_NAME_BYTES
from mstar.wire.messages import Peer

MAX_PATH_BYTES = 107  # what Linux has room for in the name of a socket


class AddressBook:
    """What one process knows of where others are. `ip` is its own, or nothing on a single machine."""

    def __init__(self, directory: Path, ip: str = "", addresses: Mapping[Peer, str] | None = None) -> None:
        self.ip = ip
        self.port = 0
        """Where other hosts reach this process, once it listens."""
        self._directory = directory
        self._addresses = dict(addresses or {})
        self._paths: dict[Peer, Path] = {}

    @classmethod
    def from_config(cls, config: ProcessConfig) -> AddressBook:
        """What a process is told at its start."""
        peers = config.peers
        known = {Peer(name, peers[name]): address for name, address in config.addresses.items()}
        return cls(Path(config.directory), config.ip, known)

    @property
    def own_address(self) -> str:
        """The address of this process."""
        return f"{self.ip}:{self.port}{self._directory}"

    def set_address(self, peer: Peer, address: str) -> None:
        """A process is there."""
        if self._addresses.get(peer) != address:
            self._addresses[peer] = address
            self._paths.pop(peer, None)

    def forget(self, peer: Peer) -> list[str]:
        """This life is over, and those before it. Returns the endpoints where nobody is left."""
        both = self._addresses.keys() | self._paths.keys()
        dead = [one for one in both if one.name == peer.name and one.incarnation <= peer.incarnation]
        left = {_endpoint(self._addresses.pop(one)) for one in dead if one in self._addresses}
        for one in dead:
            self._paths.pop(one, None)
        return sorted(left.difference(map(_endpoint, self._addresses.values())))

    def addresses(self) -> dict[Peer, str]:
        """All addresses."""
        return dict(self._addresses)

    def is_local(self, peer: Peer) -> bool:
        """Whether a process is on this host."""
        return not self.ip or self._addresses.get(peer, "").partition(":")[0] == self.ip

    def endpoint(self, peer: Peer) -> str | None:
        """The IP address and port of a process on another host; None as long as nobody has said where it is."""
        address = self._addresses.get(peer)
        return None if address is None else _endpoint(address)

    def socket_path(self, peer: Peer) -> Path:
        """Where a process of this host listens, or would listen."""
        if (path := self._paths.get(peer)) is not None:
            return path
        if not 0 < len(peer.name.encode()) <= MAX_NAME_BYTES or "/" in peer.name:
            fix = f"use 1 to {MAX_NAME_BYTES} bytes without a slash"
            raise MstarError(f"a process cannot be called {peer.name!r}\n  fix: {fix}")
        address = self._addresses.get(peer)
        directory = Path("/" + address.partition("/")[2]) if address else self._directory
        path = directory / str(peer)
        size = len(bytes(path))
        if size > MAX_PATH_BYTES:
            fix = f"use a shorter directory or name: {MAX_PATH_BYTES} bytes are what Linux allows"
            raise MstarError(f"{path} is {size} bytes long, too long for a socket\n  fix: {fix}")
        self._paths[peer] = path
        return path


def _endpoint(address: str) -> str:
    return address.partition("/")[0]

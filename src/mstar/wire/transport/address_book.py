"""Address book: maps peers to Unix socket paths (same host) and TCP endpoints (other hosts).

An address is one string, "10.0.0.2:41231/tmp/mstar-x7": the TCP endpoint for other hosts, then the run directory for
the same host. Two processes with the same IP address are on the same host. On a single machine there are no addresses
and every peer is local. Nothing here opens a socket.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mstar.config import ProcessConfig
from mstar.errors import MstarError
from mstar.wire.frame import MAX_NAME_BYTES
from mstar.wire.messages import Peer

MAX_PATH_BYTES = 107  # Linux limit for the path of a Unix socket


class AddressBook:
    """Addresses known to one process. `ip` is its own, or empty on a single machine."""

    def __init__(self, directory: Path, ip: str = "", addresses: Mapping[Peer, str] | None = None) -> None:
        self.ip = ip
        self.port = 0
        """TCP port of this process, once it listens."""
        self._directory = directory
        self._addresses = dict(addresses or {})
        self._paths: dict[Peer, Path] = {}

    @classmethod
    def from_config(cls, config: ProcessConfig) -> AddressBook:
        """The addresses that a process gets at its start."""
        peers = config.peers
        known = {Peer(name, peers[name]): address for name, address in config.addresses.items()}
        return cls(Path(config.directory), config.ip, known)

    @property
    def own_address(self) -> str:
        """Address of this process."""
        return f"{self.ip}:{self.port}{self._directory}"

    def set_address(self, peer: Peer, address: str) -> None:
        """Record the address of a peer."""
        if self._addresses.get(peer) != address:
            self._addresses[peer] = address
            self._paths.pop(peer, None)

    def forget(self, peer: Peer) -> list[str]:
        """Remove this and earlier incarnations. Returns the endpoints without remaining peers."""
        known = self._addresses.keys() | self._paths.keys()
        dead = [other for other in known if other.name == peer.name and other.incarnation <= peer.incarnation]
        endpoints = {_endpoint(self._addresses.pop(other)) for other in dead if other in self._addresses}
        for other in dead:
            self._paths.pop(other, None)
        return sorted(endpoints.difference(map(_endpoint, self._addresses.values())))

    def addresses(self) -> dict[Peer, str]:
        """All known addresses."""
        return dict(self._addresses)

    def is_local(self, peer: Peer) -> bool:
        """Whether a peer is on this host."""
        return not self.ip or self._addresses.get(peer, "").partition(":")[0] == self.ip

    def endpoint(self, peer: Peer) -> str | None:
        """TCP endpoint of a peer on another host; None if unknown."""
        address = self._addresses.get(peer)
        return None if address is None else _endpoint(address)

    def socket_path(self, peer: Peer) -> Path:
        """Unix socket path at which a peer of this host listens. Raises MstarError if the name is invalid."""
        if (path := self._paths.get(peer)) is not None:
            return path
        if not 0 < len(peer.name.encode()) <= MAX_NAME_BYTES or "/" in peer.name:
            fix = f"use 1 to {MAX_NAME_BYTES} bytes without a slash"
            raise MstarError(f"invalid process name {peer.name!r}\n  fix: {fix}")
        address = self._addresses.get(peer)
        directory = Path("/" + address.partition("/")[2]) if address else self._directory
        path = directory / str(peer)
        size = len(bytes(path))
        if size > MAX_PATH_BYTES:
            fix = "use a shorter directory or name"
            raise MstarError(f"socket path {path} has {size} bytes, the limit is {MAX_PATH_BYTES}\n  fix: {fix}")
        self._paths[peer] = path
        return path


def _endpoint(address: str) -> str:
    return address.partition("/")[0]

"""Configuration of a deployment, and the configurations of its child processes that follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from mstar.config import ConductorConfig, FrontendConfig, FrontendSettings, RuntimeConfig, WorkerConfig
from mstar.launch.child import Child
from mstar.plan.shards import Shard
from mstar.wire.message import process_names, worker_of
from mstar.wire.messages import Peer
from mstar.wire.transport.address_book import AddressBook

LAUNCHER = Peer("launcher", 0)


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """Configuration of a deployment, common to all children."""

    directory: Path
    key: bytes
    models: dict[str, str]
    placements: dict[str, str]
    options: RuntimeConfig
    shards: dict[str, Shard]
    """Shards, by name of their conductor."""
    has_standby: bool
    has_successors: bool
    """Whether a rolling update can start the successor of a worker beside it."""
    cuda_devices: dict[str, str] = {}
    """Name of the only GPU that the processes of a worker see, by worker."""
    without_standby: frozenset[str] = frozenset()
    """Workers that a standby cannot replace: those with an interpreter of their own, and those that see one GPU, as
    libraries that a standby has imported can have opened others."""

    def conductor_of(self, name: str) -> str:
        """Conductor of a process of a worker; a conductor is its own."""
        worker = worker_of(name)
        return next(conductor for conductor, shard in self.shards.items() if worker in (conductor, *shard.workers))

    def child_config(
        self,
        peer: Peer,
        children: Mapping[str, Child],
        frontends: Mapping[str, int],
        address_book: AddressBook,
        weights_version: int,
    ) -> ConductorConfig | WorkerConfig:
        """Configuration of a new incarnation of a conductor or worker, which knows the running ones."""
        conductor = self.conductor_of(peer.name)
        shard = self.shards[conductor]
        # Always include the conductor: a dead one registers with its peers after its restart.
        names = [conductor, *(name for worker in shard.workers for name in process_names(worker) if name in children)]
        own = [children[name] for name in names if name != peer.name]
        running = [child.peer for child in own if child.process or child.peer.name == conductor]
        peers = {LAUNCHER.name: LAUNCHER.incarnation, **frontends}
        peers |= {other.name: other.incarnation for other in running}
        known = known_addresses(address_book, frontends)
        fields = {
            "name": peer.name,
            "incarnation": peer.incarnation,
            "peers": peers,
            "directory": str(self.directory),
            "key": self.key,
            "ip": address_book.ip,
            "addresses": {name: known[Peer(name, n)] for name, n in peers.items() if Peer(name, n) in known},
            "weights_version": weights_version,
            "models": {name: self.models[name] for name in shard.models},
            "placements": {name: self.placements[name] for name in shard.models},
            "options": self.options,
        }
        if peer.name == conductor:
            return ConductorConfig(**fields, up_workers=tuple(child.peer.name for child in own if child.is_up))
        cuda_device, black_box = self.cuda_devices.get(peer.worker, ""), str(self.directory / f"{peer}.box")
        return WorkerConfig(**fields, conductor=conductor, black_box=black_box, cuda_device=cuda_device)

    def frontend_config(
        self, peer: Peer, children: Mapping[str, Child], frontends: Mapping[str, int], settings: FrontendSettings
    ) -> FrontendConfig:
        """Configuration of a new incarnation of a front end. It knows the conductors, also one that restarts."""
        conductors = {name: children[name].peer.incarnation for name in self.shards}
        return FrontendConfig(
            name=peer.name,
            incarnation=peer.incarnation,
            directory=str(self.directory),
            key=self.key,
            peers={LAUNCHER.name: LAUNCHER.incarnation, **frontends, **conductors},
            models=self.models,
            placements=self.placements,
            options=self.options,
            number=int(peer.name.rpartition("-")[2]),
            conductors={model: name for name, shard in self.shards.items() for model in shard.models},
            settings=settings,
        )


def known_addresses(address_book: AddressBook, frontends: Mapping[str, int]) -> dict[Peer, str]:
    """Addresses of all peers, as far as known; empty on a single machine."""
    if not address_book.ip:
        return {}
    local = [LAUNCHER, *(Peer(name, incarnation) for name, incarnation in frontends.items())]
    return address_book.addresses() | dict.fromkeys(local, address_book.own_address)

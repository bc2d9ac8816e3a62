"""Entry point of a conductor process: loads the models' routes, no weights, and serves until its loop stops."""

from __future__ import annotations

from mstar import failpoints, process_tuning
from mstar.conductor.actor import ConductorActor
from mstar.conductor.core import ConductorCore
from mstar.conductor.limits import ConductorLimits
from mstar.conductor.model import ConductorModel
from mstar.config import ConductorConfig
from mstar.plan.planned_model import load_planned_models
from mstar.transfer.codec import ArenaCodec
from mstar.transfer.remote_arrays import HostEndpoint
from mstar.wire.messages import Peer
from mstar.wire.transport.actor_loop import ActorLoop
from mstar.wire.transport.address_book import AddressBook


def main(config: ConductorConfig) -> None:
    """Run a conductor until its actor loop stops."""
    if config.incarnation == 0:  # a failpoint that kills a conductor must not kill its successor
        failpoints.arm(config.options.failpoints)
    planned_models = load_planned_models(config.models, config.placements)
    address_book = AddressBook.from_config(config)
    codec = ArenaCodec(forwards=True, endpoint=HostEndpoint(config.ip, config.key, address_book.is_local))
    actor_loop = ActorLoop(address_book, config.key, codec)
    peer = Peer(config.name, config.incarnation)
    launcher = Peer("launcher", config.peers["launcher"])
    limits = ConductorLimits(
        max_running_requests=config.options.max_running_requests,
        max_queued_requests=config.options.max_queued_requests,
        can_start_successors=not config.ip,
    )
    models = {name: ConductorModel.from_plans(planned.model, planned.plans) for name, planned in planned_models.items()}

    def process_stats() -> dict[str, int]:
        return process_tuning.process_usage() | codec.stats()

    core = ConductorCore(peer, launcher, models, limits)
    core.failure_detector.expect(Peer(name, config.peers[name]) for name in config.up_workers)
    actor = ConductorActor(actor_loop, core, process_stats)
    actor_loop.add(actor)
    others = [Peer(name, incarnation) for name, incarnation in config.peers.items() if name != peer.name]
    actor_loop.call_soon(lambda: actor_loop.announce_address(peer, launcher))
    actor_loop.call_soon(lambda: actor.announce(others))
    process_tuning.freeze_heap()
    actor_loop.run()

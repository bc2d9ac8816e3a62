"""A conductor as a process: it loads the models' routes, no weights, and serves until it is told to stop."""

from __future__ import annotations

import os
import threading

from mstar import failpoints, process_tuning
from mstar.conductor.actor import ConductorActor
from mstar.conductor.core import ConductorCore, ConductorLimits, ConductorModel
from mstar.config import ConductorConfig
from mstar.plan.planned_model import load_planned_models
from mstar.transfer.codec import ArenaCodec
from mstar.transfer.remote_arrays import HostEndpoint
from mstar.wire.messages import Peer
from mstar.wire.transport.actor_loop import ActorLoop
from mstar.wire.transport.address_book import AddressBook


def main(settings: ConductorConfig) -> None:
    """Be a conductor until the node stops."""
    if settings.incarnation == 0:
        failpoints.arm(settings.options.failpoints)
    deployed = load_planned_models(settings.models, settings.placements)
    whereabouts = AddressBook.from_config(settings)
    codec = ArenaCodec(endpoint=HostEndpoint(settings.ip, settings.key, whereabouts.is_local))
    node = ActorLoop(whereabouts, settings.key, codec)
    me = Peer(settings.name, settings.incarnation)
    launcher = Peer("launcher", settings.peers["launcher"])
    limits = ConductorLimits(
        max_running_requests=settings.options.max_running_requests,
        max_queued_requests=settings.options.max_queued_requests,
    )
    served = {name: ConductorModel.from_plans(one.model, one.plans) for name, one in deployed.items()}

    def stock() -> dict[str, int]:
        return {"fds": len(os.listdir("/proc/self/fd")), "threads": threading.active_count()} | codec.stats()

    actor = ConductorActor(node, ConductorCore(me, launcher, served, limits), stock)
    node.add(actor)
    others = [Peer(name, incarnation) for name, incarnation in settings.peers.items()]
    node.call_soon(lambda: node.announce_address(me, launcher))
    node.call_soon(lambda: actor.announce(peer for peer in others if peer.name != me.name))
    process_tuning.freeze_heap()
    node.run()

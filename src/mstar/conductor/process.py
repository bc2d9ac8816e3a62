"""A conductor as a process: it loads the models' routes, no weights, and serves until it is told to stop."""

from __future__ import annotations

import os
import threading

from mstar import failpoints, interpreter
from mstar.conductor.actor import ConductorActor
from mstar.conductor.core import ConductorCore, Limits, Served
from mstar.config import ConductorSettings
from mstar.plan.deployment import deploy
from mstar.transfer.afar import Reach
from mstar.transfer.codec import ArenaCodec
from mstar.wire.messages import Peer
from mstar.wire.node import Node
from mstar.wire.whereabouts import Whereabouts


def main(settings: ConductorSettings) -> None:
    """Be a conductor until the node stops."""
    if settings.incarnation == 0:
        failpoints.arm(settings.options.failpoints)
    deployed = deploy(settings.models, settings.placements)
    whereabouts = Whereabouts.of(settings)
    codec = ArenaCodec(reach=Reach(settings.ip, settings.key, whereabouts.is_here))
    node = Node(whereabouts, settings.key, codec)
    me = Peer(settings.name, settings.incarnation)
    launcher = Peer("launcher", settings.peers["launcher"])
    limits = Limits(live=settings.options.max_live, queue=settings.options.queue_bound)
    served = {name: Served.of(one.model, one.plans) for name, one in deployed.items()}

    def stock() -> dict[str, int]:
        return {"fds": len(os.listdir("/proc/self/fd")), "threads": threading.active_count()} | codec.stock()

    actor = ConductorActor(node, ConductorCore(me, launcher, served, limits), stock)
    node.add(actor)
    others = [Peer(name, incarnation) for name, incarnation in settings.peers.items()]
    node.call(lambda: node.present(me, launcher))
    node.call(lambda: actor.greet(peer for peer in others if peer.name != me.name))
    interpreter.settle()
    node.run()

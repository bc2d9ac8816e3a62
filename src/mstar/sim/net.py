"""The network of a simulated world: frames come late, twice, in another order, or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mstar.sim.life import Life
from mstar.sim.processes import LAUNCHER
from mstar.wire.link import Sent
from mstar.wire.messages import Peer

if TYPE_CHECKING:
    from mstar.sim.world import World

LATENCY = 0.0002


class Net:
    """All that is on its way."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._cuts: dict[tuple[str, str], float] = {}

    def cut(self, sender: str, receiver: str, until: float) -> None:
        """Let nothing through from one process to another for a while."""
        self._cuts[sender, receiver] = until

    def transmit(self, life: Life, to: Peer, sent: Sent) -> None:
        """A frame is on its way."""
        world = self._world
        now, draw, scenario = world.now, world.drawn.random, world.scenario
        if now >= scenario.end:
            world.at(now + LATENCY * (1 + draw()), self._arrive, life.peer, to, sent)
            return
        delay = LATENCY + scenario.delay * draw()
        if scenario.repeat and draw() < scenario.repeat:
            world.at(now + delay + 3 * scenario.delay * draw(), self._arrive, life.peer, to, sent)
        if not scenario.drop or draw() >= scenario.drop:
            world.at(now + delay, self._arrive, life.peer, to, sent)

    def _arrive(self, sender: Peer, to: Peer, sent: Sent) -> None:
        world = self._world
        life = world.launcher if to is LAUNCHER else world.lives.get(to.name)
        if life is None or life.peer != to or not life.is_up:
            return
        if self._cuts and self._cuts.get((sender.name, to.name), 0.0) > world.now:
            return
        if life.inbox is None:
            life.arrive(sender, *sent)
        else:
            life.inbox.append((life.arrive, (sender, *sent)))

"""What goes wrong at a moment: processes are killed, stand still, get slow, or cannot reach each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mstar.sim.processes import LAUNCHER, AnyLife
from mstar.sim.scenario import Strike
from mstar.wire.messages import Drain, Renew, Rest, Wake

if TYPE_CHECKING:
    from mstar.sim.world import World

SLOWNESS = 10.0
AGAIN = 0.05
"""After so many seconds it is looked again whether the last renewal is over."""


class Trouble:
    """Strikes one world."""

    def __init__(self, world: World) -> None:
        self.is_draining = False
        self._world = world
        self._slow: dict[str, float] = {}

    def strike(self, strike: Strike) -> None:
        """Something goes wrong."""
        world = self._world
        names = list(world.lives)
        if strike.what in ("kill", "slow"):
            names = [name for name in names if name in world.workers]
        if strike.what == "conductor":
            names = [name for name in world.shards.models if name in world.lives]
        if not names:
            return
        who = names[int(strike.who * len(names))]
        world.note(strike.what, who, f"{strike.seconds:.3f} s")
        match strike.what:
            case "slow":
                self._slow[who] = world.now + strike.seconds
            case "pause":
                self._pause(world.lives[who], strike.seconds)
            case "cut":
                self._cut(who, strike)
            case _:
                world.kill(world.peers[who], "it was struck")

    def slowness(self, name: str) -> float:
        """How many times longer a worker's batches take now."""
        return SLOWNESS if self._slow.get(name, 0.0) > self._world.now else 1.0

    def _cut(self, who: str, strike: Strike) -> None:
        """Cut a process off from another: in one direction or in both."""
        world = self._world
        every = [LAUNCHER.name, *world.peers]
        place = strike.other * len(every)
        other = every[int(place)]
        until = world.now + strike.seconds
        world.net.cut(who, other, until)
        if place % 1 < 0.5:
            world.net.cut(other, who, until)
        world.note("cut off from", other, "both ways" if place % 1 < 0.5 else "one way")

    def _pause(self, life: AnyLife, seconds: float) -> None:
        if life.inbox is None and life.is_up:
            life.inbox = []
            self._world.judge.paused(life, seconds)
            self._world.at(self._world.now + seconds, self._resume, life)

    def _resume(self, life: AnyLife) -> None:
        if life.is_over:
            return
        self._world.note(life.peer, "goes on")
        life.went_on = self._world.now
        waiting, life.inbox = life.inbox or [], None
        for do, given in waiting:
            if not life.is_over:
                do(*given)
        if not life.is_over:
            life.flush()

    def drain(self) -> None:
        """The operator wants it to end."""
        world = self._world
        world.note("drain")
        self.is_draining = True
        world.launcher.tell(Drain(), *world.shards.models)

    def stand(self, model: str, is_rest: bool) -> None:
        """The operator wants a model to rest, or to be there again."""
        world = self._world
        world.note(model, "is to rest" if is_rest else "is to be there")
        front = world.lives[world.scenario.fronts[0]]
        conductor = world.peers[world.shards.conductor(model)]
        world.later(0.0, front, front.say, conductor, Rest(0, model) if is_rest else Wake(0, model))

    def renew(self) -> None:
        """There are new weights."""
        world = self._world
        if world.launcher.renewed < world.edition:  # one after the other
            world.at(world.now + AGAIN, self.renew)
            return
        world.edition += 1
        world.note("edition", world.edition)
        world.launcher.tell(Renew(world.edition), *world.shards.models)

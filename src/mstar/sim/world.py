"""The world: virtual time, and the processes that are born and die in it.

One seed gives one run, event by event. What is on its way is in `net`, what goes wrong in `trouble`; whether what
happened may happen is judged in `judge`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any
from zlib import crc32

from mstar.sim.history import History
from mstar.sim.judge import Judge
from mstar.sim.life import TICK, Life
from mstar.sim.models import served_of
from mstar.sim.net import Net
from mstar.sim.processes import LAUNCHER, AnyLife, ConductorLife, FrontLife, LauncherLife, WorkerLife
from mstar.sim.scenario import Client, Scenario
from mstar.sim.shards import Shards
from mstar.sim.talks import Talks
from mstar.sim.trouble import Trouble
from mstar.wire import messages as m

LOOK = 0.3
"""Seconds between two looks whether all is quiet."""
LONGEST = 60.0
"""So many seconds after the end of trouble everything has to be quiet."""
SEEN_AFTER, UP_AFTER = 0.05, 0.3
"""How long it may take until a death is seen, and until a process is up."""


class World:
    """One run."""

    def __init__(self, scenario: Scenario, trace: list[str] | None = None) -> None:
        self.scenario = scenario
        self.trace = trace
        self.now = 0.0
        self.drawn = random.Random(scenario.seed * 2 + 1)
        self.served = {
            name: served_of(
                name,
                scenario.workers,
                variant,
                is_elastic=scenario.is_elastic,
                prefix=f"{name}-" if scenario.is_sharded else "w",
            )
            for name, variant in scenario.models.items()
        }
        self.shards = Shards(scenario, self.served)
        self.history = History()
        self.judge = Judge(self)
        self.talks = Talks(self.history)
        self.net = Net(self)
        self.trouble = Trouble(self)
        self.once: list[tuple[int, ...]] = []
        """Every call that must not be repeated, as often as it was run."""
        self.events = 0
        self.deaths: Counter[str] = Counter()
        self.hash = 0
        self.launcher = LauncherLife(self, LAUNCHER)
        self.launcher.is_up = True
        names = dict.fromkeys(name for served in self.served.values() for name in served.plans.workers)
        self.workers = tuple(names)
        self.peers = {name: m.Peer(name, 0) for name in (*self.shards.models, *scenario.fronts, *names)}
        """The newest life of each process, whether it still lasts or not."""
        self.lives: dict[str, AnyLife] = {}
        """The processes that are there."""
        crews = [crew for served in self.served.values() for crew in served.plans.crews]
        self.asleep = {*names} - {name for workers, least in crews for name in workers[:least]}
        """Workers that do not run and are not to."""
        self.edition = 0
        """The newest edition of the weights."""
        self.editions: dict[m.Peer, int] = {}
        """The one that each worker has loaded."""
        self._unborn = set(self.asleep)
        self._first = [name for name in names if name not in self.asleep]
        self._expected: set[str] = set()
        """Workers that are dead and whose next life has not begun."""
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []

    # ---------------------------------------------------------------- time
    def run(self) -> None:
        """Run until all is quiet. Raises Violation."""
        scenario = self.scenario
        for name in self.peers:
            if name not in self.asleep:
                self._spawn(name)
        self._tick(self.launcher)
        for client in scenario.clients:
            self.at(client.at, self._open, client)
        for strike in scenario.strikes:
            self.at(strike.at, self.trouble.strike, strike)
        if scenario.drains is not None:
            self.at(scenario.drains, self.trouble.drain)
        for when in scenario.renewals:
            self.at(when, self.trouble.renew)
        for when, model, is_rest in scenario.rests:
            self.at(when, self.trouble.stand, model, is_rest)
        self.at(scenario.end, self._look)
        heap = self._heap
        while heap:
            self.now, count, do, given = heappop(heap)
            self.hash = hash((self.hash, self.now, count))
            do(*given)

    def at(self, when: float, do: Callable[..., None], *given: Any) -> None:
        """Have something done at a time."""
        self.events += 1
        heappush(self._heap, (when, self.events, do, given))

    def later(self, seconds: float, life: Life, do: Callable[..., None], *given: Any) -> None:
        """Have a life do something after so many seconds, if it lasts so long."""
        self.at(self.now + seconds, self._do, life, do, given)

    def _do(self, life: Life, do: Callable[..., None], given: tuple[Any, ...]) -> None:
        if life.is_over:
            return
        if life.inbox is not None:
            life.inbox.append((do, given))
            return
        do(*given)
        life.flush()

    def note(self, *what: Any) -> None:
        """Something that a reader of the trace wants to know."""
        text = " ".join(map(str, what))
        self.hash ^= crc32(text.encode())
        if self.trace is not None:
            self.trace.append(f"{self.now:8.4f}  {text}")

    def _look(self) -> None:
        """End the run if all is quiet."""
        if self.judge.is_quiet():
            self.judge.finish()
            self._heap.clear()
        elif self.now > self.scenario.end + LONGEST:
            self.judge.complain()
        else:
            self.at(self.now + LOOK, self._look)

    # ---------------------------------------------------------------- birth and death
    def _spawn(self, name: str) -> None:
        peer = self.peers[name]
        life: AnyLife
        if name in self.shards:
            life = ConductorLife(self, peer)
        elif name in self.scenario.fronts:
            life = FrontLife(self, peer)
        else:
            life = WorkerLife(self, peer, self.peers[self.shards.conductor(name)])
            life.core.edition = self.editions[peer] = self.edition
        roster = [LAUNCHER, *(one.peer for one in self.lives.values() if self.shards.is_met(name, one.peer.name))]
        self.lives[name] = life
        is_first = not peer.incarnation
        self.at(self.now + self.drawn.random() * (0.02 if is_first else UP_AFTER), self._up, life, roster)

    def _up(self, life: AnyLife, roster: list[m.Peer]) -> None:
        if not life.is_over:
            self.note(life.peer, "is up")
            life.is_up = True
            life.start(roster)
            life.flush()
            self.at(self.now + TICK * self.drawn.random(), self._tick, life)

    def _tick(self, life: Life) -> None:
        if life.is_over:
            return
        if life.inbox is None:
            life.turn()
        self.at(self.now + TICK, self._tick, life)

    def kill(self, peer: m.Peer, why: str) -> None:
        """End a life."""
        life = self.lives.get(peer.name)
        if life is None or life.peer != peer:
            return
        self.note(peer, "dies:", why)
        del self.lives[peer.name]
        self._expected.add(peer.name)
        life.is_over = True
        suspects = life.engine.suspects if isinstance(life, WorkerLife) else []
        self.judge.died(life, suspects)
        self.at(self.now + SEEN_AFTER * self.drawn.random(), self._seen, peer, why, suspects)

    def _seen(self, peer: m.Peer, why: str, suspects: list[m.Suspect]) -> None:
        """The launcher sees that a process is dead."""
        self.launcher.forget(peer)
        self.launcher.tell(m.Gone(peer, why, suspects), self.shards.conductor(peer.name))
        self.deaths[peer.name] += 1
        deaths = self.deaths[peer.name]
        wait = 0.0 if deaths == 1 else min(0.1 * 2 ** (deaths - 2), 1.0)
        self.at(self.now + wait, self._again, peer)

    def _again(self, peer: m.Peer) -> None:
        self._expected.discard(peer.name)
        if peer.name not in self.asleep:
            self.peers[peer.name] = m.Peer(peer.name, peer.incarnation + 1)
            self._spawn(peer.name)
        if peer.name in self.shards:  # it does not know of models that rest
            for name in self.shards.workers[peer.name]:
                if name in self._first:
                    self.want(name)

    def want(self, name: str) -> None:
        """Start a worker, if it does not run."""
        if name not in self.asleep:
            return
        self.note(name, "is wanted")
        self.asleep.discard(name)
        if name in self._unborn:
            self._unborn.discard(name)
            self._spawn(name)
        elif name not in self._expected:
            self._again(self.peers[name])

    def retire(self, peer: m.Peer) -> None:
        """End a worker that is not to be started again."""
        if self.peers[peer.name] == peer:
            self.asleep.add(peer.name)
            self.kill(peer, "nobody uses it any more")

    # ---------------------------------------------------------------- clients
    def _open(self, client: Client) -> None:
        front = self._front(client)
        if client.leaves is not None:
            self.at(client.leaves, self._leave, client)
        if client.slow_until:
            self.at(client.slow_until, self._take, client)
        for when, value in client.says:
            self.at(when, self._say, client, value)
        self.judge.opened(client)
        self._do(front, front.open, (client,))

    def _say(self, client: Client, value: int | None) -> None:
        front = self._front(client)
        self._do(front, front.tell, (client, value))

    def _leave(self, client: Client) -> None:
        front = self._front(client)
        self._do(front, front.leave, (client,))

    def _take(self, client: Client) -> None:
        front = self._front(client)
        self._do(front, front.took, (client,))

    def _front(self, client: Client) -> FrontLife:
        front = self.lives[client.front]
        assert isinstance(front, FrontLife)
        return front

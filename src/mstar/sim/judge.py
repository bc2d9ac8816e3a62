"""Whether what happens in a simulated world may happen. What clients see is judged by `history`.

Its complaints are numbered: I5 nothing is left, I6 the queue is bounded, I7 what is over is over, and what must not be
done twice is not, I9 requests end in time and as they should, I10 deaths are noticed in time, I12 nothing grows without
bound, I13 no request kills worker after worker, I15 nobody conducts the workers of another. I1 to I4 and I8 are those
of a history, I14 is in `comings`; I11: a seed gives one run.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from typing import TYPE_CHECKING, Any

from mstar.conductor.scaling import Scaling
from mstar.sim.comings import Comings
from mstar.sim.history import REFUSED, Violation
from mstar.sim.oracle import digest, expected
from mstar.sim.processes import AnyLife, ConductorLife, WorkerLife, stock_of
from mstar.sim.scenario import DISTURBING, PATIENCE, Client
from mstar.wire import messages as m
from mstar.worker.batches import Waiting
from mstar.worker.core import LEASE
from mstar.worker.early import Early

if TYPE_CHECKING:
    from mstar.sim.world import World

NOTICED = 1.6
"""A worker that does not answer is given up within so many seconds."""
ZOMBIE = 0.5
"""A worker that can be reached computes nothing for an attempt that has been over for so long."""
BEHIND = 4
"""How many emissions more than its window a client can get: those whose calls had begun."""
LATE = 0.4
"""How late a request may be told that its time is over when its conductor can do so."""
DELAYING = frozenset({"pause", "cut", "conductor", "drop", "delay"})
"""Trouble that keeps conductor and front end apart."""
DEADLY = 3
"""How many workers one request can kill under one conductor. One that is spread dies in several places at once."""
UNSEEN = frozenset({"kill", "cut", "pause", "drop", "delay"})
"""Trouble because of which a conductor may not know in time whom a worker died with."""
KEPT = frozenset(
    {
        *("served", "plans", "workers", "fronts", "buried", "crews", "asleep", "recent", "conductors"),
        *("_expected", "_first", "_tried", "_components", "_ended", "_cost", "_over", "_generations"),
    }
)
"""What cores may keep when there is nothing to do: it grows with the deployment, or has a bound of its own."""


class Judge:
    """Watches one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._over: dict[tuple[str, int], float] = {}
        self._deaths: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        self._crashes: Counter[str] = Counter()
        self.comings = Comings(world)
        self._clients = {client.rid: client for client in world.scenario.clients}

    # ---------------------------------------------------------------- clients
    def opened(self, client: Client) -> None:
        """A client asks."""
        streams, result, _ = expected(client)
        self.world.history.submit(self.world.now, client.rid, streams, result)

    def delivered(self, client: Client, kind: str) -> None:
        """A client was given an emission."""
        behind = client.given[kind] - client.taken.get(kind, 0)
        if behind > self.world.scenario.worker.window + BEHIND:
            raise Violation(f"I12 {client.rid} is given {behind} of {kind} that it did not take")

    def ended(self, client: Client, end: m.Finished | m.Refused) -> None:
        """A client was told how its request ended."""
        world = self.world
        if isinstance(end, m.Refused):
            status, result = REFUSED, b""
        else:
            status, result = end.status, digest(end.result.it)
        world.note("end", client.rid, status)
        world.history.end(world.now, client.rid, status, result)
        if world.now > client.at + client.patience + LATE and not world.scenario.kinds & DELAYING:
            raise Violation(f"I9 {client.rid} ended {status} after its time, {client.patience:.2f} s, was over")
        if not self._may_end(client, end, status):
            raise Violation(f"I9 {client.rid} of {client.model} with trap {client.ask.trap!r} ended with {end}")

    def _may_end(self, client: Client, end: Any, status: str) -> bool:
        world, kinds = self.world, self.world.scenario.kinds
        match status:
            case "ok":
                return not client.is_trapped
            case "failed":
                error = {"raise": "Sprung", "huge": "NeverFits"}.get(client.ask.trap)
                return client.is_trapped and end.error == error
            case "poison":
                return self._is_poison(client.rid)
            case "not_replayed":
                is_bound = client.model == "reach" or world.edition > 0
                return is_bound and bool(kinds & DISTURBING or "trap" in kinds)
            case "deadline":
                return client.patience < PATIENCE
            case "refused":
                if end.status == 429:
                    return "burst" in kinds or client.pace.first_s is not None
                return end.status == 503 and world.trouble.is_draining
            case _:
                return False

    def _is_poison(self, rid: str) -> bool:
        """Whether it was computed at two deaths at the same place, the second time alone."""
        deaths = self._deaths[rid]
        return any(
            abs(calls - other) <= 1 and 1 in (count, count_then)
            for number, (calls, count) in enumerate(deaths)
            for other, count_then in deaths[:number]
        )

    # ---------------------------------------------------------------- processes
    def delivers(self, client: Client, emit: m.Emit, count: int) -> None:
        """A front end gives a client so much because of this."""
        if count and emit.attempt < client.attempt and not client.says:  # who cuts a walk wants all of those before
            raise Violation(f"I7 {client.rid} was given what attempt {emit.attempt} made, after {client.attempt}")
        client.attempt = max(client.attempt, emit.attempt)

    def conducted(self, life: ConductorLife, message: m.Message, *, is_old: bool) -> None:
        """A conductor has dealt with a message; one that speaks of an attempt that is over, it has to ignore."""
        core = life.core
        if is_old and core.late == life.late:
            raise Violation(f"I7 {life.peer} heeds {message}, which is over")
        life.late = core.late
        if isinstance(message, m.Submit):
            if message.rid in core.requests:
                # Who was promised something may still be turned away while it waits.
                self.world.history.requests[message.rid].is_admitted = message.pace.first_s is None
                waiting = core.stock()["queue"] - sum(one.submit.after >= 0 for one in core.requests.values())
                if message.after < 0 and waiting > core.limits.queue:
                    raise Violation(f"I6 {message.rid} is the {waiting}th that waits")
        elif isinstance(message, m.Gone):
            for request in core.requests.values():
                if request.needs(message.peer):
                    raise Violation(f"I10 {request.rid} goes on with {message.peer}, which is gone")

    def over(self, end: m.End) -> None:
        """A conductor has ended an attempt."""
        self._over.setdefault((end.rid, end.attempt), self.world.now)

    def queues(self, life: WorkerLife) -> None:
        """A worker gives its engine a batch."""
        unheard = self.world.now - life.heard
        if unheard > LEASE:
            raise Violation(f"I7 {life.peer} goes on {unheard:.2f} s after it heard of its conductor")

    def computes(self, life: WorkerLife) -> None:
        """A worker begins with a batch."""
        world = self.world
        is_calm = not world.scenario.kinds & DISTURBING or world.now > world.scenario.end + 4.0
        for suspect in life.engine.suspects:
            over = self._over.get((suspect.rid, suspect.attempt), world.now)
            if is_calm and world.now - over > ZOMBIE:
                raise Violation(f"I7 {life.peer} computes for {suspect}, {world.now - over:.2f} s after its end")

    def released(self, life: WorkerLife, released: m.Released) -> None:
        """A worker says that nothing of an attempt is left."""
        for suspect in life.engine.suspects:
            if suspect.rid == released.rid and suspect.attempt == released.attempt:
                raise Violation(f"I7 {life.peer} says {released} and still computes for it")

    def died(self, life: AnyLife, suspects: list[m.Suspect]) -> None:
        """A process has died while it computed for these."""
        for suspect in suspects:
            self._deaths[suspect.rid].append((suspect.calls, len(suspects)))
        if not isinstance(life, WorkerLife):
            return
        clients = [self._clients[one.rid] for one in suspects]
        trapped = [client for client in clients if client.ask.trap == "crash" and client.model != "guide"]
        if len(trapped) == 1 and not self.world.scenario.kinds & UNSEEN:
            rid = trapped[0].rid
            self._crashes[rid] += 1
            conductor = self.world.peers[self.world.shards.conductor(trapped[0].model)]
            if self._crashes[rid] > DEADLY * (conductor.incarnation + 1):
                raise Violation(f"I13 {rid} has killed {self._crashes[rid]} workers")

    def paused(self, life: AnyLife, seconds: float) -> None:
        """A process stands still."""
        world = self.world
        if not isinstance(life, WorkerLife) or seconds <= NOTICED or "cut" in world.scenario.kinds:
            return
        conductor = world.lives.get(world.shards.conductor(life.peer.name))
        if isinstance(conductor, ConductorLife) and conductor.is_up and conductor.inbox is None:
            world.at(world.now + NOTICED, self._notice, life, conductor, world.now)

    def _notice(self, life: WorkerLife, conductor: ConductorLife, since: float) -> None:
        is_watched = not conductor.is_over and conductor.inbox is None and not life.is_over
        if is_watched and conductor.went_on < since and conductor.core.is_alive(life.peer):
            raise Violation(f"I10 {life.peer} has not answered for {NOTICED} s, and nobody has noticed")

    def drained(self, life: ConductorLife) -> None:
        """The conductor says that nothing is left."""
        if life.core.requests:
            raise Violation(f"I5 drained with {sorted(life.core.requests)} left")

    # ---------------------------------------------------------------- the end
    def is_quiet(self) -> bool:
        """Whether nothing is left to do anywhere."""
        return not self._left()

    def _left(self) -> list[str]:
        """What is still going on, or was left."""
        world = self.world
        history, lives = world.history, world.lives
        if len(history.requests) < len(world.scenario.clients):
            return ["not everybody has asked"]
        left = [f"{rid} is open" for rid in history.open()]
        names = [name for name in world.peers if name not in world.asleep]
        left += [f"{name} is not up" for name in names if name not in lives or not lives[name].is_up]
        if left:
            return left
        if world.trouble.is_draining and not world.launcher.is_drained:
            left.append("the launcher waits for Drained")
        for life in lives.values():
            stock = stock_of(life)
            if isinstance(life, ConductorLife):
                workers = [world.peers[name] for name in world.shards.workers[life.peer.name] if name in names]
                left += self.comings.excess(life)
                left += [f"the conductor does not know {peer}" for peer in workers if not life.core.is_alive(peer)]
                left += [f"the conductor has a load at {one.peer}" for one in life.core.workers.values() if one.load]
                del stock["workers"]
            elif isinstance(life, WorkerLife):
                stock["in the engine"] = len(life.engine.states) + (life.engine.batch is not None)
            left += [f"{life.peer} has {count} {what}" for what, count in stock.items() if count]
            left += [f"{life.peer} is paused"] if life.inbox is not None else []
        left += [f"the launcher has {world.launcher.unacked()} unacked"] if world.launcher.unacked() else []
        return left

    def complain(self) -> None:
        """It should have been quiet long ago."""
        left = self._left()
        number = "I9" if any("is open" in what for what in left) else "I5"
        raise Violation(f"{number} long after trouble ended: {', '.join(left)}")

    def finish(self) -> None:
        """All is quiet: look at what is known only now."""
        twice = [call for call, count in Counter(self.world.once).items() if count > 1]
        if twice:
            raise Violation(f"I7 a call that must not be repeated was: {twice}")
        for life in self.world.lives.values():
            parts = [
                life.core,
                *(one for one in vars(life.core).values() if isinstance(one, Early | Waiting | Scaling)),
            ]
            for part in parts:
                for name, held in vars(part).items():
                    if name not in KEPT and isinstance(held, dict | list | deque | set) and held:
                        raise Violation(f"I12 {life.peer} is left with {len(held)} in {type(part).__name__}.{name}")

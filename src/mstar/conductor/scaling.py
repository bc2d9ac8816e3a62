"""Which workers should run: as many as there is work for, and all of one edition of the weights.

A worker that is to go *leaves*: it gets no new requests, what runs there may end, states go elsewhere with the next
walk that uses them. When nothing of any request is there it is dismissed, and the launcher ends it. Whoever is still
there after a while is tried again elsewhere, unless that cannot be.

When there is a new edition, workers are replaced one by one. First each crew gets one that has it, then the others
leave. A request stays with the edition that it began with.

All of this happens on ticks. A deployment whose crews all run whole sends nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from mstar.conductor import course
from mstar.conductor.crews import Crew, aim, crews_of, shrink
from mstar.conductor.rests import Rests
from mstar.conductor.starts import Starts
from mstar.wire import messages as m

if TYPE_CHECKING:
    from mstar.conductor.core import ConductorCore, Served, Worker
    from mstar.conductor.requests import Request
    from mstar.plan.tables import Plan

LOOK = 0.2
"""Seconds between two looks: workers say so often what they have to do."""
SETTLED = 2.0
"""A conductor that has started waits so many seconds until it knows who is there."""
LINGER = 1.0
"""So many seconds after nothing is there any more a worker is dismissed: what it said last has arrived."""
RECENT = 4096
"""Of so many requests that ended last it is known which edition they had."""


class Scaling:
    """Who should run, under one conductor."""

    def __init__(self, launcher: m.Peer, served: Mapping[str, Served]) -> None:
        self.crews = crews_of(served)
        self.rests = Rests(self.crews)
        self.edition = 0
        """The newest edition that is known of."""
        self.asleep: set[str] = set()
        """Workers that nobody is sent to: they do not run, or will not for long."""
        self.retired: dict[str, m.Peer] = {}
        """Workers that were dismissed and have not ended."""
        self.recent: dict[str, int] = {}
        """With which edition requests were served that have ended: a client may miss something and come again."""
        self.starts = Starts()
        self._launcher = launcher
        self._is_elastic = any(crew.is_elastic for crew in self.crews)
        self._is_renewing = False
        self._is_even = True
        """Whether all workers have one edition, and none leaves."""
        self._free: dict[str, float] = {}
        """Since when nothing is at workers that leave."""
        self._began: float | None = None
        self._is_settled = False
        self._looked = float("-inf")

    # ---------------------------------------------------------------- what happens
    @property
    def is_active(self) -> bool:
        """Whether there is anything to decide."""
        return self._is_elastic or self._is_renewing or bool(self.rests)

    def renew(self, edition: int) -> None:
        """There is a new edition, which workers that are started load."""
        if edition >= self.edition:
            self.edition = edition
            self._is_renewing = True

    def ended(self, request: Request) -> None:
        """A request is over."""
        if request.edition is not None:
            self.recent[request.rid] = request.edition
            if len(self.recent) > RECENT:
                del self.recent[next(iter(self.recent))]

    def came(self, core: ConductorCore, now: float, worker: Worker) -> None:
        """A worker is up."""
        name = worker.peer.name
        self.starts.came(now, name)
        self.asleep.discard(name)
        self.edition = max(self.edition, worker.edition)
        self._is_renewing |= any(one.edition < self.edition for one in core.workers.values())
        self._compare(core)

    def lost(self, core: ConductorCore, now: float, peer: m.Peer) -> None:
        """A worker is no longer there; unless it was dismissed, the launcher starts it again."""
        self._free.pop(peer.name, None)
        if self.is_active and self.retired.get(peer.name) != peer:
            self.starts.lost(now, peer.name)
        self._compare(core)

    def _compare(self, core: ConductorCore) -> None:
        workers = core.workers.values()
        self._is_even = all(one.leaves is None and one.edition == self.edition for one in workers)

    def gone(self, peer: m.Peer) -> bool:
        """A process has ended; whether it was dismissed before."""
        if self.retired.get(peer.name) == peer:
            del self.retired[peer.name]
            return True
        self.starts.died(peer.name)
        return False

    def stock(self, core: ConductorCore) -> dict[str, int]:
        """Workers that are wanted and not up, those that leave, those that are being ended; and each by its name."""
        leaving = {name for name, worker in core.workers.items() if worker.leaves is not None}
        wanted = self.starts.since
        counts = {"wanted": len(wanted), "leaving": len(leaving), "retired": len(self.retired)}
        if self.is_active:
            for name in dict.fromkeys(name for crew in self.crews for name in crew.workers):
                counts |= {f"wanted {name}": int(name in wanted), f"leaving {name}": int(name in leaving)}
        return counts

    # ---------------------------------------------------------------- seats
    def seatable(self, core: ConductorCore, request: Request, plan: Plan) -> dict[str, m.Peer]:
        """The workers that a walk may use. Of those that leave, only where no other has its edition."""
        if self._is_even and request.edition in (None, self.edition):
            return {name: worker.peer for name, worker in core.workers.items()}
        edition = request.edition if request.edition is not None else _edition_for(core, request)
        fit = [worker for worker in core.workers.values() if worker.edition == edition]
        found = {worker.peer.name: worker.peer for worker in fit if worker.leaves is None}
        if request.edition is not None:
            for spot in plan.spots:
                if not any(name in found for name in spot.workers):
                    found |= {one.peer.name: one.peer for one in fit if one.peer.name in spot.workers}
        return found

    def is_outdated(self, core: ConductorCore, request: Request, plan: Plan) -> bool:
        """Whether nobody has the edition that a request began with, and nobody will."""
        if request.edition is None or request.edition >= self.edition:
            return False
        names = {name for name, worker in core.workers.items() if worker.edition == request.edition}
        return any(names.isdisjoint(spot.workers) for spot in plan.spots)

    def is_coming(self, core: ConductorCore, plan: Plan) -> bool:
        """Whether somebody starts who could take a seat, or leaves and is then started again."""
        leaving = {name for name, worker in core.workers.items() if worker.leaves is not None}
        names = {name for spot in plan.spots for name in spot.workers}
        return not names.isdisjoint(leaving | self.starts.since.keys() | self.retired.keys())

    # ---------------------------------------------------------------- on ticks
    def step(self, core: ConductorCore, now: float) -> None:
        """See who is needed, and who is not."""
        if not self.is_active or core.limits.is_fixed or now - self._looked < LOOK:
            return
        self._looked, was_even = now, self._is_even
        is_settled = self._settle(core, now)
        self._gather(core, now, is_settled=is_settled)
        if is_settled:
            if self._is_renewing:
                self._renew(core, now)
            else:
                for crew in self.crews:
                    shrink(core, now, crew, self.starts.took_s)
                _thin(core, now)
            self._dismiss(core, now)
        there = {name for name, worker in core.workers.items() if worker.leaves is None} | self.starts.since.keys()
        self.asleep.clear()
        self.asleep.update({name for crew in self.crews if crew.is_elastic for name in crew.workers} - there)
        self._compare(core)
        if not (was_even and self._is_even):  # who may sit where may have changed
            course.place_waiting(core)

    def _gather(self, core: ConductorCore, now: float, *, is_settled: bool) -> None:
        """Have as many started as there is work for."""
        models = {request.submit.model for request in core.requests.values()} | self.rests.waking(core)
        waits = [one.submit.model for one in core.requests.values() if one.route is None]
        self.starts.expire(now)
        for crew in self.crews:
            if not models.isdisjoint(crew.models):
                crew.asked = now
            if crew.is_elastic:
                aim(core, now, crew, waits, self.starts.since)
            if is_settled or (crew.asked == now and not crew.running(core)):
                self._fill(core, now, crew)

    def _settle(self, core: ConductorCore, now: float) -> bool:
        """Whether it is known by now who is there."""
        if self._began is None:
            self._began = now
        is_settled = now - self._began >= min(SETTLED, core.limits.calm)
        if is_settled and not self._is_settled:
            self._is_settled = True
            for crew in self.crews:  # they were started for a reason, which a conductor before this one knew
                crew.target = max(crew.target, len(crew.running(core)))
        return is_settled

    def _fill(self, core: ConductorCore, now: float, crew: Crew) -> None:
        """Have as many started as are lacking; one that leaves, and could stay, comes first."""
        lacking = crew.target - len(crew.running(core)) - len(self.starts.awaited(now, crew.workers))
        for worker in [core.workers[name] for name in crew.workers if name in core.workers]:
            if lacking > 0 and worker.leaves is not None and worker.edition == self.edition:
                worker.leaves = None
                self._free.pop(worker.peer.name, None)
                lacking -= 1
        for name in self._spare(core, crew)[: max(0, lacking)]:
            self._want(core, now, name)
        for name in self.starts.again(now, crew.workers):
            core.send(self._launcher, m.Wanted(name))

    def _spare(self, core: ConductorCore, crew: Crew) -> list[str]:
        """Those that do not run, the one that was not wanted for the longest time first."""
        taken = core.workers.keys() | self.starts.since.keys() | self.retired.keys()
        return self.starts.ordered(name for name in crew.workers if name not in taken)

    def _want(self, core: ConductorCore, now: float, name: str) -> None:
        self.starts.want(now, name)
        core.send(self._launcher, m.Wanted(name))

    def _renew(self, core: ConductorCore, now: float) -> None:
        """Replace one worker that has an older edition, when nothing else is under way."""
        is_awaited = bool(self.starts.awaited(now, self.starts.since))
        if is_awaited or self.retired or any(worker.leaves is not None for worker in core.workers.values()):
            return
        stale = {name for name, worker in core.workers.items() if worker.edition < self.edition}
        if not stale:
            self._is_renewing = False
            core.send(self._launcher, m.Renewed(self.edition))
            return
        crews = [crew for crew in self.crews if not stale.isdisjoint(crew.workers)]
        behind = [crew for crew in crews if all(worker.edition < self.edition for worker in crew.running(core))]
        crew = (behind or crews)[0]
        spare = self._spare(core, crew)
        if spare and len(crew.running(core)) <= crew.target:
            self._want(core, now, spare[0])
        else:
            old = [worker for worker in crew.running(core) if worker.edition < self.edition]
            min(old, key=lambda worker: (worker.edition, worker.load)).leaves = now

    # ---------------------------------------------------------------- leaving
    def _dismiss(self, core: ConductorCore, now: float) -> None:
        """Have those ended that leave and hold nothing."""
        for worker in [worker for worker in core.workers.values() if worker.leaves is not None]:
            peer = worker.peer
            if worker.edition == self.edition and not _is_dispensable(core, worker):
                continue  # it will be asked to stay
            if any(_keeps(core, now, request, worker) for request in core.requests.values()):
                self._free.pop(peer.name, None)
                continue
            is_needed = any(request.needs(peer) for request in core.requests.values())
            if is_needed or now - self._free.setdefault(peer.name, now) >= LINGER:
                self.retired[peer.name] = peer
                core.send(self._launcher, m.Retire(peer))
                core.lose(now, peer, (), f"worker {peer} was to leave")


def _edition_for(core: ConductorCore, request: Request) -> int | None:
    """The edition that a request begins with: the newest that is everywhere; the oldest if it began before."""
    is_again = request.submit.after >= 0
    editions = sorted({worker.edition for worker in core.workers.values()}, reverse=not is_again)
    crews = [crew.running(core) for crew in core.scaling.crews if request.submit.model in crew.models]
    for edition in editions:
        is_newest = edition == core.scaling.edition  # whoever is started will have that
        if all(any(one.edition == edition for one in crew) or (is_newest and not crew) for crew in crews):
            return edition
    return None


def _thin(core: ConductorCore, now: float) -> None:
    """Have those leave that no crew needs, the idlest first."""
    for crew in core.scaling.crews:
        running = crew.running(core)
        free = [worker for worker in running if _is_dispensable(core, worker)] if len(running) > crew.target else []
        if free:
            min(reversed(free), key=lambda worker: worker.load).leaves = now


def _is_dispensable(core: ConductorCore, worker: Worker) -> bool:
    """Whether all crews of a worker that stays have more than they should, or of one that leaves, enough."""
    more = worker.leaves is None
    crews = [crew for crew in core.scaling.crews if worker.peer.name in crew.workers]
    return all(len(crew.running(core)) >= crew.target + more for crew in crews)


def _keeps(core: ConductorCore, now: float, request: Request, worker: Worker) -> bool:
    """Whether a worker that leaves has to stay for a request."""
    if request.edition == worker.edition:
        crews = [crew for crew in core.scaling.crews if request.submit.model in crew.models]
        others = [crew.running(core) for crew in crews if worker.peer.name in crew.workers]
        if any(all(one.edition != worker.edition for one in crew) for crew in others):
            return True  # nobody else could go on with it
    if worker.leaves is None or not request.needs(worker.peer):
        return False
    return now - worker.leaves < core.limits.grace or course.is_unrepeatable(core, request)

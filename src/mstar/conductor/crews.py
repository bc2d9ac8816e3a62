"""Crews: workers that hold the same components. How many of each should run, by what they have to do.

Nothing is sent here: see `scaling`. A crew that always runs whole is one too, because its workers are replaced one by
one when there are new weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, inf
from typing import TYPE_CHECKING

from mstar.conductor.admission import FULL

if TYPE_CHECKING:
    from mstar.conductor.core import ConductorCore, Served, Worker

ROOM = 0.6
"""So much of each worker streams may need once there is one worker less: what comes next has room, and a crew that has
shrunk does not grow at once."""
BACKLOG = 3
"""So many batches that wait at each worker, time and again, are too much to do: calls wait longer than they run."""
LATE = 0.5
"""For so many seconds a late emission says that there is too much to do; a crew that grows was late again and again."""
SOONER = 5.0
"""A crew grows so many times sooner than it shrinks: clients wait for the one, and only money for the other."""
IDLE = 2.0
"""The last worker stays so many times longer: whoever asks next waits until one is up."""
STARTS = 3.0
"""Fewer have to do for so many times as long as a start takes, so that nobody waits for what has just been ended."""


@dataclass(eq=False, slots=True)
class Crew:
    """Some workers of which a request uses one, and what is known of their work."""

    workers: tuple[str, ...]
    planned: int
    """So many of them always run, but while all its models rest."""
    models: set[str] = field(default_factory=set[str])
    target: int = 0
    """How many should run."""
    is_resting: bool = False
    """Whether all its models were told to rest."""
    fits: int = 1
    """How many walks at each of them were no trouble."""
    asked: float = -inf
    """When there last was a request that could use it."""
    pressed: float = inf
    """Since when it has too much to do."""
    eased: float = inf
    """Since when nothing waits, or since the last look at it."""
    fewest: float = inf
    """How many walks each worker had since then, at least."""
    calm: float = inf
    """Since when fewer would do."""
    late: int = 0
    """How many emissions had been late when it was last looked at."""
    was_late: float = -inf
    """When it was found that there were more."""

    @property
    def least(self) -> int:
        """How many of its workers have to run now."""
        return 0 if self.is_resting else self.planned

    @property
    def is_elastic(self) -> bool:
        """Whether it may have fewer workers than it names."""
        return self.least < len(self.workers)

    def running(self, core: ConductorCore) -> list[Worker]:
        """Its workers that are there and stay."""
        found = (core.workers.get(name) for name in self.workers)
        return [worker for worker in found if worker is not None and worker.leaves is None]


def crews_of(served: Mapping[str, Served]) -> list[Crew]:
    """The crews of all models: one for all entries of placements that name the same workers."""
    found: dict[tuple[str, ...], Crew] = {}
    for model, one in served.items():
        for workers, least in one.plans.crews:
            crew = found.setdefault(workers, Crew(workers, least))
            crew.planned = max(crew.planned, least)
            crew.models.add(model)
    always = {name for crew in found.values() if not crew.is_elastic for name in crew.workers}
    for model, one in served.items():  # a walk that calls nothing has a spot that no entry names
        for spot in (spot for plan in one.plans.walks.values() for spot in plan.spots):
            crew = Crew(spot.workers, sum(name in always for name in spot.workers))
            found.setdefault(spot.workers, crew).models.add(model)
    for crew in found.values():
        crew.target = crew.least
    return list(found.values())


def aim(core: ConductorCore, now: float, crew: Crew, waits: Sequence[str], starting: Iterable[str]) -> None:
    """Set how many of a crew should run; requests of the models that `waits` names have not begun."""
    if crew.is_resting:  # what was there before may end; whoever comes now wakes it
        crew.target = max(1, crew.target) if crew.asked == now else 0
        return
    running = crew.running(core)
    if crew.asked == now and not crew.target:
        crew.target = 1
    loads = [load for worker in running if (load := core.admission.load_of(worker.peer.name)) is not None]
    share, waiting = sum(load.share for load in loads), sum(load.waiting for load in loads)
    walks, count = sum(worker.load for worker in running), max(1, len(running))
    late = sum(load.late for load in loads)
    if late > crew.late:
        crew.was_late = now
    crew.late = late
    is_late = now - crew.was_late < LATE and bool(walks)
    is_queued = any(model in crew.models for model in waits)
    is_pressed = bool(running) and (share > FULL * count or waiting >= BACKLOG * count or is_late or is_queued)
    crew.pressed = min(crew.pressed, now) if is_pressed else inf
    is_worn = now - crew.pressed > LATE  # what was late once does not count
    _learn(crew, now, core.limits.calm, inf if waiting or is_worn else walks / count)
    is_growing = any(name in crew.workers for name in starting) or len(running) < crew.target
    if now - crew.pressed >= core.limits.calm / SOONER and not is_growing:
        crew.target = min(len(crew.workers), max(crew.target + 1, ceil(share / FULL)))
        crew.fits = max(1, min(crew.fits, ceil(walks / count) - 1))
        crew.pressed = inf
    fewer = crew.target - 1
    has_room = share <= ROOM * fewer and walks <= crew.fits * fewer and waiting < count and not is_queued
    is_enough = fewer >= crew.least and (has_room and not is_worn if fewer else crew.asked < now)
    crew.calm = min(crew.calm, now) if is_enough else inf


def _learn(crew: Crew, now: float, calm: float, walks: float) -> None:
    """Take note of how many walks at each worker are no trouble for some time; infinite if now there is some."""
    if walks == inf:
        crew.eased, crew.fewest = inf, inf
        return
    crew.eased, crew.fewest = min(crew.eased, now), min(crew.fewest, walks)
    if now - crew.eased >= calm:
        crew.fits = max(crew.fits, ceil(crew.fewest))
        crew.eased, crew.fewest = now, inf


def shrink(core: ConductorCore, now: float, crew: Crew, start_s: float) -> None:
    """Want one worker less, if that would have done for long enough; starts take so many seconds."""
    wait = max(core.limits.calm, STARTS * start_s) * (1.0 if crew.target > 1 else IDLE)
    if now - crew.calm >= wait:
        crew.target -= 1
        crew.calm = inf

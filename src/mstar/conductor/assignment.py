"""Which worker takes which seat of a walk: the one that has its states, else the one with the least to do."""

from __future__ import annotations

from collections.abc import Mapping

from mstar.conductor.requests import WalkRun
from mstar.plan.tables import Plan
from mstar.wire.messages import Peer


def assign_workers(walk_run: WalkRun, alive: Mapping[str, Peer], load: Mapping[str, int]) -> tuple[Peer, ...] | None:
    """Who sits where, among the workers that are there; None while there is nobody for some seat."""
    held = _state_workers(walk_run)
    chosen: list[Peer] = []
    first: dict[tuple[str, ...], int] = {}
    for number, spot in enumerate(walk_run.plan.worker_sets):
        able = [name for name in spot.workers if name in alive]
        if not able:
            return None
        at = held.get(number)
        if at is not None and at.name in able and alive[at.name] == at:
            chosen.append(at)
            continue
        # States of one request that are spread go to different workers: they count on from where the first one went.
        if spot.workers not in first:
            first[spot.workers] = min(range(len(able)), key=lambda i: load.get(able[i], 0))
        chosen.append(alive[able[(first[spot.workers] + spot.spread_index) % len(able)]])
    return tuple(chosen)


def _state_workers(walk_run: WalkRun) -> dict[int, Peer]:
    """For each seat, the worker that holds the first state it begins with."""
    handles = walk_run.handles
    found: dict[int, Peer] = {}
    for part in walk_run.plan.programs:
        for index, _ in part.inputs:
            kept = handles[index].location if index in handles else None
            if kept is not None:
                found.setdefault(part.seat, kept.peer)
    return found


def inputs_by_worker(plan: Plan, seats: tuple[Peer, ...]) -> dict[Peer, set[int]]:
    """Every worker that takes part, and which inputs it needs."""
    found: dict[Peer, set[int]] = {}
    for part, peer in zip(plan.programs, seats, strict=True):
        found.setdefault(peer, set()).update(index for index, _ in part.inputs)
    return found

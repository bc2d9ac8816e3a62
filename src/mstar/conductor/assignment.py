"""Assignment of workers to the seats of a walk: state affinity first, then least loaded.

A seat is a partition of a walk that one worker executes. Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from mstar.conductor.requests import WalkRun
from mstar.plan.tables import Plan
from mstar.wire.messages import Peer


def assign_workers(
    walk_run: WalkRun, eligible: Mapping[str, Peer], load: Mapping[str, int], unresponsive: Set[str] = frozenset()
) -> tuple[Peer, ...] | None:
    """Choose a worker for each seat; return None while some seat has no eligible worker.

    1. A seat that starts with a state goes to the worker that holds the state, if that worker is eligible.
    2. Other seats go to the worker with the fewest running walks. An unresponsive worker is chosen only if there is no
       other: it starts the walk when it is back.
    3. Seats with a spread index are distributed round robin, starting at the worker of rule 2.
    """
    state_workers = _state_workers(walk_run)
    chosen: list[Peer] = []
    least_loaded: dict[tuple[str, ...], int] = {}
    for seat, worker_set in enumerate(walk_run.plan.worker_sets):
        names = [name for name in worker_set.workers if name in eligible]
        if not names:
            return None
        peer = state_workers.get(seat)
        if peer is not None and peer.worker in names and eligible[peer.worker] == peer:
            chosen.append(peer)
            continue
        names = [name for name in names if name not in unresponsive] or names
        if worker_set.workers not in least_loaded:
            least_loaded[worker_set.workers] = min(range(len(names)), key=lambda i: load.get(names[i], 0))
        index = (least_loaded[worker_set.workers] + worker_set.spread_index) % len(names)
        chosen.append(eligible[names[index]])
    return tuple(chosen)


def _state_workers(walk_run: WalkRun) -> dict[int, Peer]:
    """For each seat, the worker that holds the first state it starts with."""
    handles = walk_run.handles
    workers: dict[int, Peer] = {}
    for program in walk_run.plan.programs:
        for index, _ in program.inputs:
            location = handles[index].location if index in handles else None
            if location is not None:
                workers.setdefault(program.seat, location.peer)
    return workers


def inputs_by_worker(plan: Plan, seats: tuple[Peer, ...]) -> dict[Peer, set[int]]:
    """For each worker that takes part, the indices of the inputs it needs."""
    inputs: dict[Peer, set[int]] = {}
    for program, peer in zip(plan.programs, seats, strict=True):
        inputs.setdefault(peer, set()).update(index for index, _ in program.inputs)
    return inputs

"""Assignment of workers to the seats of a walk: state affinity first, then least loaded.

A seat is a partition of a walk that one worker executes. Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping

from mstar.conductor.dispatch.eligible_workers import EligibleWorkers
from mstar.conductor.requests import WalkRun
from mstar.plan.tables import Plan
from mstar.wire.messages import Peer


def assign_workers(walk_run: WalkRun, eligible: EligibleWorkers) -> tuple[Peer, ...] | None:
    """Choose a worker for each seat; return None while some seat has no eligible worker.

    1. A seat that starts with a state goes to the worker that holds the state or, if that one is not eligible, to the
       responsive worker that was sent parts of it.
    2. Other seats go to the worker with the fewest running walks. An unresponsive worker is chosen only if there is no
       other: it starts the walk when it is back.
    3. Seats with a spread index are distributed round robin, starting at the worker of rule 2.
    """
    state_workers = _state_workers(walk_run)
    chosen: list[Peer] = []
    for seat, worker_set in enumerate(walk_run.plan.worker_sets):
        candidates = eligible.of(worker_set.workers)
        if not candidates.names:
            return None
        holder, sent_ahead = state_workers.get(seat, (None, None))
        if sent_ahead in eligible.unresponsive:
            sent_ahead = None
        if preferred := [
            peer for peer in (holder, sent_ahead) if peer is not None and candidates.peers.get(peer.worker) == peer
        ]:
            chosen.append(preferred[0])
            continue
        index = (candidates.least_loaded() + worker_set.spread_index) % len(candidates.names)
        chosen.append(candidates.peers[candidates.names[index]])
    return tuple(chosen)


def _state_workers(walk_run: WalkRun) -> dict[int, tuple[Peer, Peer | None]]:
    """For each seat, the worker that holds the first state it starts with, and the one that was sent parts of it."""
    handles = walk_run.handles
    workers: dict[int, tuple[Peer, Peer | None]] = {}
    for program in walk_run.plan.programs:
        for index, _ in program.inputs:
            handle = handles.get(index)
            if handle is not None and handle.location is not None and program.seat not in workers:
                workers[program.seat] = handle.location.peer, handle.next_worker
    return workers


def next_workers(
    walk_run: WalkRun,
    seats: tuple[Peer, ...],
    split_components: Mapping[str, tuple[tuple[str, ...], ...]],
    eligible: EligibleWorkers,
) -> dict[int, Peer]:
    """By input index, the worker to which a state must move if a walk uses it that its worker does not run.

    Of several workers, the responsive one with the fewest running walks.
    """
    chosen: dict[int, Peer] = {}
    handles = walk_run.handles
    for program, peer in zip(walk_run.plan.programs, seats, strict=True):
        for index in [index for index, _ in program.inputs if index in handles]:
            worker_sets = split_components.get(handles[index].component, ())
            others = (eligible.of(names) for names in worker_sets if peer.worker not in names)
            if candidates := next((each for each in others if each.has_responsive), None):
                chosen[index] = candidates.peers[candidates.names[candidates.least_loaded()]]
    return chosen


def inputs_by_worker(plan: Plan, seats: tuple[Peer, ...]) -> dict[Peer, set[int]]:
    """For each worker that takes part, the indices of the inputs it needs."""
    inputs: dict[Peer, set[int]] = {}
    for program, peer in zip(plan.programs, seats, strict=True):
        inputs.setdefault(peer, set()).update(index for index, _ in program.inputs)
    return inputs

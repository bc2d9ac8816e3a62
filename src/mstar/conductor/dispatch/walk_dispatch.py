"""Dispatch of walks to workers: assignment of seats, start messages, state transfers, and collection of results.

Knows nothing about routes, retries or admission; see `request_lifecycle`.
"""

from __future__ import annotations

from typing import Any

from mstar.conductor.dispatch.assignment import assign_workers, inputs_by_worker, next_workers
from mstar.conductor.dispatch.eligible_workers import EligibleWorkers
from mstar.conductor.dispatch.waiting_walks import WaitingWalks
from mstar.conductor.membership import Membership
from mstar.conductor.outbox import Outbox
from mstar.conductor.request_states import StateHandle, StateLocation
from mstar.conductor.requests import Request, WalkResult, WalkRun
from mstar.conductor.scaling.weights_versions import WeightsVersions
from mstar.conductor.spans import RequestSpans
from mstar.failpoints import hit
from mstar.plan.tables import Plan
from mstar.wire import messages as m


class WalkDispatcher:
    """Starts walks on workers and ends them. Owns the count of running walks of each worker."""

    def __init__(self, membership: Membership, versions: WeightsVersions, outbox: Outbox, spans: RequestSpans) -> None:
        self._membership = membership
        self._versions = versions
        self._outbox = outbox
        self._spans = spans
        self._eligible = EligibleWorkers({})
        """The workers that the last walk could use."""
        self.waiting = WaitingWalks()
        """Requests whose walk had no eligible worker."""

    def place(self, now: float, request: Request) -> None:
        """Start the walk of a request if every seat has an eligible worker; otherwise leave it waiting."""
        hit("conductor.place")
        run = request.walk_run
        assert run is not None
        workers = self._membership.workers
        eligible = self._eligible_workers(request, run.plan)
        seats = assign_workers(run, eligible)
        if seats is None:
            self.waiting.add(request)
            return
        self.waiting.remove(request.rid)
        run.seats, run.pending_seats = seats, set(range(len(seats)))
        if seats:
            self._versions.set_version(request, workers[seats[0].name].weights_version)
        request.has_emitted |= run.call.name in request.model.emitting_walks
        self._spans.on_walk_started(request)
        self._send_forks(request)
        self._free_dropped_states(request)
        totals, moves = request.totals, dict[int, m.Peer]()
        if request.model.split_components:
            moves = next_workers(run, seats, request.model.split_components, eligible)
            for index, peer in moves.items():
                run.handles[index].next_worker = peer
        for peer, indices in inputs_by_worker(run.plan, seats).items():
            workers[peer.name].running_walks += 1
            eligible.on_load_changed(peer.worker)
            workers[peer.name].add(request)
            request.workers.add(peer)
            inputs = {index: self._walk_input(request, run, index, peer) for index in sorted(indices)}
            self._outbox.send(peer, _start_message(now, request, run, inputs, totals, moves))
        for peer in self._membership.unresponsive:
            if request.needs(peer):
                workers[peer.name].unchecked[request.rid] = request

    def start_lookahead(self, now: float, request: Request, run: WalkRun) -> bool:
        """Start a walk that can be dropped, if workers that respond hold all its states. It counts as no load."""
        hit("conductor.start_lookahead")
        workers = self._membership.workers
        seats = assign_workers(run, self._eligible_workers(request, run.plan))
        if not seats:
            return False
        inputs = inputs_by_worker(run.plan, seats)
        for peer, indices in inputs.items():
            locations = [run.handles[index].location for index in indices if index in run.handles]
            is_elsewhere = any(location is not None and location.peer != peer for location in locations)
            if is_elsewhere or not self._membership.is_responsive(peer):
                return False
        run.seats, run.pending_seats = seats, set(range(len(seats)))
        self._versions.set_version(request, workers[seats[0].name].weights_version)
        self._send_forks(request)
        for peer, indices in inputs.items():
            workers[peer.name].add(request)
            request.workers.add(peer)
            walk_inputs = {index: self._walk_input(request, run, index, peer) for index in sorted(indices)}
            self._outbox.send(peer, _start_message(now, request, run, walk_inputs, {}, {}))
        return True

    def are_responsive(self, run: WalkRun) -> bool:
        """Return whether all workers of a walk respond."""
        return all(map(self._membership.is_responsive, run.seats))

    def commit_lookahead(self, request: Request, run: WalkRun) -> None:
        """Make a lookahead the walk that the route awaits."""
        request.walk_run = run
        self._spans.on_walk_started(request)
        for peer in set(run.seats):
            worker = self._membership.workers[peer.name]
            worker.running_walks += 1
            self._eligible.on_load_changed(peer.worker)
            worker.add(request)
            self._outbox.send(peer, m.CommitLookahead(request.rid, request.attempt, run.walk_index))

    def drop_lookahead(self, request: Request, run: WalkRun) -> None:
        """Have the workers of a lookahead free everything held for it."""
        for peer in dict.fromkeys(run.seats):
            if self._membership.is_alive(peer):
                self._outbox.send(peer, m.DropLookahead(request.rid, request.attempt, run.walk_index))

    def free_dropped_states(self, request: Request) -> None:
        """Free the states that the route has dropped, without waiting for its next walk."""
        self._send_forks(request)
        self._free_dropped_states(request)

    def can_place(self, request: Request) -> bool:
        """Return whether every seat of the walk of a request has an eligible worker."""
        run = request.walk_run
        assert run is not None
        eligible = self._eligible_workers(request, run.plan)
        return all(eligible.of(worker_set.workers).names for worker_set in run.plan.worker_sets)

    def _eligible_workers(self, request: Request, plan: Plan) -> EligibleWorkers:
        """The workers that a walk of a request can use: as before, if the fleet has not changed."""
        peers, unresponsive = self._versions.eligible_workers(request, plan), self._membership.unresponsive
        if peers is not self._eligible.peers or unresponsive is not self._eligible.unresponsive:
            workers = self._membership.workers
            self._eligible = EligibleWorkers(peers, unresponsive, lambda name: workers[peers[name].name].running_walks)
        return self._eligible

    def _send_forks(self, request: Request) -> None:
        for original, copy in request.states.pending_forks:
            order = m.ForkState(request.rid, request.attempt, original.number, copy.number)
            self._outbox.send(original.peer, order)
        request.states.pending_forks.clear()

    def _free_dropped_states(self, request: Request) -> None:
        for location in request.states.dropped:
            self._free(request, location)
        request.states.dropped.clear()

    def _free(self, request: Request, state: StateLocation) -> None:
        if self._membership.is_alive(state.peer):
            self._outbox.send(state.peer, m.FreeStates(request.rid, request.attempt, (state.number,)))

    def _walk_input(self, request: Request, run: WalkRun, index: int, peer: m.Peer) -> m.WalkInput:
        """Describe an input for one worker; have a state sent there if another worker holds it."""
        value = run.call.arguments[run.plan.input_names[index]]
        if not isinstance(value, StateHandle):
            return m.ValueInput(m.Value(value))
        location = value.location
        if location is None:
            return m.NewState(value.component, value.kind)
        if location.peer == peer:
            return m.LocalState(location.number)
        order = m.SendState(request.rid, request.attempt, location.number, peer, run.walk_index, index)
        self._outbox.send(location.peer, order)
        return m.IncomingState()

    def are_states_alive(self, request: Request) -> bool:
        """Return whether the workers of all states of a request are alive and respond."""
        return all(self._membership.is_responsive(location.peer) for location in request.states.locations())

    def can_move(self, request: Request, peer: m.Peer) -> bool:
        """Return whether the walk of a request waits for an unresponsive worker, and other workers can repeat it.

        All walks of its model must have other workers: a restarted route begins with its first walk.
        """
        run = request.walk_run
        if run is None or run.is_waiting or not request.is_retryable:
            return False
        handles = run.handles.values()
        is_there = peer in run.seats or any(handle.location and handle.location.peer == peer for handle in handles)
        if not is_there:
            return False
        for plan in request.model.plans.walks.values():
            eligible = self._eligible_workers(request, plan)
            if not all(eligible.of(worker_set.workers).has_responsive for worker_set in plan.worker_sets):
                return False
        return True

    def release_workers(self, run: WalkRun) -> None:
        """Take a walk off the load of its workers."""
        hit("conductor.release_workers")
        for peer in set(run.seats):
            if self._membership.is_alive(peer):
                self._membership.workers[peer.name].running_walks -= 1
                self._eligible.on_load_changed(peer.worker)
        run.seats = ()

    def complete(self, request: Request, run: WalkRun) -> Any:
        """Record the result of a walk whose seats are all done, and return what its route receives.

        The handles of input states move to their last version; superseded versions are freed.
        """
        self._spans.on_walk_finished(request.rid)
        self.release_workers(run)
        request.walk_run = None
        handles = run.handles
        handle_at: dict[StateLocation, StateHandle] = {}
        for index, location in run.state_locations.items():
            handle = handles[index]
            previous = handle.location
            if previous is not None:
                self._free(request, previous)
            handle.location = location
            handle_at[location] = handle
        values: list[Any] = []
        for _, value in sorted(run.outputs.items()):
            if isinstance(value, StateLocation) and value not in handle_at:
                handle_at[value] = StateHandle(request.states, "", "", value)
            values.append(handle_at[value] if isinstance(value, StateLocation) else value)
        result = tuple(values) if run.plan.gives_tuple else values[0] if values else None
        is_pure = not handle_at and not handles
        record = result if is_pure else None  # it would keep states that the route drops
        request.walk_results.append(WalkResult(run.call.name, record, dict(run.emission_counts), is_pure))
        request.walk_count += 1
        if run.number >= request.max_walk_started:  # not while a retry repeats walks before the one that crashed
            request.crash_history.isolate_at_call = 0
        return result


def _start_message(
    now: float,
    request: Request,
    run: WalkRun,
    inputs: dict[int, m.WalkInput],
    totals: dict[str, int],
    moves: dict[int, m.Peer],
) -> m.StartWalk:
    submit = request.submit
    return m.StartWalk(
        request.rid,
        request.attempt,
        run.walk_index,
        submit.model,
        run.call.name,
        run.seats,
        inputs,
        totals,
        request.frontend,
        submit.tenant,
        request.crash_history.isolate_at_call,
        submit.slo,
        request.last_input_at + submit.slo.ttft_target_s - now,
        {kind: due - now for kind, due in request.next_due.items()},
        request.predicted_ttft_s,
        moves,
    )

"""Data plane between workers: sends partition messages and states of a walk to the workers of its other partitions.

A state must be exported by the engine before it can travel, so sending one takes two steps: `export_state` queues the
engine command, and `finish_export` sends the message when the engine reports. A transfer whose attempt has ended in
the meantime is discarded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from mstar.failpoints import hit
from mstar.plan.runtime.messages import PartitionMessage
from mstar.wire import messages as m
from mstar.wire.failure import Failure, error_text
from mstar.worker.commands import Export, ExportedState, ExportFinished, StateRef
from mstar.worker.outbox import Outbox
from mstar.worker.requests import WalkRun, WorkerRequest
from mstar.worker.stats.op_stats import OpStatsRecorder

MakeMessage = Callable[[ExportedState], m.Message]
"""Builds the message that carries an exported state."""


@dataclass(frozen=True, slots=True)
class PendingExport:
    """A state that the engine is exporting, and where its message goes."""

    request: WorkerRequest
    attempt: int
    state: StateRef
    """Keeps the state alive until the engine has exported it."""
    to: m.Peer
    make_message: MakeMessage
    since: float
    is_ahead: bool = False


class WalkDataSender:
    """Sends data of walks to other workers and records each transfer in the request's spans."""

    def __init__(self, outbox: Outbox, op_stats: OpStatsRecorder) -> None:
        self._outbox = outbox
        self._op_stats = op_stats
        self._exports: dict[int, PendingExport] = {}
        """Exports in progress, by ticket."""
        self._last_ticket = 0

    def __len__(self) -> int:
        return len(self._exports)

    def send(self, walk_run: WalkRun, seat: int, messages: list[PartitionMessage]) -> None:
        """Send messages to the worker of another partition of a walk."""
        now, to = self._op_stats.now, walk_run.start.seats[seat]
        self._outbox.send(to, data_batch(walk_run.start, messages, walk_run.due_in(now)))
        self._op_stats.on_transfer(walk_run, to, now)

    def export_state(
        self, request: WorkerRequest, attempt: int, state: StateRef, to: m.Peer, make_message: MakeMessage
    ) -> None:
        """Export a state and send it to another worker."""
        hit("worker.start_export")
        self._last_ticket += 1
        self._exports[self._last_ticket] = PendingExport(request, attempt, state, to, make_message, self._op_stats.now)
        self._outbox.command(Export(state.number, self._last_ticket, str(to)))

    def send_ahead(self, request: WorkerRequest, model: str, attempt: int, state: StateRef, to: m.Peer) -> None:
        """Send the part of a state that does not change any more to the worker that it will probably move to."""
        hit("worker.send_ahead")

        def state_ahead(exported: ExportedState) -> m.Message:
            return m.StateAhead(model, m.Value(exported))

        self._last_ticket += 1
        self._exports[self._last_ticket] = PendingExport(
            request, attempt, state, to, state_ahead, self._op_stats.now, is_ahead=True
        )
        self._outbox.command(Export(state.number, self._last_ticket, str(to), is_ahead=True))

    def finish_export(self, event: ExportFinished) -> None:
        """Send an exported state, or fail its attempt if the export failed."""
        hit("worker.finish_export")
        export = self._exports.pop(event.ticket)
        request = export.request
        if request.is_dropped or request.attempt > export.attempt or event.result is None:
            return
        if isinstance(event.result, Exception):
            if export.is_ahead:
                return  # the export of the whole state fails too, or needs no part of it
            error = event.result
            walk = request.walk_run.start.walk_name if request.walk_run is not None else ""
            failure = Failure.from_exception(error, walk=walk)
            self._outbox.send_to_conductor(
                m.AttemptFailed(request.rid, export.attempt, type(error).__name__, error_text(error), failure)
            )
            return
        self._outbox.send(export.to, export.make_message(event.result))
        if request.walk_run is not None:
            self._op_stats.on_transfer(request.walk_run, export.to, export.since)


def data_batch(
    start: m.StartWalk, messages: Iterable[PartitionMessage], due_in_s: dict[str, float] | None = None
) -> m.DataBatch:
    """Build the wire message for partition messages: each payload is wrapped in a `Value`."""
    events = [
        message.with_payload(m.Value(message.payload)) if message.has_payload else message for message in messages
    ]
    return m.DataBatch(start.rid, start.attempt, start.walk_index, events, due_in_s or {})


def payloads(message: m.DataBatch | m.StateInput) -> Iterator[m.Value]:
    """Yield every value that a message of another worker carries."""
    if isinstance(message, m.StateInput):
        yield message.payload
    else:
        for event in message.events:
            if event.has_payload:
                yield event.payload

"""Invariant I16: a client never receives outputs of one kind from two executions of a nondeterministic request.

Each attempt of a request with one walk is one execution. The client's outputs of a kind must be the first outputs of
one attempt. An attempt that did not get as far as an output yet is not known to differ in it.

Kinds are checked separately: they can come from different workers. A front end can deliver the first Audio of a retry
before it sees that the Text of the retry differs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from mstar.sim.environment import Environment
from mstar.sim.history import Violation
from mstar.sim.oracle import digest
from mstar.wire import messages as m

Outputs = dict[tuple[str, int], bytes]
"""Digests by kind and index."""


class ExecutionInvariants:
    """Checks I16 in one simulation."""

    def __init__(self, simulation: Environment) -> None:
        clients = simulation.scenario.clients
        self._delivered: dict[str, Outputs] = {
            client.rid: {} for client in clients if client.request.is_nondeterministic
        }
        self._emitted: defaultdict[str, defaultdict[int, Outputs]] = defaultdict(lambda: defaultdict(dict))
        """By request and attempt."""
        self._totals: defaultdict[str, list[Mapping[str, int]]] = defaultdict(list)
        """By request, the numbers of outputs of its attempts that ended successfully."""

    def on_emit(self, emit: m.Emit) -> None:
        """A worker sends an output."""
        if emit.rid in self._delivered:
            self._emitted[emit.rid][emit.attempt][emit.kind, emit.index] = digest(emit.value.content)

    def on_delivered(self, rid: str, kind: str, index: int, output: bytes) -> None:
        """A client receives an output."""
        if (delivered := self._delivered.get(rid)) is None:
            return
        attempts = self._emitted[rid]
        sources = [attempt for attempt, outputs in attempts.items() if outputs.get((kind, index)) == output]
        same_kind = {place: each for place, each in delivered.items() if place[0] == kind}
        if not any(self._is_part(same_kind, attempts[attempt]) for attempt in sources):
            raise Violation(f"I16 {rid} received {kind} {index} of attempts {sources} after outputs that differ")
        delivered[kind, index] = output

    def on_finished(self, end: m.RequestFinished) -> None:
        """A conductor reports the end of an attempt."""
        if end.rid in self._delivered and end.status == "ok":
            self._totals[end.rid].append(end.totals)

    def on_ok(self, rid: str, totals: Mapping[str, int]) -> None:
        """A request ends successfully: the client has as many outputs as its last attempt made."""
        if (delivered := self._delivered.get(rid)) is None:
            return
        counts: defaultdict[str, int] = defaultdict(int)
        for kind, _ in delivered:
            counts[kind] += 1
        if counts != {kind: count for kind, count in totals.items() if count}:
            raise Violation(f"I16 {rid} ended ok with {dict(counts)} outputs, and its last attempt has {totals}")

    def has_diverged(self, rid: str) -> bool:
        """Return whether an attempt sent an output that differs from the client's, or ended with fewer outputs."""
        if (delivered := self._delivered.get(rid)) is None:
            return False
        is_shorter = any(index >= totals.get(kind, 0) for totals in self._totals[rid] for kind, index in delivered)
        return is_shorter or not all(self._is_part(delivered, outputs) for outputs in self._emitted[rid].values())

    @staticmethod
    def _is_part(delivered: Outputs, outputs: Outputs) -> bool:
        """Whether no delivered output is known to differ."""
        return all(outputs.get(place, output) == output for place, output in delivered.items())

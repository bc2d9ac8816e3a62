"""Invariant I18: tenants that wait at the same time get work in proportion to their weights.

For each pair of tenants the checker counts the work that each one got since both began to wait, divided by its weight:
started requests at the conductor, engine seconds at a worker. The two counts must not differ by more than one turn of
each tenant at the conductor, and by a constant number of batches at a worker. There a tenant is charged when a batch
ends, and two batches are in flight. A tenant whose running requests have used up its share does not wait for a turn.
All requests of the scenario are best effort.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import combinations

from mstar.sim.environment import Environment
from mstar.sim.history import Violation
from mstar.sim.processes import SimConductor, SimWorker
from mstar.worker.commands import Batch

MAX_BATCHES_AHEAD = 6
"""Batches by which a tenant can be ahead of another one at a worker in any case."""
MAX_SHARE_RATIO = 6.0
"""Maximum ratio of the normalized engine time of two tenants, apart from that.

It is not 1 (a ratio of 3.6 was seen): a tenant whose calls all wait for the running batch of their op resumes at the
virtual time of the tenant that was served instead.
"""
ROUNDING = 1e-6


class ShareCounter:
    """Normalized work of pairs of tenants since both began to wait."""

    def __init__(self) -> None:
        self._pairs: dict[tuple[str, str], list[float]] = {}

    def on_served(self, work: Mapping[str, float]) -> Iterator[tuple[tuple[str, str], float, float]]:
        """Count the work of tenants; yield each pair that waits with its lesser and its greater count."""
        for pair, counts in self._pairs.items():
            for side, tenant in enumerate(pair):
                counts[side] += work.get(tenant, 0.0)
            yield pair, min(counts), max(counts)

    def on_waiting(self, tenants: set[str]) -> None:
        """These tenants wait now. A pair starts again when one of its tenants stops to wait."""
        pairs = combinations(sorted(tenants), 2)
        self._pairs = {pair: self._pairs.get(pair) or [0.0, 0.0] for pair in pairs}


class FairnessInvariants:
    """Checks I18 in one simulation."""

    def __init__(self, simulation: Environment) -> None:
        clients = simulation.scenario.clients
        self._tenants = {client.rid: client.tenant for client in clients}
        self._weights = {client.tenant: client.slo.weight for client in clients}
        self._costs = simulation.scenario.costs
        self._queued: set[str] = set()
        self._started = ShareCounter()
        self._engine_time: defaultdict[str, ShareCounter] = defaultdict(ShareCounter)

    def on_conductor_step(self, process: SimConductor) -> None:
        """A conductor handled an event. Each request that left its queue has started."""
        queued = {rid for rid in self._tenants if process.core.admission.is_queued(rid)}
        started = [self._tenants[rid] for rid in self._queued - queued]
        if len(started) == 1:  # the order of several starts in one step is not known
            for pair, less, more in self._started.on_served({started[0]: 1 / self._weights[started[0]]}):
                if more - less > sum(1 / self._weights[tenant] for tenant in pair) + ROUNDING:
                    raise Violation(f"I18 starts of {' and '.join(pair)} differ by {more - less:.2f} turns")
        elif started:
            self._started.on_waiting(set())
        self._queued = queued
        tenants = {self._tenants[rid] for rid in queued}
        self._started.on_waiting({tenant for tenant in tenants if process.core.admission.has_share(tenant)})

    def on_batch_submitted(self, process: SimWorker, batch: Batch) -> None:
        """A worker submits a batch to its engine."""
        snapshot, counter = process.core.snapshot(), self._engine_time[process.peer.name]
        jobs = {id(job) for job in batch.jobs}
        chosen = [call for call in snapshot.running_calls if id(call.job) in jobs]
        seconds = self._costs.batch_s + self._costs.job_s * len(chosen)
        work: defaultdict[str, float] = defaultdict(float)
        for call in chosen:
            tenant = call.walk_run.start.tenant
            work[tenant] += seconds / len(chosen) / self._weights[tenant]
        for pair, less, more in counter.on_served(work):
            if more > MAX_BATCHES_AHEAD * seconds + MAX_SHARE_RATIO * less:
                tenants = " and ".join(pair)
                raise Violation(f"I18 engine time of {tenants} at {process.peer}: {less:.3f} and {more:.3f} s")
        counter.on_waiting({call.walk_run.start.tenant for call in snapshot.waiting_calls})

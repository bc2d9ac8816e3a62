"""Batches that the engine has: one runs, and at most one waits behind it so that the engine never idles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mstar.engine.jobs import Job
from mstar.failpoints import hit
from mstar.plan.tables import Plans
from mstar.wire.messages import Suspect
from mstar.worker.batch_watchdog import RunningBatch
from mstar.worker.commands import Batch
from mstar.worker.outbox import Outbox
from mstar.worker.requests import WalkRun
from mstar.worker.scheduling.cost_model import ModelBatchKey
from mstar.worker.scheduling.ready_call import ReadyCall

MAX_INFLIGHT_BATCHES = 2
"""Maximum batches that the engine has: one running, one waiting."""


@dataclass(frozen=True, slots=True)
class InflightBatch:
    """A batch that was submitted to the engine and has not finished."""

    key: ModelBatchKey
    calls: list[ReadyCall]
    expected_s: float
    """Predicted duration; 0 if unknown."""


class InflightBatches:
    """Submits batches to the engine and matches its reports to calls."""

    def __init__(self, plans: Mapping[str, Plans], outbox: Outbox) -> None:
        self._plans = plans
        self._outbox = outbox
        self._batches: dict[int, InflightBatch] = {}
        """By number, oldest first."""
        self._last_number = 0
        self._running_since = 0.0
        """Time at which the oldest batch started to run: it was submitted, or the batch before it finished."""

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def has_capacity(self) -> bool:
        """Whether the engine can take another batch."""
        return len(self._batches) < MAX_INFLIGHT_BATCHES

    @property
    def running_key(self) -> ModelBatchKey | None:
        """Batch key of the batch that runs."""
        for batch in self._batches.values():
            return batch.key
        return None

    def running(self, now: float) -> RunningBatch | None:
        """The batch that runs."""
        for number, batch in self._batches.items():
            model, key_number = batch.key
            key = self._plans[model].keys[key_number]
            rids = tuple(dict.fromkeys(call.walk_run.request.rid for call in batch.calls))
            return RunningBatch(number, model, key.component, key.op, self.running_s(now), batch.expected_s, rids)
        return None

    def calls(self) -> Iterator[ReadyCall]:
        """Calls of all batches."""
        return (call for batch in self._batches.values() for call in batch.calls)

    def running_s(self, now: float) -> float:
        """Seconds for which the batch that runs has run; 0 without one. Its wait behind another one does not count."""
        return now - self._running_since if self._batches else 0.0

    def running_expected_s(self) -> float:
        """Predicted duration of the batch that runs; 0 if unknown or without one."""
        return next((batch.expected_s for batch in self._batches.values()), 0.0)

    def submit(
        self, now: float, key: ModelBatchKey, calls: list[ReadyCall], expected_s: float | None, time_limit_s: float
    ) -> None:
        """Submit calls as one batch. A chunked op stops after `time_limit_s` seconds."""
        hit("worker.submit_batch")
        model, key_number = key
        jobs: list[Job] = []
        walk_runs: dict[int, WalkRun] = {}
        for call in calls:
            walk_run = call.walk_run
            walk_run.in_flight += 1
            walk_runs[walk_run.number] = walk_run
            if (job := call.job) is None:
                job = call.job = Job(call.frame.arguments(call.instruction), rid=walk_run.request.rid)
            jobs.append(job)
        suspects = [
            Suspect(walk_run.request.rid, walk_run.start.attempt, walk_run.completed_calls[key_number])
            for walk_run in walk_runs.values()
        ]
        if not self._batches:
            self._running_since = now
        self._last_number += 1
        self._batches[self._last_number] = InflightBatch(key, calls, expected_s or 0.0)
        batch_key = self._plans[model].keys[key_number]
        self._outbox.command(Batch(self._last_number, model, batch_key, jobs, suspects, expected_s, time_limit_s))

    def finish(self, now: float, number: int) -> InflightBatch:
        """Remove and return the batch that the engine has finished. The next one runs from now on."""
        self._running_since = now
        return self._batches.pop(number)

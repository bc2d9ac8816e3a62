"""Pieces: a long call of an op `in_pieces` is run bit by bit along the batch's dimension, so that short ones need not
wait for it.

Here a budget is shared out, arguments are cut and results put together again. Nothing here runs an op.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mstar.engine.jobs import UNFINISHED, Job, JobDone, Result
from mstar.walk.component import Op
from mstar.walk.values import concatenate, cut


def split_budget(op: Op, jobs: Sequence[Job], budget: int | None) -> None:
    """Say how far each job goes now, with so many positions for all.

    Those that want no more than an equal share get it first and whole, so a single token never waits for a prompt. What
    is left goes to the others in order.
    """
    wanted = 0
    for job in jobs:
        job.end = job.length = op.length(job.arguments)
        job.chunk_length = job.length - job.done
        wanted += job.chunk_length
    if budget is None or wanted <= budget:
        return
    fair = max(1, budget // len(jobs))
    left = budget
    for job in sorted(jobs, key=lambda job: job.length - job.done > fair):
        job.end = min(job.length, job.done + left)
        job.chunk_length = job.end - job.done
        left -= job.chunk_length


def chunk_arguments(op: Op, job: Job) -> dict[str, Any]:
    """A job's arguments, with only the positions that are run now."""
    if not job.done and job.end == job.length:
        return job.arguments
    pieces = {name: cut(job.arguments[name], axis, job.done, job.end) for name, axis in op.axes.items()}
    return job.arguments | pieces


def merge_chunks(op: Op, job: Job, values: tuple[Any, ...]) -> Result:
    """What a job has come to, now that its piece gave these values."""
    if not job.done and job.end == job.length:
        return JobDone(values)
    job.chunk_results.append(values)
    job.done = job.end
    if job.end < job.length:
        return UNFINISHED
    axes = [op.batch.axis(hint.type) for hint in op.signature.outs]
    outs = zip(axes, zip(*job.chunk_results, strict=True), strict=True)
    return JobDone(tuple(parts[-1] if axis is None else concatenate(parts, axis) for axis, parts in outs))

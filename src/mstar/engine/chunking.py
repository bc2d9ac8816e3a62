"""Chunked prefill, for any op: a long call of a chunked op runs in chunks along the batch dimension.

Short calls then share each batch with one chunk of a long call instead of waiting for all of it. This module splits the
token budget, slices arguments and merges results. It runs no op.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mstar.engine.jobs import UNFINISHED, Job, JobDone, Result
from mstar.walk.component import Op
from mstar.walk.values import concatenate, cut


def split_budget(op: Op, jobs: Sequence[Job], budget: int | None) -> bool:
    """Set the chunk of each job such that all chunks together have at most `budget` positions (None: no limit).

    Returns whether every job gets all positions that it has left.
    Jobs that need no more than an equal share get it first and in full, so a single token never waits for a prompt. The
    rest goes to the other jobs in order.
    """
    total = 0
    for job, length in zip(jobs, op.lengths([job.arguments for job in jobs]), strict=True):
        job.end = job.length = length
        job.is_whole = not job.done
        job.chunk_length = job.length - job.done
        total += job.chunk_length
    if budget is None or total <= budget:
        return True
    equal_share = max(1, budget // len(jobs))
    left = budget
    for job in sorted(jobs, key=lambda job: job.length - job.done > equal_share):
        job.end = min(job.length, job.done + left)
        job.is_whole = not job.done and job.end == job.length
        job.chunk_length = job.end - job.done
        left -= job.chunk_length
    return False


def chunk_arguments(op: Op, job: Job) -> dict[str, Any]:
    """Arguments of a job that is not whole, sliced to its current chunk."""
    slices = {name: cut(job.arguments[name], axis, job.done, job.end) for name, axis in op.axes.items()}
    return job.arguments | slices


def merge_chunks(op: Op, job: Job, values: tuple[Any, ...]) -> Result:
    """Result of a job that is not whole after its current chunk: the merged values of all chunks, or UNFINISHED."""
    job.chunk_results.append(values)
    job.done = job.end
    if job.end < job.length:
        return UNFINISHED
    axes = [op.batch.axis(hint.type) for hint in op.signature.outs]
    outs = zip(axes, zip(*job.chunk_results, strict=True), strict=True)
    return JobDone(tuple(parts[-1] if axis is None else concatenate(parts, axis) for axis, parts in outs))

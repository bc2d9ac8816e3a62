"""Metrics of a load test: TTFT and latency percentiles, SLO attainment, goodput, audio continuity. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from math import ceil
from typing import Any

from mstar.cli.bench.records import SKIPPED, ChunkTimes, LoadRun, RequestRecord, SloTarget

PERCENTILES = (50, 90, 99)
TOLERANCES_S = (0.0, 0.05, 0.1)
"""Tolerated delays of an audio chunk: none, hardly audible, a short gap."""
MAX_SEND_DELAY_S = 0.02
"""Maximum p99 delay of sending. Above it the load generator distorts the results."""
MAX_UTILIZATION = 0.8
"""Maximum CPU utilization of the load generator, for the same reason."""


# ---------------------------------------------------------------- numbers
def percentile(values: Sequence[float], percent: float) -> float:
    """Nearest-rank percentile."""
    return sorted(values)[max(0, ceil(len(values) * percent / 100) - 1)]


def percentiles(values: Iterable[float]) -> dict[str, float]:
    """`PERCENTILES` by name. Empty without values."""
    ordered = sorted(values)
    return {f"p{percent}": percentile(ordered, percent) for percent in PERCENTILES if ordered}


def fraction(flags: Iterable[bool]) -> float | None:
    """Fraction of true flags, from 0 to 1. None without flags."""
    values = list(flags)
    return sum(values) / len(values) if values else None


# ---------------------------------------------------------------- audio playback
def chunks_on_time(chunks: ChunkTimes, tolerance_s: float) -> list[bool]:
    """Whether each audio chunk after the first arrived before the player ran out (no buffer underrun).

    A chunk is on time if the audio received before it lasts longer than the time since the first chunk arrived.
    """
    buffered = accumulate(seconds for _, seconds in chunks)
    return [have > at - chunks[0][0] - tolerance_s for have, (at, _) in zip(buffered, chunks[1:], strict=False)]


def playback_intervals(chunks: ChunkTimes) -> list[tuple[float, float]]:
    """Intervals in which a player plays that starts with the first chunk and pauses when its buffer is empty."""
    played: list[tuple[float, float]] = []
    for at, seconds in chunks:
        if played and at <= played[-1][1]:
            played[-1] = (played[-1][0], played[-1][1] + seconds)
        else:
            played.append((at, at + seconds))
    return played


def playback_gaps(chunks: ChunkTimes) -> list[float]:
    """Duration of each audible gap, in seconds."""
    return [later[0] - earlier[1] for earlier, later in pairwise(playback_intervals(chunks))]


# ---------------------------------------------------------------- SLO
def inter_chunk_times(chunks: ChunkTimes) -> list[float]:
    """Seconds from each chunk to the next (inter-token latency of a text stream)."""
    return [later - earlier for (earlier, _), (later, _) in pairwise(chunks)]


def meets_slo(record: RequestRecord, slo: SloTarget) -> bool:
    """Whether a response meets every objective."""
    if not record.is_complete:
        return False
    gaps = inter_chunk_times(record.chunks)
    mean = sum(gaps) / len(gaps) if gaps else 0.0
    objectives = ((record.ttft_s, slo.ttft), (record.duration_s, slo.total), (mean, slo.itl))
    is_smooth = slo.continuity is None or all(chunks_on_time(record.chunks, slo.continuity))
    return is_smooth and all(limit is None or value <= limit for value, limit in objectives)


# ---------------------------------------------------------------- aggregates
def run_metrics(run: LoadRun, slos: Mapping[str, SloTarget]) -> dict[str, Any]:
    """All metrics of one load level: by request kind, and of the load generator itself."""
    kinds = {
        kind: kind_metrics([record for record in run.records if record.kind == kind], slo, run.seconds(kind))
        for kind, slo in slos.items()
    }
    return {
        "load": run.load,
        "unit": run.unit,
        "seconds": run.seconds(),
        "kinds": kinds,
        "generator": generator_metrics(run),
    }


def kind_metrics(records: Sequence[RequestRecord], slo: SloTarget, seconds: float) -> dict[str, Any]:
    """Metrics of one kind over `seconds`. Fractions are of completed requests; goodput counts all."""
    completed = [record for record in records if record.is_complete]
    rejected = [record for record in records if record.is_rejected]
    failed = Counter(record.error for record in records if record.is_failed)
    slo_met = sum(meets_slo(record, slo) for record in records)
    metrics: dict[str, Any] = {
        "seconds": seconds,
        "sent": len(records),
        "completed": len(completed),
        "failed": dict(failed),
        "skipped": sum(record.error == SKIPPED for record in records),
        "slo_met": slo_met,
        "requests_per_s": len(completed) / seconds,
        "goodput_per_s": slo_met / seconds,
        "ttft_s": percentiles(record.ttft_s for record in completed),
        "duration_s": percentiles(record.duration_s for record in completed),
        "itl_s": percentiles(gap for record in completed for gap in inter_chunk_times(record.chunks)),
        "tokens_per_s": sum(record.tokens for record in completed) / seconds,
        "rejected": _rejection_metrics(rejected),
    }
    if slo.ttft is not None:
        metrics["ttft_within_slo"] = fraction(record.ttft_s <= slo.ttft for record in completed)
    if slo.continuity is not None:
        metrics["audio"] = audio_metrics(completed, seconds)
    if any(record.audio_input_s for record in completed):
        metrics["rtf"] = percentiles(record.duration_s / record.audio_input_s for record in completed)
    return metrics


def audio_metrics(complete: Sequence[RequestRecord], seconds: float) -> dict[str, Any]:
    """Audio metrics: chunks and streams on time, underruns, real-time factor."""
    chunks = {
        tolerance: [chunks_on_time(record.chunks, tolerance) for record in complete] for tolerance in TOLERANCES_S
    }
    gaps = [playback_gaps(record.chunks) for record in complete]
    return {
        "audio_s_per_s": sum(record.amount for record in complete) / seconds,
        "rtf": percentiles(record.duration_s / record.amount for record in complete),
        "chunks_on_time": {
            _to_ms(tolerance): fraction(flag for flags in streams for flag in flags)
            for tolerance, streams in chunks.items()
        },
        "streams_on_time": {
            _to_ms(tolerance): fraction(all(flags) for flags in streams) for tolerance, streams in chunks.items()
        },
        "underruns": sum(len(stream) for stream in gaps),
        "silence_s": sum(sum(stream) for stream in gaps),
    }


def _to_ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f}ms"


def _rejection_metrics(rejected: Sequence[RequestRecord]) -> dict[str, Any]:
    waits = [record.retry_after for record in rejected if record.retry_after is not None]
    return {
        "count": len(rejected),
        "duration_s": percentiles(record.duration_s for record in rejected),
        "retry_after_s": percentiles(waits),
    }


def generator_metrics(run: LoadRun) -> dict[str, Any]:
    """Send delay and CPU use of the load generator, and whether it was the bottleneck."""
    delay = percentiles(record.sent_at - record.due_at for record in run.records)
    utilization = run.cpu_s / run.seconds()
    return {
        "send_delay_s": delay,
        "cpu_ms_per_request": 1000 * run.cpu_s / max(1, len(run.records)),
        "utilization": utilization,
        "is_bottleneck": utilization > MAX_UTILIZATION or delay.get("p99", 0.0) > MAX_SEND_DELAY_S,
    }

"""Figures of records: percentiles, continuity of sound, goodput. All of it is arithmetic: nothing is asked or shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from math import ceil
from typing import Any

from mstar.cli.bench.records import SKIPPED, ChunkTimes, LoadRun, RequestRecord, SloTarget

PERCENTILES = (50, 90, 99)
TOLERANCES_S = (0.0, 0.05, 0.1)
"""How late a chunk of sound may be: not at all, hardly audible, a short gap."""
MAX_SEND_DELAY_S = 0.02
"""When the load generator sends so much too late (p99), it is part of what was measured."""
MAX_CPU_SHARE = 0.8
"""And when it computes for so much of the time."""


# ---------------------------------------------------------------- numbers
def percentile(values: Sequence[float], percent: float) -> float:
    """The least of the values that so many percent of them do not exceed."""
    return sorted(values)[max(0, ceil(len(values) * percent / 100) - 1)]


def percentiles(values: Iterable[float]) -> dict[str, float]:
    """Percentiles by their names; none of nothing."""
    ordered = sorted(values)
    return {f"p{percent}": percentile(ordered, percent) for percent in PERCENTILES if ordered}


def fraction(flags: Iterable[bool]) -> float | None:
    """How many of them hold, from 0 to 1."""
    held = list(flags)
    return sum(held) / len(held) if held else None


# ---------------------------------------------------------------- sound
def chunks_on_time(parts: ChunkTimes, tolerance_s: float) -> list[bool]:
    """For each chunk of sound after the first: was there still something to play when it came?

    A chunk is on time if the sound that came before it lasts for longer than the time since the first one came.
    """
    heard = accumulate(seconds for _, seconds in parts)
    return [have > at - parts[0][0] - tolerance_s for have, (at, _) in zip(heard, parts[1:], strict=False)]


def playback_intervals(parts: ChunkTimes) -> list[tuple[float, float]]:
    """From when to when a player plays that begins with the first chunk and waits when it has nothing."""
    played: list[tuple[float, float]] = []
    for at, seconds in parts:
        if played and at <= played[-1][1]:
            played[-1] = (played[-1][0], played[-1][1] + seconds)
        else:
            played.append((at, at + seconds))
    return played


def playback_gaps(parts: ChunkTimes) -> list[float]:
    """How long each gap is that a listener hears."""
    return [later[0] - earlier[1] for earlier, later in pairwise(playback_intervals(parts))]


# ---------------------------------------------------------------- promises
def inter_chunk_times(parts: ChunkTimes) -> list[float]:
    """How long it is from each part to the next."""
    return [later - earlier for (earlier, _), (later, _) in pairwise(parts)]


def meets_slo(record: RequestRecord, slo: SloTarget) -> bool:
    """Whether an answer is what its client wants."""
    if not record.is_complete:
        return False
    between = inter_chunk_times(record.chunks)
    mean = sum(between) / len(between) if between else 0.0
    wanted = ((record.time_to_first_s, slo.first), (record.duration_s, slo.total), (mean, slo.itl))
    is_smooth = slo.continuity is None or all(chunks_on_time(record.chunks, slo.continuity))
    return is_smooth and all(limit is None or value <= limit for value, limit in wanted)


# ---------------------------------------------------------------- of many
def run_metrics(run: LoadRun, slos: Mapping[str, SloTarget]) -> dict[str, Any]:
    """Everything that is said of a run: of each kind of request, and of the load generator itself."""
    kinds = {
        kind: kind_metrics([one for one in run.records if one.kind == kind], slo, run.seconds(kind))
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
    """What is said of the requests of one kind, in so long. Shares are of those that were answered, goodput of all."""
    whole = [record for record in records if record.is_complete]
    refused = [record for record in records if record.is_rejected]
    failed = Counter(record.error for record in records if record.is_failed)
    kept = sum(meets_slo(record, slo) for record in records)
    figures: dict[str, Any] = {
        "seconds": seconds,
        "sent": len(records),
        "completed": len(whole),
        "failed": dict(failed),
        "skipped": sum(record.error == SKIPPED for record in records),
        "kept": kept,
        "per_s": len(whole) / seconds,
        "goodput_per_s": kept / seconds,
        "first_s": percentiles(record.time_to_first_s for record in whole),
        "took_s": percentiles(record.duration_s for record in whole),
        "gap_s": percentiles(gap for record in whole for gap in inter_chunk_times(record.chunks)),
        "tokens_per_s": sum(record.tokens for record in whole) / seconds,
        "refusals": _rejection_metrics(refused),
    }
    if slo.first is not None:
        figures["first_in_time"] = fraction(record.time_to_first_s <= slo.first for record in whole)
    if slo.continuity is not None:
        figures["sound"] = audio_metrics(whole, seconds)
    if any(record.audio_input_s for record in whole):
        figures["rtf"] = percentiles(record.duration_s / record.audio_input_s for record in whole)
    return figures


def audio_metrics(complete: Sequence[RequestRecord], seconds: float) -> dict[str, Any]:
    """How sound came: smoothly, how often not, and how fast against its own clock."""
    chunks = {
        tolerance: [chunks_on_time(record.chunks, tolerance) for record in complete] for tolerance in TOLERANCES_S
    }
    quiet = [playback_gaps(record.chunks) for record in complete]
    return {
        "per_s": sum(record.amount for record in complete) / seconds,
        "rtf": percentiles(record.duration_s / record.amount for record in complete),
        "chunks_on_time": {
            _to_ms(late): fraction(flag for flags in of for flag in flags) for late, of in chunks.items()
        },
        "streams_on_time": {_to_ms(late): fraction(all(flags) for flags in of) for late, of in chunks.items()},
        "underruns": sum(len(one) for one in quiet),
        "silence_s": sum(sum(one) for one in quiet),
    }


def _to_ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f}ms"


def _rejection_metrics(refused: Sequence[RequestRecord]) -> dict[str, Any]:
    waits = [record.retry_after for record in refused if record.retry_after is not None]
    return {
        "count": len(refused),
        "took_s": percentiles(record.duration_s for record in refused),
        "retry_after_s": percentiles(waits),
    }


def generator_metrics(run: LoadRun) -> dict[str, Any]:
    """How well the load generator did its own work, and whether it is to blame for what was measured."""
    late = percentiles(record.sent_at - record.due_at for record in run.records)
    busy = run.cpu_s / run.seconds()
    return {
        "late_s": late,
        "cpu_ms_per_request": 1000 * run.cpu_s / max(1, len(run.records)),
        "busy": busy,
        "is_bottleneck": busy > MAX_CPU_SHARE or late.get("p99", 0.0) > MAX_SEND_DELAY_S,
    }

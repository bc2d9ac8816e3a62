"""Figures of records: percentiles, continuity of sound, goodput. All of it is arithmetic: nothing is asked or shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from math import ceil
from typing import Any

from mstar.cli.bench.records import SKIPPED, Parts, Record, Run, Slo

PERCENTS = (50, 90, 99)
TOLERANCES_S = (0.0, 0.05, 0.1)
"""How late a chunk of sound may be: not at all, hardly audible, a short gap."""
LATE_S = 0.02
"""When the load generator sends so much too late (p99), it is part of what was measured."""
BUSY = 0.8
"""And when it computes for so much of the time."""


# ---------------------------------------------------------------- numbers
def percentile(values: Sequence[float], percent: float) -> float:
    """The least of the values that so many percent of them do not exceed."""
    return sorted(values)[max(0, ceil(len(values) * percent / 100) - 1)]


def spread(values: Iterable[float]) -> dict[str, float]:
    """Percentiles by their names; none of nothing."""
    ordered = sorted(values)
    return {f"p{percent}": percentile(ordered, percent) for percent in PERCENTS if ordered}


def share(flags: Iterable[bool]) -> float | None:
    """How many of them hold, from 0 to 1."""
    held = list(flags)
    return sum(held) / len(held) if held else None


# ---------------------------------------------------------------- sound
def on_time(parts: Parts, tolerance_s: float) -> list[bool]:
    """For each chunk of sound after the first: was there still something to play when it came?

    A chunk is on time if the sound that came before it lasts for longer than the time since the first one came.
    """
    heard = accumulate(seconds for _, seconds in parts)
    return [have > at - parts[0][0] - tolerance_s for have, (at, _) in zip(heard, parts[1:], strict=False)]


def playback(parts: Parts) -> list[tuple[float, float]]:
    """From when to when a player plays that begins with the first chunk and waits when it has nothing."""
    played: list[tuple[float, float]] = []
    for at, seconds in parts:
        if played and at <= played[-1][1]:
            played[-1] = (played[-1][0], played[-1][1] + seconds)
        else:
            played.append((at, at + seconds))
    return played


def silences(parts: Parts) -> list[float]:
    """How long each gap is that a listener hears."""
    return [later[0] - earlier[1] for earlier, later in pairwise(playback(parts))]


# ---------------------------------------------------------------- promises
def gaps(parts: Parts) -> list[float]:
    """How long it is from each part to the next."""
    return [later - earlier for (earlier, _), (later, _) in pairwise(parts)]


def is_kept(record: Record, slo: Slo) -> bool:
    """Whether an answer is what its client wants."""
    if not record.is_whole:
        return False
    between = gaps(record.parts)
    mean = sum(between) / len(between) if between else 0.0
    wanted = ((record.first_s, slo.first), (record.took_s, slo.whole), (mean, slo.itl))
    is_smooth = slo.continuity is None or all(on_time(record.parts, slo.continuity))
    return is_smooth and all(limit is None or value <= limit for value, limit in wanted)


# ---------------------------------------------------------------- of many
def told(run: Run, slos: Mapping[str, Slo]) -> dict[str, Any]:
    """Everything that is said of a run: of each kind of request, and of the load generator itself."""
    kinds = {
        kind: of_kind([one for one in run.records if one.kind == kind], slo, run.seconds(kind))
        for kind, slo in slos.items()
    }
    return {"load": run.load, "unit": run.unit, "seconds": run.seconds(), "kinds": kinds, "generator": generator(run)}


def of_kind(records: Sequence[Record], slo: Slo, seconds: float) -> dict[str, Any]:
    """What is said of the requests of one kind, in so long. Shares are of those that were answered, goodput of all."""
    whole = [record for record in records if record.is_whole]
    refused = [record for record in records if record.is_refused]
    failed = Counter(record.error for record in records if record.is_failed)
    kept = sum(is_kept(record, slo) for record in records)
    figures: dict[str, Any] = {
        "seconds": seconds,
        "sent": len(records),
        "whole": len(whole),
        "failed": dict(failed),
        "skipped": sum(record.error == SKIPPED for record in records),
        "kept": kept,
        "per_s": len(whole) / seconds,
        "goodput_per_s": kept / seconds,
        "first_s": spread(record.first_s for record in whole),
        "took_s": spread(record.took_s for record in whole),
        "gap_s": spread(gap for record in whole for gap in gaps(record.parts)),
        "tokens_per_s": sum(record.tokens for record in whole) / seconds,
        "refusals": _refusals(refused),
    }
    if slo.first is not None:
        figures["first_in_time"] = share(record.first_s <= slo.first for record in whole)
    if slo.continuity is not None:
        figures["sound"] = sound(whole, seconds)
    if any(record.heard_s for record in whole):
        figures["rtf"] = spread(record.took_s / record.heard_s for record in whole)
    return figures


def sound(whole: Sequence[Record], seconds: float) -> dict[str, Any]:
    """How sound came: smoothly, how often not, and how fast against its own clock."""
    chunks = {tolerance: [on_time(record.parts, tolerance) for record in whole] for tolerance in TOLERANCES_S}
    quiet = [silences(record.parts) for record in whole]
    return {
        "per_s": sum(record.amount for record in whole) / seconds,
        "rtf": spread(record.took_s / record.amount for record in whole),
        "chunks_on_time": {_ms(late): share(flag for flags in of for flag in flags) for late, of in chunks.items()},
        "streams_on_time": {_ms(late): share(all(flags) for flags in of) for late, of in chunks.items()},
        "underruns": sum(len(one) for one in quiet),
        "silence_s": sum(sum(one) for one in quiet),
    }


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f}ms"


def _refusals(refused: Sequence[Record]) -> dict[str, Any]:
    waits = [record.retry_after for record in refused if record.retry_after is not None]
    return {
        "count": len(refused),
        "took_s": spread(record.took_s for record in refused),
        "retry_after_s": spread(waits),
    }


def generator(run: Run) -> dict[str, Any]:
    """How well the load generator did its own work, and whether it is to blame for what was measured."""
    late = spread(record.sent - record.due for record in run.records)
    busy = run.cpu_s / run.seconds()
    return {
        "late_s": late,
        "cpu_ms_per_request": 1000 * run.cpu_s / max(1, len(run.records)),
        "busy": busy,
        "is_bottleneck": busy > BUSY or late.get("p99", 0.0) > LATE_S,
    }

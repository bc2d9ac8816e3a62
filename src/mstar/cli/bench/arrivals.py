"""Arrival times of an open-loop load test, from a Poisson or gamma process or from a trace file. Sends nothing.

All times are fixed before the first request is sent, so a slow server does not slow the load down.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, takewhile
from math import inf
from pathlib import Path
from random import Random
from typing import Any

from mstar.errors import LoadError, format_names, suggest_name


@dataclass(frozen=True, slots=True, order=True)
class Arrival:
    """Scheduled start of one request."""

    at: float
    """Seconds since the start of the run."""
    kind: str
    overrides: dict[str, Any] = field(default_factory=dict[str, Any], compare=False)
    """Fields from a trace file that replace the workload's: `text`, `model`, `body`."""


def make_arrivals(
    rates: Mapping[str, float], burstiness: float, seed: int, seconds: float, count: int
) -> list[Arrival]:
    """Arrivals at `rates` requests per second by kind, for at most `seconds` and at most `count` in total."""
    streams = [
        _arrivals_of_kind(kind, rate, burstiness, Random(f"{seed}/{kind}/at")) for kind, rate in rates.items() if rate
    ]
    return list(islice(takewhile(lambda arrival: arrival.at < seconds, heapq.merge(*streams)), count))


def _arrivals_of_kind(kind: str, rate: float, burstiness: float, rng: Random) -> Iterator[Arrival]:
    """Gamma-distributed gaps with `burstiness` as coefficient of variation. 1 is a Poisson process."""
    at, shape = 0.0, 1 / burstiness**2
    while True:
        at += rng.gammavariate(shape, 1 / (rate * shape))
        yield Arrival(at, kind)


def read_trace(path: Path, kinds: Iterable[str], seconds: float = inf) -> list[Arrival]:
    """Read a trace file: JSON lines with `at` and `kind`. Raises LoadError."""
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise LoadError(f"{path}: cannot be read: {error.strerror}\n  fix: pass the path of a trace file") from error
    parsed = [_parse_line(f"{path}:{number}", line, set(kinds)) for number, line in enumerate(lines, 1) if line.strip()]
    arrivals = sorted(arrival for arrival in parsed if arrival.at < seconds)
    if not arrivals:
        problem = f"{path}: no request in the first {seconds:g} s"
        raise LoadError(f'{problem}\n  fix: write lines like {{"at": 0.5, "kind": "chat"}}')
    return arrivals


def _parse_line(location: str, line: str, kinds: set[str]) -> Arrival:
    try:
        fields = json.loads(line)
        at, kind = float(fields.pop("at")), str(fields.pop("kind"))
    except (ValueError, TypeError, LookupError, AttributeError):
        problem = f"{location}: {line[:60]!r} is not a request"
        raise LoadError(f'{problem}\n  fix: write it as {{"at": 0.5, "kind": "chat"}}') from None
    if kind not in kinds:
        problem = f"{location}: unknown kind `{kind}`{suggest_name(kind, kinds)}"
        raise LoadError(f"{problem}\n  fix: use one of {format_names(sorted(kinds))}")
    if unknown := fields.keys() - {"text", "model", "body"}:
        problem = f"{location}: unknown field {format_names(sorted(unknown))}"
        raise LoadError(f"{problem}\n  fix: use `at`, `kind`, `text`, `model` and `body`")
    return Arrival(at, kind, fields)

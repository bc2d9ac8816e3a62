"""When requests are sent in an open loop: all times are fixed before the first one goes out. Nothing is sent here."""

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
    """One request that is to be sent."""

    at: float
    """In seconds since the run began."""
    kind: str
    overrides: dict[str, Any] = field(default_factory=dict[str, Any], compare=False)
    """What a trace says of it: `text`, `model`, `body`."""


def make_arrivals(
    rates: Mapping[str, float], burstiness: float, seed: int, seconds: float, count: int
) -> list[Arrival]:
    """So many requests a second of each kind, for so many seconds and at most so many in all."""
    streams = [
        _arrivals_of_kind(kind, rate, burstiness, Random(f"{seed}/{kind}/at")) for kind, rate in rates.items() if rate
    ]
    return list(islice(takewhile(lambda one: one.at < seconds, heapq.merge(*streams)), count))


def _arrivals_of_kind(kind: str, rate: float, burstiness: float, rng: Random) -> Iterator[Arrival]:
    """Gaps of a gamma distribution, whose spread is `burstiness` times its mean; with 1 that is a Poisson process."""
    at, shape = 0.0, 1 / burstiness**2
    while True:
        at += rng.gammavariate(shape, 1 / (rate * shape))
        yield Arrival(at, kind)


def read_trace(path: Path, kinds: Iterable[str], seconds: float = inf) -> list[Arrival]:
    """The requests that a file tells: a JSON object in each line, with `at` and `kind`."""
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise LoadError(f"{path}: cannot be read: {error.strerror}\n  fix: name a trace that is there") from error
    told = [_parse_line(f"{path}:{number}", line, set(kinds)) for number, line in enumerate(lines, 1) if line.strip()]
    found = sorted(one for one in told if one.at < seconds)
    if not found:
        what = f"{path}: there is no request in the first {seconds:g} s"
        raise LoadError(f'{what}\n  fix: write lines like {{"at": 0.5, "kind": "chat"}}')
    return found


def _parse_line(location: str, line: str, kinds: set[str]) -> Arrival:
    try:
        told = json.loads(line)
        at, kind = float(told.pop("at")), str(told.pop("kind"))
    except (ValueError, TypeError, LookupError, AttributeError):
        what = f"{location}: {line[:60]!r} tells no request"
        raise LoadError(f'{what}\n  fix: write it as {{"at": 0.5, "kind": "chat"}}') from None
    if kind not in kinds:
        what = f"{location}: there is no kind `{kind}`{suggest_name(kind, kinds)}"
        raise LoadError(f"{what}\n  fix: use one of {format_names(sorted(kinds))}")
    if unknown := told.keys() - {"text", "model", "body"}:
        what = f"{location}: a request has no {format_names(sorted(unknown))}"
        raise LoadError(f"{what}\n  fix: beside `at` and `kind` it may have `text`, `model` and `body`")
    return Arrival(at, kind, told)

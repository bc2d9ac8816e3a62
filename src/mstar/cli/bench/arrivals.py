"""Arrival times of an open-loop load test, from a Poisson or gamma process or from a trace file. Sends nothing.

All times are fixed before the first request is sent, so a slow server does not slow the load down.

A trace file has a JSON object per line and request. `mstar capture` writes one with all of these fields; a file
written by hand needs the first two.

| field | meaning |
|---|---|
| `at` | seconds since the start |
| `kind` | chat, speech, transcriptions, images, embeddings; captured requests of other kinds are not replayed |
| `model` | served name; `--model` replaces that of captured requests |
| `text` | input text; without it one of `input.characters` characters is made |
| `body` | parameters: `max_tokens`, `temperature`, `seed`, `voice`, `size`, ... |
| `input` | captured sizes: `characters`, `tokens`, `messages`, `audio_s`, `images`, `texts`, `requests` |
| `output` | captured amounts: items by kind (`text` tokens, `audio` chunks, `image`), and `audio_s`, `video_s` |
| `slo` | captured value of the header `Mstar-SLO`, which is sent again |
| `endpoint`, `status`, `seconds`, `ttft_s` | captured path, HTTP status, duration, time to first output |

A replayed chat request asks for as many tokens as were generated: an answer to another text would have another length.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile
from math import inf
from pathlib import Path
from random import Random
from typing import Any

from mstar.cli.bench.prompts import SENTENCES
from mstar.cli.bench.request_kinds import AUDIO_SECONDS
from mstar.errors import LoadError, format_names, suggest_name

CAPTURED_FIELDS = ("endpoint", "input", "output", "seconds", "slo", "status", "ttft_s")
"""Fields that `mstar capture` adds."""


@dataclass(frozen=True, slots=True, order=True)
class Arrival:
    """Scheduled start of one request."""

    at: float
    """Seconds since the start of the run."""
    kind: str
    overrides: dict[str, Any] = field(default_factory=dict[str, Any], compare=False)
    """Fields from a trace file that replace the workload's: `text`, `model`, `body`, and what was captured."""


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
    known = set(kinds)
    parsed = [_parse_line(f"{path}:{number}", line, known) for number, line in enumerate(lines, 1) if line.strip()]
    arrivals = sorted(arrival for arrival in parsed if arrival.at < seconds and arrival.kind in known)
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
    if kind not in kinds and "endpoint" not in fields:
        problem = f"{location}: unknown kind `{kind}`{suggest_name(kind, kinds)}"
        raise LoadError(f"{problem}\n  fix: use one of {format_names(sorted(kinds))}")
    if unknown := fields.keys() - {"text", "model", "body", *CAPTURED_FIELDS}:
        problem = f"{location}: unknown field {format_names(sorted(unknown))}"
        raise LoadError(f"{problem}\n  fix: use `at`, `kind`, `text`, `model` and `body`")
    return Arrival(at, kind, fields)


def replayed_text(overrides: Mapping[str, Any]) -> str:
    """The text of a request in a trace: its own, or for a captured one another text of its length; empty for none."""
    if text := overrides.get("text"):
        return str(text)
    characters = overrides.get("input", {}).get("characters", 0)
    sentences = " ".join(SENTENCES)
    return (f"{sentences} " * (characters // len(sentences) + 1))[:characters].strip() if characters else ""


def replayed_params(kind: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The body fields of a request in a trace, with the generated number of tokens as maximum."""
    body = dict(overrides.get("body", {}))
    if "max_tokens" in body and (tokens := overrides.get("output", {}).get("text")):
        body["max_tokens"] = int(tokens)
    if (audio_s := overrides.get("input", {}).get("audio_s")) and kind == "transcriptions":
        body[AUDIO_SECONDS] = audio_s
    return body


def without_models(arrivals: Iterable[Arrival], models: str) -> list[Arrival]:
    """Captured requests without the models for which `models`, the value of --model, names another one."""
    kinds = [word.partition("=")[0] for word in models.split(",")] if "=" in models or not models else None
    return [
        replace(arrival, overrides={name: value for name, value in arrival.overrides.items() if name != "model"})
        if "endpoint" in arrival.overrides and (kinds is None or arrival.kind in kinds)
        else arrival
        for arrival in arrivals
    ]

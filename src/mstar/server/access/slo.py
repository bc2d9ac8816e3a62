"""How soon and how fast a client wants its answer, as its request says. What was promised is kept by others.

A request may change what its key and the server say, but not its weight: who gets more than others is the operator's.
"""

from __future__ import annotations

import re
from typing import Any

from msgspec.structs import replace

from mstar.server.errors import ApiError
from mstar.wire.slo import Slo

SLO_HEADER = "Mstar-SLO"
_SLO_FIELDS = {"ttft": "ttft_s", "tokens_per_second": "tokens_per_s"}
_NUMBER = re.compile(r"[0-9]{1,4}(?:\.[0-9]{1,4})?")
SLO_SYNTAX = "`best_effort`, or `ttft=SECONDS`, `tokens_per_second=RATE`, or both separated by a comma"
"""How the header is written."""


def apply_slo_header(slo: Slo, header: str) -> Slo:
    """A pace as the header of a request changes it. Raises Refusal."""
    parts = [part.strip() for part in header.split(",")] if header else []
    read = dict(map(_parse_part, parts))
    if len(read) < len(parts) or {"ttft_s", "best_effort"} <= read.keys():
        raise _invalid_slo(SLO_HEADER, header, SLO_SYNTAX)
    if "ttft_s" in read:
        read["best_effort"] = False
    return replace(slo, **read)


def _parse_part(part: str) -> tuple[str, Any]:
    name, _, number = part.partition("=")
    if part == "best_effort":
        return "best_effort", True
    if name not in _SLO_FIELDS:
        raise _invalid_slo(SLO_HEADER, part, SLO_SYNTAX)
    return _SLO_FIELDS[name], _parse_positive(number, SLO_HEADER, SLO_SYNTAX)


def slo_for_rate(slo: Slo, hz: str) -> Slo:
    """A pace at which the answer is there when the next is asked for, so many times a second. Raises Refusal."""
    return replace(slo, ttft_s=1 / _parse_positive(hz, "hz", "how often a second the robot asks"), best_effort=False)


def as_best_effort(slo: Slo) -> Slo:
    """A pace that promises nothing."""
    return replace(slo, best_effort=True)


def _parse_positive(number: str, param: str, syntax: str) -> float:
    if not _NUMBER.fullmatch(number) or not float(number):
        raise _invalid_slo(param, number, f"{syntax}; numbers are from 0.0001 to 9999.9999")
    return float(number)


def _invalid_slo(param: str, value: str, syntax: str) -> ApiError:
    return ApiError(400, "invalid_slo", f"{param}: {value[:64]!r} cannot be read; it is {syntax}", param=param)

"""SLO header: the service level objective (TTFT target, tokens per second, best effort) that a request sets for itself.

A request can override the SLO of its tenant and of the server, but not its weight: shares between tenants are the
operator's decision. The conductor and the workers schedule by the SLO; this module only parses it.
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
"""Syntax of the header, for error messages and the OpenAPI document."""


def apply_slo_header(slo: Slo, header: str) -> Slo:
    """The SLO with the overrides of a request header. Raises ApiError if the header is invalid."""
    if not header:
        return slo
    parts = [part.strip() for part in header.split(",")]
    overrides = dict(map(_parse_part, parts))
    if len(overrides) < len(parts) or {"ttft_s", "best_effort"} <= overrides.keys():
        raise _invalid_slo(SLO_HEADER, header, SLO_SYNTAX)
    if "ttft_s" in overrides:
        overrides["best_effort"] = False
    return replace(slo, **overrides)


def _parse_part(part: str) -> tuple[str, Any]:
    name, _, number = part.partition("=")
    if part == "best_effort":
        return "best_effort", True
    if name not in _SLO_FIELDS:
        raise _invalid_slo(SLO_HEADER, part, SLO_SYNTAX)
    return _SLO_FIELDS[name], _parse_positive(number, SLO_HEADER, SLO_SYNTAX)


def slo_for_rate(slo: Slo, hz: str) -> Slo:
    """The SLO of a robot's control loop: the response must arrive before the next request. Raises ApiError."""
    return replace(
        slo, ttft_s=1 / _parse_positive(hz, "hz", "the control rate in requests per second"), best_effort=False
    )


def as_best_effort(slo: Slo) -> Slo:
    """The SLO without a TTFT promise."""
    return replace(slo, best_effort=True)


def _parse_positive(number: str, param: str, syntax: str) -> float:
    if not _NUMBER.fullmatch(number) or not float(number):
        raise _invalid_slo(param, number, f"{syntax}; numbers are from 0.0001 to 9999.9999")
    return float(number)


def _invalid_slo(param: str, value: str, syntax: str) -> ApiError:
    return ApiError(400, "invalid_slo", f"{param}: {value[:64]!r} is invalid; fix: use {syntax}", param=param)

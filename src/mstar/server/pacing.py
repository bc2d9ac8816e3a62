"""How soon and how fast a client wants its answer, as its request says. What was promised is kept by others.

A request may change what its key and the server say, but not its weight: who gets more than others is the operator's.
"""

from __future__ import annotations

import re
from typing import Any

from msgspec.structs import replace

from mstar.server.refusals import Refusal
from mstar.wire.pace import Pace

HEADER = "Mstar-Pace"
_FIELDS = {"first": "first_s", "read": "read"}
_NUMBER = re.compile(r"[0-9]{1,4}(?:\.[0-9]{1,4})?")
FORMS = "`batch`, or `first=SECONDS`, `read=TOKENS A SECOND`, or both with a comma between them"
"""How the header is written."""


def paced(pace: Pace, wish: str) -> Pace:
    """A pace as the header of a request changes it. Raises Refusal."""
    parts = [part.strip() for part in wish.split(",")] if wish else []
    read = dict(map(_read, parts))
    if len(read) < len(parts) or {"first_s", "is_batch"} <= read.keys():
        raise _wrong(HEADER, wish, FORMS)
    if "first_s" in read:
        read["is_batch"] = False
    return replace(pace, **read)


def _read(part: str) -> tuple[str, Any]:
    name, _, number = part.partition("=")
    if part == "batch":
        return "is_batch", True
    if name not in _FIELDS:
        raise _wrong(HEADER, part, FORMS)
    return _FIELDS[name], _positive(number, HEADER, FORMS)


def at_rate(pace: Pace, hz: str) -> Pace:
    """A pace at which the answer is there when the next is asked for, so many times a second. Raises Refusal."""
    return replace(pace, first_s=1 / _positive(hz, "hz", "how often a second the robot asks"), is_batch=False)


def as_batch(pace: Pace) -> Pace:
    """A pace that promises nothing."""
    return replace(pace, is_batch=True)


def _positive(number: str, param: str, forms: str) -> float:
    if not _NUMBER.fullmatch(number) or not float(number):
        raise _wrong(param, number, f"{forms}; numbers are from 0.0001 to 9999.9999")
    return float(number)


def _wrong(param: str, said: str, forms: str) -> Refusal:
    return Refusal(400, "invalid_pace", f"{param}: {said[:64]!r} cannot be read; it is {forms}", param=param)

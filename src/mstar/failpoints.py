"""Failpoints: named places where tests inject faults. No-ops in production.

`hit("worker.start_walk")` marks a place. A test arms it with an action: `kill` (SIGKILL to this process), `raise`, or
`sleep:SECONDS`. A suffix `@3` triggers on the third hit only.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Mapping

_armed: dict[str, tuple[str, int]] = {}
_hits: Counter[str] = Counter()


class FailpointHit(Exception):
    """Raised by the action `raise`."""


def arm(points: Mapping[str, str]) -> None:
    """Arm these failpoints and disarm all others."""
    _armed.clear()
    _hits.clear()
    for name, spec in points.items():
        action, _, when = spec.partition("@")
        _armed[name] = (action, int(when or 0))


def hits() -> dict[str, int]:
    """Number of hits of each armed failpoint."""
    return dict(_hits)


def hit(name: str) -> None:
    """Trigger the action of a failpoint, if it is armed."""
    if _armed and (armed := _armed.get(name)) is not None:  # one lookup: another thread can disarm it
        _trigger(name, *armed)


def _trigger(name: str, action: str, when: int) -> None:
    _hits[name] += 1
    if when and _hits[name] != when:
        return
    kind, _, argument = action.partition(":")
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "sleep":
        time.sleep(float(argument))
    elif kind == "raise":
        raise FailpointHit(f"failpoint {name}")
    else:
        raise ValueError(
            f"failpoint {name} has no action `{action}`\n  fix: use kill, raise or sleep:SECONDS, each with @N"
        )

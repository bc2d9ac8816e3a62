"""Failpoints: named places in the runtime where a test can make something go wrong. In service they do nothing.

`hit("worker.start_walk")` stands where it could matter. A test arms a point with what is to happen there: `kill` ends the
process at once, `raise` raises, `sleep:0.05` waits so many seconds; `kill@3` happens at the third hit only.
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
    """What `raise` raises."""


def arm(points: Mapping[str, str]) -> None:
    """Have things happen at these points, and at no others."""
    _armed.clear()
    _hits.clear()
    for name, what in points.items():
        action, _, when = what.partition("@")
        _armed[name] = (action, int(when or 0))


def hits() -> dict[str, int]:
    """How often the program has come to each armed point."""
    return dict(_hits)


def hit(name: str) -> None:
    """The program has come to this point."""
    if _armed and (armed := _armed.get(name)) is not None:  # looked up once: another thread may disarm it
        _trigger(name, *armed)


def _trigger(name: str, action: str, when: int) -> None:
    _hits[name] += 1
    if when and _hits[name] != when:
        return
    what, _, argument = action.partition(":")
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "sleep":
        time.sleep(float(argument))
    elif what == "raise":
        raise FailpointHit(f"failpoint {name}")
    else:
        raise ValueError(f"failpoint {name} is to `{action}`\n  fix: use kill, raise or sleep:SECONDS, each with @N")

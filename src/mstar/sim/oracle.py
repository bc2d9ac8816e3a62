"""What a request should give, by running its model eagerly."""

from __future__ import annotations

import functools
from collections import defaultdict
from typing import Any

from mstar.sim.models import Ask, model_of


def digest(value: Any) -> bytes:
    """A few bytes for a value of a toy model."""
    return repr(value).encode()


@functools.cache
def expected(model: str, key: int, steps: int) -> tuple[dict[str, list[bytes]], bytes]:
    """The digests of all emissions by kind, and of the result."""
    outcome = model_of(model).run(Ask(key, steps))
    streams: defaultdict[str, list[bytes]] = defaultdict(list)
    for emission in outcome.emissions:
        streams[type(emission).__name__].append(digest(emission.value))
    return dict(streams), digest(outcome.result)

"""What a request should give, by running its model eagerly."""

from __future__ import annotations

import functools
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from mstar.sim.models import SimRequest, sim_model
from mstar.walk.client_input import ClientInput

if TYPE_CHECKING:
    from mstar.sim.scenario import SimClient


def digest(value: Any) -> bytes:
    """A few bytes for a value of a toy model."""
    return repr(value).encode()


def expected_outcome(client: SimClient) -> tuple[dict[str, list[bytes]], bytes, list[bytes]]:
    """The digests of all emissions by kind, of the result, and of what the client is told between what it says."""
    said = tuple((one.value, one.walk, tuple(one.counts.items())) for one in client.accepted_inputs)
    return _eager_outcome(client.model, client.request.key, client.request.steps, said)


@functools.lru_cache(4096)
def _eager_outcome(
    model: str, key: int, steps: int, said: tuple[tuple[int, int, tuple[tuple[str, int], ...]], ...]
) -> tuple[dict[str, list[bytes]], bytes, list[bytes]]:
    heard = [ClientInput(value, walk, dict(counts)) for value, walk, counts in said]
    outcome = sim_model(model).run(SimRequest(key, steps), heard)
    streams: defaultdict[str, list[bytes]] = defaultdict(list)
    for emission in outcome.emissions:
        streams[type(emission).__name__].append(digest(emission.value))
    return dict(streams), digest(outcome.result), [digest(answer) for answer in outcome.answers]

"""Test oracle: the expected output of a request, from eager execution of its model."""

from __future__ import annotations

import functools
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from mstar.sim.models import SimRequest, sim_model
from mstar.walk.client_input import ClientInput

if TYPE_CHECKING:
    from mstar.sim.scenario import SimClient


def digest(value: Any) -> bytes:
    """Digest of a value of a simulator model."""
    return repr(value).encode()


def expected_outcome(client: SimClient) -> tuple[dict[str, list[bytes]], bytes, list[bytes]]:
    """Return the digests of the outputs by kind, of the result, and of the answers between inputs."""
    inputs = tuple((each.value, each.walk, tuple(each.counts.items())) for each in client.accepted_inputs)
    return _eager_outcome(client.model, client.request.key, client.request.steps, inputs)


@functools.lru_cache(4096)
def _eager_outcome(
    model: str, key: int, steps: int, inputs: tuple[tuple[int, int, tuple[tuple[str, int], ...]], ...]
) -> tuple[dict[str, list[bytes]], bytes, list[bytes]]:
    client_inputs = [ClientInput(value, walk, dict(counts)) for value, walk, counts in inputs]
    outcome = sim_model(model).run(SimRequest(key, steps), client_inputs)
    streams: defaultdict[str, list[bytes]] = defaultdict(list)
    for emission in outcome.emissions:
        streams[type(emission).__name__].append(digest(emission.value))
    return dict(streams), digest(outcome.result), [digest(answer) for answer in outcome.answers]

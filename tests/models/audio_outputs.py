"""Audio outputs of requests: concurrent clients, some of which disconnect, and random placements."""

import random

import numpy as np

from mstar.testing.local_runtime import LocalRuntime
from mstar.testing.parity import random_placement
from tests.models.concurrent_clients import emitted_values, run_clients

TOLERANCE = 1e-4
"""Maximum distance of samples: a batch sums in another order."""


def concat_audio(emissions):
    return np.concatenate([np.asarray(one.value) for one in emissions if type(one).__name__ == "Audio"])


def assert_close(got, wanted):
    assert got.shape == wanted.shape
    assert np.abs(wanted).max() > 100 * TOLERANCE, "silence is like silence"
    np.testing.assert_allclose(got, wanted, rtol=0, atol=TOLERANCE)


def emitted_audio(deployment, name, requests, disconnects=0):
    """Return the audio of each of several concurrent clients, while others connect and disconnect."""
    clients = run_clients(deployment, name, requests, disconnects, 0.7)
    return [np.concatenate([np.asarray(value) for value in emitted_values(client, "Audio")]) for client in clients]


def run_random_schedule(model, requests, seed):
    """Return the audio of each request under a random schedule and placement, with chunked prefill."""
    placement = random_placement(model.graphs(), random.Random(seed))
    runtime = LocalRuntime(model, placement, max_batched_tokens=5, seed=seed)
    return [concat_audio(outcome.emissions) for outcome in runtime.run_all(requests)]

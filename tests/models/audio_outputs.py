"""Speech as it was heard: alone and in a crowd, of whom some go away, under any placement."""

import random

import numpy as np

from mstar.testing.local_runtime import LocalRuntime
from mstar.testing.parity import random_placement
from tests.models.concurrent_clients import emitted_values, run_clients

TOLERANCE = 1e-4
"""How far samples may be apart: a batch adds its numbers in another order."""


def concat_audio(emissions):
    return np.concatenate([np.asarray(one.value) for one in emissions if type(one).__name__ == "Audio"])


def assert_close(got, wanted):
    assert got.shape == wanted.shape
    assert np.abs(wanted).max() > 100 * TOLERANCE, "silence is like silence"
    np.testing.assert_allclose(got, wanted, rtol=0, atol=TOLERANCE)


def emitted_audio(deployment, name, requests, disconnects=0):
    """What each of so many clients hears that speak at the same time, while others come and go away in the middle."""
    clients = run_clients(deployment, name, requests, disconnects, 0.7)
    return [np.concatenate([np.asarray(value) for value in emitted_values(client, "Audio")]) for client in clients]


def run_random_schedule(model, requests, seed):
    """What each request gives under a random schedule and placement, with prompts read in pieces."""
    placement = random_placement(model.graphs(), random.Random(seed))
    runtime = LocalRuntime(model, placement, max_batched_tokens=5, seed=seed)
    return [concat_audio(outcome.emissions) for outcome in runtime.run_all(requests)]

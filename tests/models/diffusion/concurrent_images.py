"""Many who want pictures or films at the same time, while others go away, and what each of them was shown."""

import numpy as np

from tests.models.concurrent_clients import run_clients

TOLERANCE = 1e-4
"""How far numbers may be apart: a batch adds them in another order."""


def assert_close(got, wanted):
    assert len(got) == len(wanted)
    for one, other in zip(got, wanted, strict=True):
        assert np.asarray(one).shape == other.shape
        np.testing.assert_allclose(np.asarray(one), other, rtol=0, atol=TOLERANCE)


def emitted_images(deployment, name, requests, disconnects=4):
    """What each is shown that asks at the same time as all others, of whom some leave in the middle."""
    clients = run_clients(deployment, name, requests, disconnects)
    return [[np.asarray(news.value) for _, news in client.log[1:-1]] for client in clients]

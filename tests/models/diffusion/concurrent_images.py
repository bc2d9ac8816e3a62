"""Concurrent clients for images and videos, while others disconnect."""

import numpy as np

from tests.models.concurrent_clients import run_clients

TOLERANCE = 1e-4
"""Maximum distance of values: a batch sums in another order."""


def assert_close(got, wanted):
    assert len(got) == len(wanted)
    for one, other in zip(got, wanted, strict=True):
        assert np.asarray(one).shape == other.shape
        np.testing.assert_allclose(np.asarray(one), other, rtol=0, atol=TOLERANCE)


def emitted_images(deployment, name, requests, disconnects=4):
    """Return the outputs of concurrent clients, some of which disconnect."""
    clients = run_clients(deployment, name, requests, disconnects)
    return [[np.asarray(event.value) for _, event in client.log[1:-1]] for client in clients]

"""Many who want pictures or films at the same time, while others go away, and what each of them was shown."""

import numpy as np

from tests.models.crowds import served

CLOSE = 1e-4
"""How far numbers may be apart: a batch adds them in another order."""


def assert_alike(got, wanted):
    assert len(got) == len(wanted)
    for one, other in zip(got, wanted, strict=True):
        assert np.asarray(one).shape == other.shape
        np.testing.assert_allclose(np.asarray(one), other, rtol=0, atol=CLOSE)


def shown(deployment, name, requests, leavers=4):
    """What each is shown that asks at the same time as all others, of whom some leave in the middle."""
    clients = served(deployment, name, requests, leavers)
    return [[np.asarray(news.value) for _, news in client.log[1:-1]] for client in clients]

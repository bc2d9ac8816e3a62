"""Speech as it was heard: alone and in a crowd, of whom some go away, under any placement."""

import random
import threading
from contextlib import contextmanager

import numpy as np

from mstar.launch.local import Local
from mstar.launch.together import Together
from mstar.plan.compile import plan
from mstar.plan.deployment import Deployed
from mstar.testing.local import LocalRuntime
from mstar.testing.parity import random_placement
from mstar.wire.messages import Finished
from tests.served.parts import Client, front

CLOSE = 1e-4
"""How far samples may be apart: a batch adds its numbers in another order."""


def sound_of(emissions):
    return np.concatenate([np.asarray(one.value) for one in emissions if type(one).__name__ == "Audio"])


def assert_alike(got, wanted):
    assert got.shape == wanted.shape
    assert np.abs(wanted).max() > 100 * CLOSE, "silence is like silence"
    np.testing.assert_allclose(got, wanted, rtol=0, atol=CLOSE)


def heard(deployment, name, requests, leavers=0):
    """What each of so many clients hears that speak at the same time, while others come and go away in the middle."""
    front_end, chosen = front(deployment, f"front_{name}"), random.Random(name)
    leaving = [Client(front_end, name, chosen.choice(requests)) for _ in range(leavers)]
    timers = [threading.Timer(number and chosen.uniform(0, 0.7), one.close) for number, one in enumerate(leaving)]
    for timer in timers:
        timer.start()
    clients = [Client(front_end, name, request, patience=60) for request in requests]
    sounds = []
    for client in clients:
        client.wait(60)
        assert isinstance(client.end, Finished), client.end
        sounds.append(np.concatenate([np.asarray(news.value) for _, news in client.log[1:-1] if news.kind == "Audio"]))
    for timer in timers:
        timer.join()
    assert not leaving or any(client.end is None for client in leaving), "none of them went away in the middle"
    return sounds


def anyhow(model, requests, seed):
    """What each request gives under a random schedule and placement, with prompts read in pieces."""
    placement = random_placement(model.graphs(), random.Random(seed))
    runtime = LocalRuntime(model, placement, token_budget=5, seed=seed)
    return [sound_of(outcome.emissions) for outcome in runtime.run_all(requests)]


@contextmanager
def together(name, model):
    """All of a model in this process."""
    with Together({name: Deployed(model, plan(model.graphs()))}) as deployment:
        yield deployment


@contextmanager
def apart(name, file, places):
    """A model file in processes: where each component is, as it is written in a placement."""
    text = "[place]\n" + "".join(f"{component} = {workers}\n" for component, workers in places.items())
    with Local({name: str(file)}, {name: text}, spare=False) as deployment:
        yield deployment
        assert not deployment.deaths

"""Many who ask at the same time, while others come and go away in the middle, of a model here or in processes."""

import random
import threading
from contextlib import contextmanager

from mstar.launch.local import Local
from mstar.launch.together import Together
from mstar.plan.compile import plan
from mstar.plan.deployment import Deployed
from mstar.wire.messages import Finished
from tests.served.parts import Client, front


@contextmanager
def together(name, model):
    """All of a model in this process."""
    with Together({name: Deployed(model, plan(model.graphs()))}) as deployment:
        yield deployment


@contextmanager
def apart(name, target, places):
    """A model in processes: where each component is, as it is written in a placement."""
    text = "[place]\n" + "".join(f"{component} = {workers}\n" for component, workers in places.items())
    with Local({name: str(target)}, {name: text}, spare=False) as deployment:
        yield deployment
        assert not deployment.deaths


@contextmanager
def leaving(front_end, name, requests, count, within_s):
    """Meanwhile, so many others ask for any of this, and go away within so many seconds, some in the middle."""
    chosen = random.Random(name)
    clients = [Client(front_end, name, chosen.choice(requests)) for _ in range(count)]
    waits = [number and chosen.uniform(0, within_s) for number in range(count)]
    timers = [threading.Timer(wait, client.close) for wait, client in zip(waits, clients, strict=True)]
    for timer in timers:
        timer.start()
    yield
    for timer in timers:
        timer.join()
    assert not clients or any(client.end is None for client in clients), "none of them went away in the middle"


def served(deployment, name, requests, leavers=0, within_s=0.3):
    """The clients of all requests, which were made at the same time, when each was served well."""
    front_end = front(deployment, f"front_{name}_{len(requests)}")
    with leaving(front_end, name, requests, leavers, within_s):
        clients = [Client(front_end, name, request, patience=60) for request in requests]
        for client in clients:
            client.wait(60)
            assert isinstance(client.end, Finished), client.end
            assert client.end.status == "ok", client.end
    return clients


def values(client, kind):
    """What a client was given of a kind."""
    return [news.value for _, news in client.log[1:-1] if news.kind == kind]

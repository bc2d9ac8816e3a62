"""Many who ask at the same time, while others come and go away in the middle, of a model here or in processes."""

import random
import threading
from contextlib import contextmanager

from mstar.launch.in_process import InProcessLauncher
from mstar.launch.local_launcher import LocalLauncher
from mstar.plan.compile import plan
from mstar.plan.planned_model import PlannedModel
from mstar.wire.messages import RequestFinished
from tests.integration.deployment_clients import Client, add_frontend


@contextmanager
def in_process(name, model):
    """All of a model in this process."""
    with InProcessLauncher({name: PlannedModel(model, plan(model.graphs()))}) as deployment:
        yield deployment


@contextmanager
def in_processes(name, target, places):
    """A model in processes: where each component is, as it is written in a placement."""
    text = "[place]\n" + "".join(f"{component} = {workers}\n" for component, workers in places.items())
    with LocalLauncher({name: str(target)}, {name: text}, standby=False) as deployment:
        yield deployment
        assert not deployment.recent_exits


@contextmanager
def disconnecting_clients(front_end, name, requests, count, within_s):
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


def run_clients(deployment, name, requests, disconnects=0, within_s=0.3):
    """The clients of all requests, which were made at the same time, when each was served well."""
    front_end = add_frontend(deployment, f"front_{name}_{len(requests)}")
    with disconnecting_clients(front_end, name, requests, disconnects, within_s):
        clients = [Client(front_end, name, request, timeout_s=60) for request in requests]
        for client in clients:
            client.wait(60)
            assert isinstance(client.end, RequestFinished), client.end
            assert client.end.status == "ok", client.end
    return clients


def emitted_values(client, kind):
    """What a client was given of a kind."""
    return [news.value for _, news in client.log[1:-1] if news.kind == kind]

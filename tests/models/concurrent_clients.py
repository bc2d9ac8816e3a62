"""Concurrent clients of a model, in this process or in worker processes, while others disconnect."""

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
    """Deploy all of a model in this process."""
    with InProcessLauncher({name: PlannedModel(model, plan(model.graphs()))}) as deployment:
        yield deployment


@contextmanager
def in_processes(name, target, places):
    """Deploy a model in worker processes. `places` maps components to workers."""
    text = "[place]\n" + "".join(f"{component} = {workers}\n" for component, workers in places.items())
    with LocalLauncher({name: str(target)}, {name: text}, standby=False) as deployment:
        yield deployment
        assert not deployment.recent_exits


@contextmanager
def disconnecting_clients(front_end, name, requests, count, within_s):
    """Connect other clients meanwhile, which disconnect within this number of seconds."""
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
    """Run all requests concurrently, and return their clients when each has finished without an error."""
    front_end = add_frontend(deployment, f"front_{name}_{len(requests)}")
    with disconnecting_clients(front_end, name, requests, disconnects, within_s):
        clients = [Client(front_end, name, request, timeout_s=60) for request in requests]
        for client in clients:
            client.wait(60)
            assert isinstance(client.end, RequestFinished), client.end
            assert client.end.status == "ok", client.end
    return clients


def emitted_values(client, kind):
    """Return the emitted values of one kind."""
    return [event.value for _, event in client.log[1:-1] if event.kind == kind]

"""Clients of a deployment, with an oracle that compares their outputs with an eager run."""

import sys
import threading
import time
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

from mstar.frontend.actor import FrontendActor, digest
from mstar.frontend.core import AwaitingInput, RequestEnded
from mstar.sim.history import History
from mstar.walk.load import load_model
from mstar.wire.messages import Peer, RequestFinished, Submit, Value

EXAMPLES = Path(__file__).parents[2] / "examples"
TARGETS = {path.stem: str(path) for path in sorted(EXAMPLES.glob("*.py"))}
"""Example models, by name."""
REQUEST_TIMEOUT_S = 170.0
"""Timeout of requests in tests that are not about time: just below the time limit of a test."""


def module_of(model):
    """Module of a loaded model file, which defines its request classes."""
    return sys.modules[type(model).__module__]


def _digest(*values):
    return digest(values).hex().encode()


class Oracle:
    """A model, requests for it, and the expected outputs from an eager run."""

    def __init__(self, model, requests):
        self.model = model
        self.requests = requests
        self._expected = [self._eager(request) for request in requests]

    @classmethod
    def from_file(cls, target):
        """Oracle of a model file with its suggested requests."""
        model = load_model(target)
        return cls(model, module_of(model).requests())

    def _eager(self, request):
        outcome, streams = self.model.run(request), defaultdict(list)
        for emission in outcome.emissions:
            streams[type(emission).__name__].append(_digest(emission.value, emission.clock))
        return dict(streams), _digest(outcome.result)

    def check(self, client, number):
        """Check that a client received exactly the expected outputs: each emission once, in order, and the result."""
        history = History()
        history.submit(client.log[0][0], client.rid, *self._expected[number % len(self.requests)])
        for time_s, event in client.log[1:]:
            if isinstance(event, RequestEnded):
                assert isinstance(event.end, RequestFinished), event.end
                history.end(time_s, client.rid, event.end.status, _digest(event.end.result.content))
            else:
                history.deliver(client.rid, event.kind, event.index, _digest(event.value, event.clock))
        assert client.end.status == "ok", client.end


class Client:
    """Client of one request that logs its events. It consumes outputs at once, unless it is idle."""

    def __init__(self, front_end, model, request, *, timeout_s=30.0, is_idle=False):
        self.rid = front_end.new_rid()
        self.end = None
        self.log = [(time.monotonic(), None)]
        self.is_idle = is_idle
        self._front_end = front_end
        self._counts = Counter()
        self._ended = threading.Event()
        front_end.submit(Submit(self.rid, model, Value(request), timeout_s=timeout_s), self._on_event)

    def _on_event(self, event):
        self.log.append((time.monotonic(), event))
        if isinstance(event, RequestEnded):
            self.end = event.end
            self._ended.set()
        elif isinstance(event, AwaitingInput):
            self.log.pop()
            self._front_end.send_input(self.rid, None)
        else:
            self._counts[event.kind] += 1
            if not self.is_idle:
                self._front_end.report_consumed({(self.rid, event.kind): self._counts[event.kind]})

    def resume_reading(self):
        """Consume all outputs so far, and all further ones at once."""
        self.is_idle = False
        for kind, count in self._counts.items():
            self._front_end.report_consumed({(self.rid, kind): count})

    def wait(self, seconds=30.0):
        """Wait for the end of the request."""
        assert self._ended.wait(seconds), f"{self.rid} has not ended; outputs so far: {self.output_counts}"
        return self

    def wait_up_to(self, seconds):
        """Wait for the end of the request for a limited time."""
        self._ended.wait(seconds)

    @property
    def output_counts(self):
        """Number of received emissions by kind."""
        return dict(self._counts)

    @property
    def max_gap_s(self):
        """Longest time without an event, in seconds."""
        return max(later - earlier for (earlier, _), (later, _) in pairwise(self.log))

    @property
    def duration_s(self):
        """Duration of the request, in seconds."""
        return self.log[-1][0] - self.log[0][0]

    def close(self):
        """Disconnect."""
        self._front_end.close(self.rid)


def add_frontend(deployment, name="front"):
    """Add a front end to a deployment."""
    front_end = FrontendActor(deployment.actor_loop, Peer(name, 0), deployment.conductors)
    deployment.add_frontend(front_end)
    return front_end


def wait_for_clients(clients, stall_s=30.0):
    """Wait for the end of all clients. Fails if none of them gets an event for `stall_s` seconds.

    The total time is not limited: on a busy machine it says nothing about the deployment.
    """
    while waiting := [client for client in clients if client.end is None]:
        silent_s = time.monotonic() - max(client.log[-1][0] for client in clients)
        counts = {client.rid: client.output_counts for client in waiting}
        assert silent_s < stall_s, f"no event for {silent_s:.0f} s; outputs so far: {counts}"
        waiting[0].wait_up_to(0.1)


def run_clients(front_end, model, oracle, count, stall_s=30.0):
    """Run concurrent clients and check each of them."""
    requests = [oracle.requests[number % len(oracle.requests)] for number in range(count)]
    clients = [Client(front_end, model, request, timeout_s=REQUEST_TIMEOUT_S) for request in requests]
    wait_for_clients(clients, stall_s)
    for number, client in enumerate(clients):
        oracle.check(client, number)
    return clients

"""Clients of a deployment, what they saw, and whether that is what the model computes eagerly."""

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
"""The example models, by name."""


def module_of(model):
    """The module of a model file, as it was loaded: its classes are known by that everywhere."""
    return sys.modules[type(model).__module__]


def _digest(*values):
    return digest(values).hex().encode()


class Oracle:
    """A model, requests for it, and what each gives when it is run eagerly."""

    def __init__(self, model, requests):
        self.model = model
        self.requests = requests
        self._wanted = [self._eager(request) for request in requests]

    @classmethod
    def from_file(cls, target):
        """Of a model file, with the requests it suggests."""
        model = load_model(target)
        return cls(model, module_of(model).requests())

    def _eager(self, request):
        outcome, streams = self.model.run(request), defaultdict(list)
        for emission in outcome.emissions:
            streams[type(emission).__name__].append(_digest(emission.value, emission.clock))
        return dict(streams), _digest(outcome.result)

    def check(self, client, number):
        """Whether a client got exactly what is right: each emission once, in order, the last one and the result too."""
        history = History()
        history.submit(client.log[0][0], client.rid, *self._wanted[number % len(self.requests)])
        for when, news in client.log[1:]:
            if isinstance(news, RequestEnded):
                assert isinstance(news.end, RequestFinished), news.end
                history.end(when, client.rid, news.end.status, _digest(news.end.result.content))
            else:
                history.deliver(client.rid, news.kind, news.index, _digest(news.value, news.clock))
        assert client.end.status == "ok", client.end


class Client:
    """One who wants something and keeps a log of what comes. It takes all of it at once, unless it is idle."""

    def __init__(self, front_end, model, request, *, timeout_s=30.0, is_idle=False):
        self.rid = front_end.new_rid()
        self.end = None
        self.log = [(time.monotonic(), None)]
        self.is_idle = is_idle
        self._front_end = front_end
        self._counts = Counter()
        self._ended = threading.Event()
        front_end.submit(Submit(self.rid, model, Value(request), timeout_s=timeout_s), self._on_event)

    def _on_event(self, news):
        self.log.append((time.monotonic(), news))
        if isinstance(news, RequestEnded):
            self.end = news.end
            self._ended.set()
        elif isinstance(news, AwaitingInput):
            self.log.pop()
            self._front_end.send_input(self.rid, None)
        else:
            self._counts[news.kind] += 1
            if not self.is_idle:
                self._front_end.report_consumed(self.rid, news.kind, self._counts[news.kind])

    def resume_reading(self):
        """Take what has come, and from now on all that comes."""
        self.is_idle = False
        for kind, count in self._counts.items():
            self._front_end.report_consumed(self.rid, kind, count)

    def wait(self, seconds=30.0):
        """Wait for its end."""
        assert self._ended.wait(seconds), f"{self.rid} has not ended; it has {self.got}"
        return self

    @property
    def output_counts(self):
        """How many emissions of each kind have come."""
        return dict(self._counts)

    @property
    def max_gap_s(self):
        """The longest time for which nothing came."""
        return max(later - earlier for (earlier, _), (later, _) in pairwise(self.log))

    @property
    def duration_s(self):
        """How long it took."""
        return self.log[-1][0] - self.log[0][0]

    def close(self):
        """Want no more."""
        self._front_end.close(self.rid)


def add_frontend(deployment, name="front"):
    """A front end of a deployment."""
    front_end = FrontendActor(deployment.actor_loop, Peer(name, 0), deployment.conductors)
    deployment.add_frontend(front_end)
    return front_end


def run_clients(front_end, model, oracle, count, timeout_s=30.0):
    """So many clients at the same time; each must get what is right."""
    asked = [oracle.requests[number % len(oracle.requests)] for number in range(count)]
    clients = [Client(front_end, model, request, timeout_s=timeout_s) for request in asked]
    for number, client in enumerate(clients):
        oracle.check(client.wait(timeout_s), number)
    return clients

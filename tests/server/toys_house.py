"""A house for toys: given models in this process, behind a real port."""

import asyncio
import threading
import time
from contextlib import contextmanager

import httpx2

from mstar.launch.together import Together
from mstar.plan.compile import plan
from mstar.plan.deployment import Deployed
from mstar.server.app import application
from mstar.server.door import Door
from mstar.server.listen import Listener, bound
from mstar.server.live import FrontEnd
from mstar.wire.messages import Peer


class House:
    """Models that are served."""

    def __init__(self, port, models, door, together, front):
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.models = models
        self.door = door
        self._together = together
        self._front = front

    def client(self, key="", **headers):
        if key:
            headers["Authorization"] = f"Bearer {key}"
        return httpx2.Client(base_url=self.url, headers=headers, timeout=10)

    def calls(self, name):
        """How many calls of an op there were, in any model."""
        ops = self._front.take_figures(Peer("local", 0)).result(1.0).ops
        found = [walk for one in ops if f"{one.component}.{one.op}" == name for walk in one.walks.values()]
        return sum(walk.calls for walk in found)

    def is_empty(self, seconds=1.0):
        """Whether nothing is left of any request after so long."""
        peers = (self._front.peer, self._together.conductor, Peer("local", 0))
        deadline = time.monotonic() + seconds
        while True:
            stocks = [self._front.take_stock(peer).result(1.0) for peer in peers]
            left = {what: n for one in stocks for what, n in one.items() if n and what not in ("workers", "arrived")}
            if not left or time.monotonic() > deadline:
                return not left
            time.sleep(0.01)

    def is_left(self, seconds=1.0):
        """Whether no client is there after so long, and nothing of what it asked for."""
        deadline = time.monotonic() + seconds
        while self.door.visits and time.monotonic() < deadline:
            time.sleep(0.01)
        return not self.door.visits and self.is_empty(seconds)


@contextmanager
def housing(models, keys=None, options=None):
    """Serve these models."""
    deployed = {name: Deployed(model, plan(model.graphs(), None)) for name, model in models.items()}
    door = Door(models, keys)
    door.plans = {name: one.plans for name, one in deployed.items()}
    listener = Listener(door, application(door), drain_s=1)
    with Together(deployed, options=options) as together, bound("127.0.0.1", 0) as listening:
        front = FrontEnd(together.node, Peer("front", 0), together.conductors)
        together.add(front)
        loop = asyncio.new_event_loop()

        async def run():
            door.begin(front, lambda: (together.conductor, Peer("local", 0)), loop)
            await listener.serve([listening])

        thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
        thread.start()
        while not listener.started:
            time.sleep(0.005)
        yield House(listening.getsockname()[1], models, door, together, front)
        loop.call_soon_threadsafe(listener.end)
        thread.join()
        loop.close()

"""A server for tests: real models in this process, behind a real port."""

import asyncio
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass

import httpx2

from mstar.launch.together import Together
from mstar.plan.compile import plan
from mstar.plan.deployment import Deployed
from mstar.server.app import application
from mstar.server.door import Condition, Door
from mstar.server.listen import Listener, bound
from mstar.server.live import FrontEnd
from mstar.wire.messages import Peer
from tests.server.models import Free, Mixer, Parrot, Vectors


@dataclass
class Server:
    """One that runs."""

    url: str
    door: Door
    front: FrontEnd
    together: Together
    parrot: Parrot

    def client(self, key="", **how):
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx2.Client(base_url=self.url, headers=headers, timeout=10, verify=False, **how)  # which is HTTP

    def stock(self):
        """What is held of requests, by front end, conductor and worker."""
        peers = (self.front.peer, self.together.conductor, Peer("local", 0))
        stocks = [self.front.take_stock(peer).result(1.0) for peer in peers]
        return {what: n for stock in stocks for what, n in stock.items() if n and what not in ("workers", "arrived")}

    def settles(self, seconds=1.0):
        """Whether nothing is left of any request after so long."""
        deadline = time.monotonic() + seconds
        while (self.stock() or self.door.visits) and time.monotonic() < deadline:
            time.sleep(0.01)
        return not self.stock() and not self.door.visits


@contextmanager
def serving(*, keys=None, limits=None, options=None, pages=()):
    """Serve the models of the tests."""
    parrot = Parrot()
    models = {"parrot": parrot, "vectors": Vectors(), "mixer": Mixer(), "free": Free()}
    deployed = {name: Deployed(model, plan(model.graphs(), None)) for name, model in models.items()}
    door = Door(models, keys, limits)
    door.plans = {name: one.plans for name, one in deployed.items()}
    door.conditions = lambda: {"local": Condition("up")}
    listener = Listener(door, application(door, pages), drain_s=2)
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
        yield Server(f"http://127.0.0.1:{listening.getsockname()[1]}", door, front, together, parrot)
        loop.call_soon_threadsafe(listener.end)
        thread.join()
        loop.close()


def said(text, **more):
    """The body of a chat in which the user said this."""
    return {"model": "parrot", "messages": [{"role": "user", "content": text}]} | more

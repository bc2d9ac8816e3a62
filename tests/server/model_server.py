"""A house for toys: given models in this process, behind a real port."""

import asyncio
import threading
import time
from contextlib import contextmanager

import httpx2

from mstar.frontend.response_stream import FrontendActor
from mstar.launch.in_process import InProcessLauncher
from mstar.plan.compile import plan
from mstar.plan.planned_model import PlannedModel
from mstar.server.app import build_app
from mstar.server.http_server import HttpServer, bind_socket
from mstar.server.state import ServerState
from mstar.wire.messages import Peer


class ModelServer:
    """Models that are served."""

    def __init__(self, port, models, door, together, front):
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.models = models
        self.state = door
        self._launcher = together
        self._front = front

    def client(self, key="", **headers):
        if key:
            headers["Authorization"] = f"Bearer {key}"
        return httpx2.Client(base_url=self.url, headers=headers, timeout=10)

    def op_calls(self, name):
        """How many calls of an op there were, in any model."""
        ops = self._front.query_stats(Peer("local", 0)).result(1.0).ops
        found = [walk for one in ops if f"{one.component}.{one.op}" == name for walk in one.walks.values()]
        return sum(walk.calls for walk in found)

    def is_idle(self, seconds=1.0):
        """Whether nothing is left of any request after so long."""
        peers = (self._front.peer, self._launcher.conductor, Peer("local", 0))
        deadline = time.monotonic() + seconds
        while True:
            stocks = [self._front.query_counts(peer).result(1.0) for peer in peers]
            left = {what: n for one in stocks for what, n in one.items() if n and what not in ("workers", "inbox")}
            if not left or time.monotonic() > deadline:
                return not left
            time.sleep(0.01)

    def wait_until_idle(self, seconds=1.0):
        """Whether no client is there after so long, and nothing of what it asked for."""
        deadline = time.monotonic() + seconds
        while self.state.active_requests and time.monotonic() < deadline:
            time.sleep(0.01)
        return not self.state.active_requests and self.is_idle(seconds)


@contextmanager
def serve_models(models, keys=None, options=None):
    """Serve these models."""
    deployed = {name: PlannedModel(model, plan(model.graphs(), None)) for name, model in models.items()}
    door = ServerState(models, keys)
    door.plans = {name: one.plans for name, one in deployed.items()}
    listener = HttpServer(door, build_app(door), drain_timeout_s=1)
    with InProcessLauncher(deployed, options=options) as together, bind_socket("127.0.0.1", 0) as listening:
        front = FrontendActor(together.actor_loop, Peer("front", 0), together.conductors)
        together.add_frontend(front)
        loop = asyncio.new_event_loop()

        async def run():
            door.start_accepting(front, lambda: (together.conductor, Peer("local", 0)), loop)
            await listener.serve([listening])

        thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
        thread.start()
        while not listener.started:
            time.sleep(0.005)
        yield ModelServer(listening.getsockname()[1], models, door, together, front)
        loop.call_soon_threadsafe(listener.begin_shutdown)
        thread.join()
        loop.close()

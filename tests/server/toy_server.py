"""A server for tests: real models in this process, behind a real port."""

import asyncio
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass

import httpx2

from mstar.frontend.response_stream import FrontendActor
from mstar.launch.in_process import InProcessLauncher
from mstar.plan.compile import plan
from mstar.plan.planned_model import PlannedModel
from mstar.server.app import build_app
from mstar.server.http_server import HttpServer, bind_socket
from mstar.server.state import ServerState, WorkerProcessStatus
from mstar.wire.messages import Peer
from tests.server.toy_models import Mixer, NoRoute, Parrot, Vectors


@dataclass
class Server:
    """One that runs."""

    url: str
    state: ServerState
    front: FrontendActor
    launcher: InProcessLauncher
    parrot: Parrot

    def client(self, key="", **how):
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx2.Client(base_url=self.url, headers=headers, timeout=10, verify=False, **how)  # which is HTTP

    def request_stats(self):
        """What is held of requests, by front end, conductor and worker."""
        peers = (self.front.peer, self.launcher.conductor, Peer("local", 0))
        stocks = [self.front.query_counts(peer).result(1.0) for peer in peers]
        return {what: n for stock in stocks for what, n in stock.items() if n and what not in ("workers", "inbox")}

    def wait_until_idle(self, seconds=1.0):
        """Whether nothing is left of any request after so long."""
        deadline = time.monotonic() + seconds
        while (self.request_stats() or self.state.active_requests) and time.monotonic() < deadline:
            time.sleep(0.01)
        return not self.request_stats() and not self.state.active_requests


@contextmanager
def run_toy_server(*, keys=None, limits=None, options=None, pages=()):
    """Serve the models of the tests."""
    parrot = Parrot()
    models = {"parrot": parrot, "vectors": Vectors(), "mixer": Mixer(), "free": NoRoute()}
    deployed = {name: PlannedModel(model, plan(model.graphs(), None)) for name, model in models.items()}
    door = ServerState(models, keys, limits)
    door.plans = {name: one.plans for name, one in deployed.items()}
    door.process_statuses = lambda: {"local": WorkerProcessStatus("up")}
    listener = HttpServer(door, build_app(door, pages), drain_timeout_s=2)
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
        yield Server(f"http://127.0.0.1:{listening.getsockname()[1]}", door, front, together, parrot)
        loop.call_soon_threadsafe(listener.begin_shutdown)
        thread.join()
        loop.close()


def chat_body(text, **more):
    """The body of a chat in which the user said this."""
    return {"model": "parrot", "messages": [{"role": "user", "content": text}]} | more

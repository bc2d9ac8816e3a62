"""Test server with the toy chat, embedding and generic models, over a real TCP port."""

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
from mstar.server import event_loop
from mstar.server.app import build_app
from mstar.server.http_server import HttpServer, bind_socket
from mstar.server.state import ServerState, WorkerProcessStatus
from mstar.wire.messages import Peer
from tests.server.toy_models import Mixer, NoRoute, Parrot, Vectors


@dataclass
class Server:
    """A running server; `state` and the query methods look inside."""

    url: str
    state: ServerState
    front: FrontendActor
    launcher: InProcessLauncher
    parrot: Parrot
    loop: asyncio.AbstractEventLoop | None = None
    http_server: HttpServer | None = None

    def client(self, key="", timeout=10, **options):
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        # Without `verify=False` every client would load the CA bundle, although the server speaks plain HTTP.
        return httpx2.Client(base_url=self.url, headers=headers, timeout=timeout, verify=False, **options)

    def run_in_loop(self, function, *arguments):
        """Call a function in the event loop of the server."""
        self.loop.call_soon_threadsafe(function, *arguments)

    def drain(self):
        """Do what a SIGTERM does."""
        self.run_in_loop(self.http_server.begin_shutdown)

    def request_stats(self):
        """Nonzero counts of request state in the front end, conductor and worker."""
        peers = (self.front.peer, self.launcher.conductor, Peer("local", 0))
        all_counts = [self.front.query_counts(peer).result(5.0) for peer in peers]
        ignored = ("workers", "inbox")
        return {name: n for counts in all_counts for name, n in counts.items() if n and name not in ignored}

    def wait_until_idle(self, seconds=4.0):
        """Whether all HTTP requests have ended and their state is freed within `seconds`."""
        deadline = time.monotonic() + seconds
        while (self.request_stats() or self.state.active_requests) and time.monotonic() < deadline:
            time.sleep(0.01)
        return not self.request_stats() and not self.state.active_requests


@contextmanager
def run_toy_server(*, models=None, keys=None, limits=None, options=None, pages=(), drain_timeout_s=2):
    """Serve the toy models, or other ones, until the context exits."""
    parrot = Parrot()
    models = models or {"parrot": parrot, "vectors": Vectors(), "mixer": Mixer(), "free": NoRoute()}
    planned = {name: PlannedModel(model, plan(model.graphs(), None)) for name, model in models.items()}
    state = ServerState(models, keys, limits)
    state.plans = {name: model.plans for name, model in planned.items()}
    state.process_statuses = lambda: {"local": WorkerProcessStatus("up")}
    http_server = HttpServer(state, build_app(state, pages), drain_timeout_s)
    with InProcessLauncher(planned, options=options) as launcher, bind_socket("127.0.0.1", 0) as listening:
        frontend = FrontendActor(launcher.actor_loop, Peer("front", 0), launcher.conductors)
        launcher.add_frontend(frontend)
        loop = event_loop.new_event_loop()

        async def run():
            state.start_accepting(frontend, lambda: (launcher.conductor, Peer("local", 0)), loop)
            await http_server.serve([listening])

        thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
        thread.start()
        while not http_server.started:
            time.sleep(0.005)
        try:
            yield Server(
                f"http://127.0.0.1:{listening.getsockname()[1]}", state, frontend, launcher, parrot, loop, http_server
            )
        finally:
            loop.call_soon_threadsafe(http_server.begin_shutdown)
            thread.join()
            loop.close()


def chat_body(text, **more):
    """Body of a chat completion with one user message."""
    return {"model": "parrot", "messages": [{"role": "user", "content": text}]} | more

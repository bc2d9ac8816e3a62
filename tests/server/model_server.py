"""Test server: serves given models in this process, over a real TCP port."""

import threading
import time
from contextlib import contextmanager

import httpx2

from mstar.frontend.response_stream import FrontendActor
from mstar.launch.in_process import InProcessLauncher
from mstar.plan.compile import plan
from mstar.plan.planned_model import PlannedModel
from mstar.server import event_loop
from mstar.server.app import build_app
from mstar.server.http_server import HttpServer, bind_socket
from mstar.server.realtime.backup.session_backups import SessionBackups
from mstar.server.state import ServerState
from mstar.wire.messages import Peer

BACKUP_KEY = "key of all servers of a test"


class ModelServer:
    """A running server; `state` and the query methods look inside."""

    def __init__(self, port, models, state, launcher, frontend, drain=None):
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.models = models
        self.state = state
        self._launcher = launcher
        self._frontend = frontend
        self.drain = drain
        """Does what a SIGTERM does."""

    def client(self, key="", **headers):
        if key:
            headers["Authorization"] = f"Bearer {key}"
        return httpx2.Client(base_url=self.url, headers=headers, timeout=10)

    def op_calls(self, name):
        """Number of calls of an op, summed over all models."""
        ops = self._frontend.query_stats(Peer("local", 0)).result(5.0).ops
        return sum(walk.calls for op in ops if f"{op.component}.{op.op}" == name for walk in op.walks.values())

    def is_idle(self, seconds=4.0):
        """Whether all request state is freed within `seconds`."""
        peers = (self._frontend.peer, self._launcher.conductor, Peer("local", 0))
        deadline = time.monotonic() + seconds
        while True:
            counts = [self._frontend.query_counts(peer).result(5.0) for peer in peers]
            is_idle = not any(
                count
                for peer_counts in counts
                for name, count in peer_counts.items()
                if name not in ("workers", "inbox")
            )
            if is_idle or time.monotonic() > deadline:
                return is_idle
            time.sleep(0.01)

    def wait_until_idle(self, seconds=4.0):
        """Whether all HTTP requests have ended and their state is freed within `seconds`."""
        deadline = time.monotonic() + seconds
        while self.state.active_requests and time.monotonic() < deadline:
            time.sleep(0.01)
        return not self.state.active_requests and self.is_idle(seconds)


@contextmanager
def serve_models(models, keys=None, options=None, drain_timeout_s=1, limits=None, *, port=0, backup_urls=()):
    """Serve models, by name, until the context exits. Servers at `backup_urls` keep copies of its sessions."""
    planned = {name: PlannedModel(model, plan(model.graphs(), None)) for name, model in models.items()}
    state = ServerState(models, keys, limits)
    state.plans = {name: model.plans for name, model in planned.items()}
    if backup_urls:
        state.session_backups = SessionBackups(backup_urls, BACKUP_KEY, state.memory_budget, state.realtime_sessions)
    http_server = HttpServer(state, build_app(state), drain_timeout_s)
    with InProcessLauncher(planned, options=options) as launcher, bind_socket("127.0.0.1", port) as listening:
        frontend = FrontendActor(launcher.actor_loop, Peer("front", 0), launcher.conductors)
        launcher.add_frontend(frontend)
        loop = event_loop.new_event_loop()

        async def run():
            state.start_accepting(frontend, lambda: (launcher.conductor, Peer("local", 0)), loop)
            await http_server.serve([listening])

        def drain():
            loop.call_soon_threadsafe(http_server.begin_shutdown)

        thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
        thread.start()
        while not http_server.started:
            time.sleep(0.005)
        try:
            yield ModelServer(listening.getsockname()[1], models, state, launcher, frontend, drain)
        finally:
            drain()
            thread.join()
            loop.close()

"""Entry point of a front end that is a process of its own: an HTTP server on a port that other front ends share.

It loads tokenizers and plans, no weights, waits for the first report of the launcher, and only then listens: a
connection that the kernel assigns to it is served. It keeps nothing that another front end needs.

| signal | what it does |
|---|---|
| SIGTERM | drains: new requests are rejected, running ones finish, then it exits; the launcher sends it at shutdown |
| SIGTERM again | running requests end with an error |
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from mstar import process_tuning
from mstar.config import FrontendConfig
from mstar.launch.deployment import LAUNCHER
from mstar.launch.frontends.actor import SupervisedFrontend
from mstar.plan.planned_model import load_planned_models
from mstar.server import event_loop
from mstar.server.access.api_keys import ApiKeys
from mstar.server.app import build_app
from mstar.server.frontends.create_state import check_hosts, create_state, start_otlp_export
from mstar.server.frontends.deployment_view import DeploymentView, apply_view, decode_view
from mstar.server.frontends.forwarding import ForwardingMiddleware
from mstar.server.frontends.merged_metrics import export_families
from mstar.server.frontends.siblings import Siblings
from mstar.server.http_server import HttpServer, bind_socket
from mstar.server.state import ServerState
from mstar.studio.static_files import studio_routes
from mstar.transfer.codec import ArenaCodec
from mstar.transfer.remote_arrays import HostEndpoint
from mstar.wire.messages import Peer
from mstar.wire.stats import MetricFamily
from mstar.wire.transport.actor_loop import ActorLoop
from mstar.wire.transport.address_book import AddressBook

START_POLL_S = 0.01
"""Seconds between two checks whether the HTTP server listens."""
LOOP_TIMEOUT_S = 2.0
"""Seconds to wait for the thread of the actor loop at the end."""


def main(config: FrontendConfig) -> None:
    """Serve until SIGTERM."""
    models = load_planned_models(config.models, config.placements)
    server, limits, mcp_servers = config.settings.server, config.settings.limits, config.settings.mcp_servers
    state = create_state(models, ApiKeys(), server, limits, config.options, mcp_servers)
    state.siblings = siblings = Siblings(Path(config.directory), config.number, server.frontends, LAUNCHER)
    if state.session_backups is not None:
        state.session_backups.siblings = siblings
    state.adapters.share(Path(config.directory) / "adapters.json")
    check_hosts(state, server, server.port)
    if server.otlp_endpoint:
        start_otlp_export(state, server.otlp_endpoint)
    state.load_detokenizers()
    event_loop.run(_serve(config, state, siblings))


async def _serve(config: FrontendConfig, state: ServerState, siblings: Siblings) -> None:
    await FrontendProcess(config, state, siblings).run()


class FrontendProcess:
    """One front end: its actor loop in a thread, and its HTTP server in the event loop that creates it."""

    def __init__(self, config: FrontendConfig, state: ServerState, siblings: Siblings) -> None:
        self._config = config
        self._state = state
        self._siblings = siblings
        self._loop = asyncio.get_running_loop()
        self._has_report = asyncio.Event()
        self._is_listening = False
        self._view: DeploymentView | None = None
        address_book = AddressBook.from_config(config)
        endpoint = HostEndpoint(config.ip, config.key, address_book.is_local)
        self._actor_loop = ActorLoop(address_book, config.key, ArenaCodec(numpy_only=True, endpoint=endpoint))
        conductors = {model: Peer(name, config.peers[name]) for model, name in config.conductors.items()}
        self._frontend = SupervisedFrontend(self._actor_loop, Peer(config.name, config.incarnation), conductors, self)
        self._actor_loop.add(self._frontend)

    # ---------------------------------------------------------------- in the thread of the actor loop
    def on_report(self, content: bytes) -> None:
        """Handle a report of the launcher."""
        view = decode_view(content)
        with suppress(RuntimeError):  # the event loop is closed at the end
            self._loop.call_soon_threadsafe(self._apply, view)

    def export_metrics(self, names: tuple[str, ...], reply: Callable[[list[MetricFamily]], None]) -> None:
        """Call `reply` with the metrics of this front end with these names, in the event loop: that changes them."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(lambda: reply(export_families(self._state.metrics, names)))

    # ---------------------------------------------------------------- in the event loop
    def _apply(self, view: DeploymentView) -> None:
        self._view = view
        apply_view(self._state, view, self._frontend.peer)
        self._has_report.set()
        self._accept_if_ready()

    def _accept_if_ready(self) -> None:
        """Accept requests once the deployment is ready and this process listens."""
        state = self._state
        is_new = state.bridge is None and state.phase.name != "draining"
        if is_new and self._is_listening and self._view is not None and self._view.phase.name == "ready":
            state.phase = self._view.phase
            state.start_accepting(self._frontend, state.peers, self._loop)
            self._frontend.report_accepting()

    async def run(self) -> None:
        """Serve until SIGTERM."""
        thread = threading.Thread(target=self._actor_loop.run, name="mstar-frontend", daemon=True)
        thread.start()
        try:
            await self._has_report.wait()
            await self._listen()
        finally:
            self._actor_loop.stop()
            await asyncio.to_thread(thread.join, LOOP_TIMEOUT_S)

    async def _listen(self) -> None:
        server, state = self._config.settings.server, self._state
        application = build_app(state, studio_routes(needs_key=state.keys.is_required))
        application.add_middleware(ForwardingMiddleware, state=state, siblings=self._siblings)
        http_server = HttpServer(state, application, server.drain_timeout_s)
        process_tuning.freeze_heap()
        with bind_socket(server.host, server.port, reuse_port=True) as listening, self._bind_own() as own:
            serving = asyncio.create_task(http_server.serve([listening, own]))
            while not http_server.started and not serving.done():
                await asyncio.sleep(START_POLL_S)
            self._is_listening = True
            self._frontend.register()
            self._accept_if_ready()
            await serving

    def _bind_own(self) -> socket.socket:
        """Bind the socket for requests of other front ends."""
        path = self._siblings.own_socket
        path.unlink(missing_ok=True)  # of an earlier incarnation
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(path))
        return listener

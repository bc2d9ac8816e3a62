"""`mstar serve`: models behind a port. It starts the processes, then lets clients in, and ends when it is told to.

The port is open from the first moment: `/ready` says how far the start is. At SIGTERM nobody new is let in, those who
are there come to their end, and then everything is ended. At SIGHUP workers are replaced, one by one.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mstar import process_tuning
from mstar.cli.config import add_target, resolve_config
from mstar.cli.serving.progress import LineProgress, StartStage, make_progress
from mstar.errors import LoadError

if TYPE_CHECKING:
    import socket

    from mstar.cli.config import ServeConfig
    from mstar.config import RuntimeConfig, ServerConfig
    from mstar.frontend.response_stream import FrontendActor
    from mstar.launch.in_process import InProcessLauncher
    from mstar.launch.launcher import Launcher
    from mstar.plan.planned_model import PlannedModel
    from mstar.server.state import ServerState, WorkerProcessStatus

log = logging.getLogger("mstar.serve")

START_POLL_S = 0.1
"""How often it is looked how far the start is."""


def add_serve(commands: Any) -> None:
    """Add the command to a parser."""
    text = "serve models over HTTP"
    serve = commands.add_parser("serve", help=text, description=text)
    add_target(serve, is_needed=True)
    serve.set_defaults(run=_serve)


def _serve(options: argparse.Namespace) -> None:
    from mstar.cli.serving.api_keys import load_api_keys  # most commands do not need a server
    from mstar.config import HttpLimits, ServerConfig
    from mstar.media.decoder_pool import DecoderPool
    from mstar.media.decoder_pool import MediaLimits as MediaLimits
    from mstar.plan.planned_model import load_planned_models
    from mstar.server.http_server import bind_socket
    from mstar.server.inputs.media_fetcher import AllowedHost, MediaFetcher
    from mstar.server.state import ServerState
    from mstar.server.telemetry import logs

    found = resolve_config(options)
    serving, limits = found.resolved.build(ServerConfig), found.resolved.build(HttpLimits)
    keys = load_api_keys(found, serving)
    deployed = load_planned_models(found.models, found.placements)
    DecoderPool.limits = MediaLimits(limits.max_media_bytes, limits.max_media_pixels, limits.max_media_seconds)
    door = ServerState({name: one.model for name, one in deployed.items()}, keys, limits)
    door.plans = {name: one.plans for name, one in deployed.items()}
    door.fetcher = MediaFetcher(map(AllowedHost.parse, serving.allow_media_host))
    door.metrics.register_compat_names(serving.metrics_compat)
    if serving.otlp_endpoint:
        _start_otlp_export(door, serving.otlp_endpoint)
    with logs.logging_to_stderr(serving.log_format), bind_socket(serving.host, serving.port) as listening:
        host, port = listening.getsockname()[:2]
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        shown = make_progress(serving.log_format)
        shown.log_event(f"listening at {url}", url=url)
        server = ModelServer(door, deployed, shown)
        asyncio.run(server.run(_make_launcher(found, deployed, serving), listening, serving.drain_timeout_s))
        shown.log_event("ended")


def _start_otlp_export(door: ServerState, url: str) -> None:
    """Have spans of requests exported."""
    if not url.startswith(("http://", "https://")):
        raise LoadError(f"spans cannot go to {url}\n  fix: give the collector's address, as http://127.0.0.1:4318")
    try:
        from mstar.server.telemetry.otlp_exporter import OtlpExporter
    except ModuleNotFoundError as error:
        raise LoadError(f"`{error.name}` is not installed\n  fix: pip install 'mstar-serve[otel]'") from error
    OtlpExporter(door, url)


def _make_launcher(
    found: ServeConfig, deployed: Mapping[str, PlannedModel], serving: ServerConfig
) -> Launcher | InProcessLauncher:
    import msgspec

    from mstar.config import RuntimeConfig
    from mstar.launch.in_process import InProcessLauncher
    from mstar.launch.local_launcher import LocalLauncher

    chosen_too = {"conductors": serving.conductors, "log_format": serving.log_format}
    options = msgspec.structs.replace(found.resolved.build(RuntimeConfig), **chosen_too)
    if serving.in_process:
        return InProcessLauncher(deployed, options=options)
    if serving.cluster:
        return _make_ray_launcher(found, options, serving)
    return LocalLauncher(found.models, found.placements, options=options, numpy_only=True)  # a front end needs no torch


def _make_ray_launcher(found: ServeConfig, options: RuntimeConfig, serving: ServerConfig) -> Launcher:
    """A launcher that uses the hosts of a Ray cluster."""
    try:
        from mstar.launch.ray_launcher import RayLauncher
    except ModuleNotFoundError as error:
        raise LoadError(f"`{error.name}` is not installed\n  fix: pip install 'mstar-serve[cluster]'") from error
    where = {"address": serving.cluster, "is_insecure": serving.insecure}
    return RayLauncher(found.models, found.placements, options=options, numpy_only=True, **where)


class ModelServer:
    """Listens, starts everything and lets clients in; at the end, ends everything."""

    def __init__(self, state: ServerState, models: Mapping[str, PlannedModel], progress: LineProgress) -> None:
        self._state = state
        self._models = models
        self._progress = progress

    async def run(self, launcher: Launcher | InProcessLauncher, listening: socket.socket, drain_s: float) -> None:
        """Serve until a signal comes."""
        from mstar.launch.supervisor import LaunchError
        from mstar.server.app import build_app
        from mstar.server.http_server import HttpServer
        from mstar.studio.static_files import studio_routes

        door = self._state
        door.process_statuses = lambda: self._worker_statuses(launcher)
        listener = HttpServer(door, build_app(door, studio_routes(needs_key=door.keys.is_required)), drain_s)
        serving = asyncio.create_task(listener.serve([listening]))
        try:
            front = await self._start(launcher)
        except BaseException as error:
            self._progress.close()
            listener.should_exit = True
            await serving
            if isinstance(error, LaunchError) and door.phase.name == "draining":
                return  # as it was told
            raise
        try:
            if not serving.done():
                await asyncio.to_thread(self._warm_up, front)
            self._progress.close()
            if not serving.done():
                process_tuning.freeze_heap()
                self._print_endpoints()
                door.start_accepting(front, launcher.peers, asyncio.get_running_loop())
                self._progress.log_event("ready")
            with self._reload_on_sighup(launcher):
                await serving
            self._progress.log_event("ending")
        finally:
            await asyncio.to_thread(launcher.stop)

    @contextmanager
    def _reload_on_sighup(self, launcher: Launcher | InProcessLauncher) -> Iterator[None]:
        """Meanwhile a SIGHUP has workers replaced by such as load the weights anew."""
        from mstar.launch.launcher import Launcher

        loop = asyncio.get_running_loop()
        if not isinstance(launcher, Launcher) or threading.current_thread() is not threading.main_thread():
            yield
            return

        def renew() -> None:
            self._progress.log_event("replacing workers")
            launcher.reload_weights().wait()
            self._progress.log_event("all workers are replaced")

        loop.add_signal_handler(signal.SIGHUP, lambda: threading.Thread(target=renew, daemon=True).start())
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGHUP)

    # ---------------------------------------------------------------- the start
    async def _start(self, launcher: Launcher | InProcessLauncher) -> FrontendActor:
        """Start everything, and tell how far it is."""
        from mstar.frontend.response_stream import FrontendActor
        from mstar.launch.launcher import Launcher
        from mstar.wire.messages import Peer

        starting = asyncio.create_task(asyncio.to_thread(launcher.start))
        while not starting.done():
            await asyncio.wait([starting], timeout=START_POLL_S)
            self._show_progress(launcher)
            if self._state.phase.name == "draining" and isinstance(launcher, Launcher):
                launcher.abort_start()
        await starting
        front = FrontendActor(launcher.actor_loop, Peer("front", 0), launcher.conductors)
        launcher.add_frontend(front)
        return front

    def _worker_statuses(self, launcher: Launcher | InProcessLauncher) -> dict[str, WorkerProcessStatus]:
        """How the workers are."""
        from mstar.launch.launcher import Launcher
        from mstar.launch.supervisor import NOT_NEEDED
        from mstar.server.state import WorkerProcessStatus

        names = dict.fromkeys(worker for one in self._models.values() for worker in one.plans.workers)
        if not isinstance(launcher, Launcher):
            return dict.fromkeys(names, WorkerProcessStatus("starting" if self._state.bridge is None else "up"))
        health, loading, hosts = launcher.health(), launcher.loading_progress(), launcher.hosts()
        running = {peer.name for peer in launcher.peers()} if health else set[str]()
        found: dict[str, WorkerProcessStatus] = {}
        for name in names:
            told = health.get(name, "starting")
            state = "stopped" if told == NOT_NEEDED else "down" if health and name not in running else "starting"
            done, part = loading.get(name, (0, ""))
            total = sum(len(one.components_at(name)) for one in self._models.values())
            found[name] = WorkerProcessStatus("up" if told == "up" else state, part, done, total, hosts.get(name, ""))
        return found

    def _show_progress(self, launcher: Launcher | InProcessLauncher) -> None:
        from mstar.launch.launcher import Launcher
        from mstar.launch.supervisor import NOT_NEEDED

        stages: dict[str, StartStage] = {}
        if isinstance(launcher, Launcher):
            loading = launcher.loading_progress()
            for name, state in launcher.health().items():
                if state == NOT_NEEDED:
                    continue
                parts = sum(len(one.components_at(name)) for one in self._models.values())
                done, part = loading.get(name, (0, ""))
                what = f"loading {part} ({done + 1} of {parts})" if part else "" if state == "starting" else state
                stages[name] = (
                    StartStage("up", parts + 1, parts + 1) if state == "up" else StartStage(what, done, parts + 1)
                )
        self._progress.show(stages)
        done, total = (sum(getattr(stage, name) for stage in stages.values()) for name in ("done", "total"))
        self._set_phase("starting", done, total)

    def _set_phase(self, phase: str, done: int, total: int) -> None:
        """Let `/ready` say how far it is, unless it is told to end already."""
        from mstar.server.state import Phase

        if self._state.phase.name != "draining":
            self._state.phase = Phase(phase, done, total)

    def _warm_up(self, front: FrontendActor) -> None:
        """Have a request of each kind served before clients come."""
        from mstar.frontend.actor import RequestFailed

        asks = [(name, ask) for name, one in self._models.items() for ask in one.model.warmup_requests()]
        self._set_phase("warming up", 0, len(asks) + 1)
        self._state.load_detokenizers()
        for done, (name, ask) in enumerate(asks, 1):
            if self._state.phase.name == "draining":
                return
            self._set_phase("warming up", done, len(asks) + 1)
            self._progress.show({"warm-up": StartStage(f"{type(ask).__name__} for {name}", done - 1, len(asks))})
            try:
                for _ in front.open_stream(name, ask):
                    pass
            except RequestFailed as error:
                log.warning("the warm-up of %s with a %s failed: %s", name, type(ask).__name__, error)
        if asks:
            self._progress.show({"warm-up": StartStage("done", len(asks), len(asks))})

    def _print_endpoints(self) -> None:
        """Say what is served."""
        door = self._state
        for name, served in door.served_models.items():
            asks = [
                kind.__name__.removesuffix("Request").lower()
                for kind in served.accepted_types
                if isinstance(kind, type)
            ]
            self._progress.log_event(f"  {name}: {', '.join(asks) or 'generate'}", model=name, takes=asks)
        who = "those who have a key" if door.keys.is_required else "everybody who can reach it"
        self._progress.log_event(
            f"  open to {who}; GET /v1/models says where each is served", keys=door.keys.is_required
        )

"""`mstar serve`: bind the port, start all processes, warm up, then accept requests until SIGTERM.

The port is open from the start: `/ready` reports the startup progress. SIGTERM drains: new requests are rejected,
running ones finish, then the processes stop. SIGHUP starts a rolling update of the workers, which reloads the weights.
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
"""Seconds between updates of the startup progress."""


def add_serve(commands: Any) -> None:
    """Add the command to a parser."""
    text = "Serve models over HTTP."
    serve = commands.add_parser("serve", help=text, description=text)
    add_target(serve, is_needed=True)
    serve.set_defaults(run=_serve)


def _serve(options: argparse.Namespace) -> None:
    from mstar.cli.serving.api_keys import load_api_keys  # imported here: other commands do not need the server
    from mstar.config import HttpLimits, ServerConfig
    from mstar.media.decoder_pool import DecoderPool, MediaLimits
    from mstar.plan.planned_model import load_planned_models
    from mstar.server.http_server import bind_socket
    from mstar.server.inputs.media_fetcher import AllowedHost, MediaFetcher
    from mstar.server.state import ServerState
    from mstar.server.telemetry import logs

    config = resolve_config(options)
    server_config, limits = config.resolved.build(ServerConfig), config.resolved.build(HttpLimits)
    keys = load_api_keys(config, server_config)
    models = load_planned_models(config.models, config.placements)
    DecoderPool.limits = MediaLimits(limits.max_media_bytes, limits.max_media_pixels, limits.max_media_seconds)
    state = ServerState({name: planned.model for name, planned in models.items()}, keys, limits)
    state.plans = {name: planned.plans for name, planned in models.items()}
    state.fetcher = MediaFetcher(map(AllowedHost.parse, server_config.allow_media_host))
    state.metrics.register_compat_names(server_config.metrics_compat)
    if server_config.otlp_endpoint:
        _start_otlp_export(state, server_config.otlp_endpoint)
    address = (server_config.host, server_config.port)
    with logs.logging_to_stderr(server_config.log_format), bind_socket(*address) as listening:
        host, port = listening.getsockname()[:2]
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        progress = make_progress(server_config.log_format)
        progress.log_event(f"listening at {url}", url=url)
        launcher = _make_launcher(config, models, server_config)
        server = ModelServer(state, models, progress)
        asyncio.run(server.run(launcher, listening, server_config.drain_timeout_s))
        progress.log_event("stopped")


def _start_otlp_export(state: ServerState, url: str) -> None:
    """Export the spans of requests to an OpenTelemetry collector."""
    if not url.startswith(("http://", "https://")):
        raise LoadError(
            f"the OTLP endpoint {url} is not an HTTP URL\n  fix: pass the collector's URL, such as http://127.0.0.1:4318"
        )
    try:
        from mstar.server.telemetry.otlp_exporter import OtlpExporter
    except ModuleNotFoundError as error:
        raise LoadError(f"`{error.name}` is not installed\n  fix: pip install 'mstar-serve[otel]'") from error
    OtlpExporter(state, url)


def _make_launcher(
    config: ServeConfig, models: Mapping[str, PlannedModel], server: ServerConfig
) -> Launcher | InProcessLauncher:
    import msgspec

    from mstar.config import RuntimeConfig
    from mstar.launch.in_process import InProcessLauncher
    from mstar.launch.local_launcher import LocalLauncher

    shared = {"conductors": server.conductors, "log_format": server.log_format}
    options = msgspec.structs.replace(config.resolved.build(RuntimeConfig), **shared)
    if server.in_process:
        return InProcessLauncher(models, options=options)
    if server.cluster:
        return _make_ray_launcher(config, options, server)
    # The front end does not import torch.
    return LocalLauncher(config.models, config.placements, options=options, numpy_only=True)


def _make_ray_launcher(config: ServeConfig, options: RuntimeConfig, server: ServerConfig) -> Launcher:
    """A launcher that places workers on the hosts of a Ray cluster."""
    try:
        from mstar.launch.ray_launcher import RayLauncher
    except ModuleNotFoundError as error:
        raise LoadError(f"`{error.name}` is not installed\n  fix: pip install 'mstar-serve[cluster]'") from error
    ray = {"address": server.cluster, "is_insecure": server.insecure}
    return RayLauncher(config.models, config.placements, options=options, numpy_only=True, **ray)


class ModelServer:
    """Lifecycle of one server: listen, start the processes, warm up, serve, drain, stop."""

    def __init__(self, state: ServerState, models: Mapping[str, PlannedModel], progress: LineProgress) -> None:
        self._state = state
        self._models = models
        self._progress = progress

    async def run(self, launcher: Launcher | InProcessLauncher, listening: socket.socket, drain_s: float) -> None:
        """Serve until SIGTERM or SIGINT."""
        from mstar.launch.supervisor import LaunchError
        from mstar.server.app import build_app
        from mstar.server.http_server import HttpServer
        from mstar.studio.static_files import studio_routes

        state = self._state
        state.process_statuses = lambda: self._worker_statuses(launcher)
        http_server = HttpServer(state, build_app(state, studio_routes(needs_key=state.keys.is_required)), drain_s)
        serving = asyncio.create_task(http_server.serve([listening]))
        try:
            frontend = await self._start(launcher)
        except BaseException as error:
            self._progress.close()
            http_server.should_exit = True
            await serving
            if isinstance(error, LaunchError) and state.phase.name == "draining":
                return  # SIGTERM interrupted the start
            raise
        try:
            if not serving.done():
                await asyncio.to_thread(self._warm_up, frontend)
            self._progress.close()
            if not serving.done():
                process_tuning.freeze_heap()
                self._print_endpoints()
                state.start_accepting(frontend, launcher.peers, asyncio.get_running_loop())
                self._progress.log_event("ready")
            with self._reload_on_sighup(launcher):
                await serving
            self._progress.log_event("stopping")
        finally:
            await asyncio.to_thread(launcher.stop)

    @contextmanager
    def _reload_on_sighup(self, launcher: Launcher | InProcessLauncher) -> Iterator[None]:
        """While active, SIGHUP starts a rolling update: new workers load the weights again and replace the old ones."""
        from mstar.launch.launcher import Launcher

        loop = asyncio.get_running_loop()
        if not isinstance(launcher, Launcher) or threading.current_thread() is not threading.main_thread():
            yield
            return

        def reload() -> None:
            self._progress.log_event("replacing workers")
            launcher.reload_weights().wait()
            self._progress.log_event("all workers replaced")

        loop.add_signal_handler(signal.SIGHUP, lambda: threading.Thread(target=reload, daemon=True).start())
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGHUP)

    # ---------------------------------------------------------------- startup
    async def _start(self, launcher: Launcher | InProcessLauncher) -> FrontendActor:
        """Start all processes, and show the progress."""
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
        frontend = FrontendActor(launcher.actor_loop, Peer("front", 0), launcher.conductors)
        launcher.add_frontend(frontend)
        return frontend

    def _worker_statuses(self, launcher: Launcher | InProcessLauncher) -> dict[str, WorkerProcessStatus]:
        """Status of every worker process, by name."""
        from mstar.launch.launcher import Launcher
        from mstar.launch.supervisor import NOT_NEEDED
        from mstar.server.state import WorkerProcessStatus

        names = dict.fromkeys(worker for model in self._models.values() for worker in model.plans.workers)
        if not isinstance(launcher, Launcher):
            return dict.fromkeys(names, WorkerProcessStatus("starting" if self._state.bridge is None else "up"))
        health, loading, hosts = launcher.health(), launcher.loading_progress(), launcher.hosts()
        running = {peer.name for peer in launcher.peers()} if health else set[str]()
        statuses: dict[str, WorkerProcessStatus] = {}
        for name in names:
            reported = health.get(name, "starting")
            state = "stopped" if reported == NOT_NEEDED else "down" if health and name not in running else "starting"
            state = "up" if reported == "up" else state
            done, component = loading.get(name, (0, ""))
            total = sum(len(model.components_at(name)) for model in self._models.values())
            statuses[name] = WorkerProcessStatus(state, component, done, total, hosts.get(name, ""))
        return statuses

    def _show_progress(self, launcher: Launcher | InProcessLauncher) -> None:
        from mstar.launch.launcher import Launcher
        from mstar.launch.supervisor import NOT_NEEDED

        stages: dict[str, StartStage] = {}
        if isinstance(launcher, Launcher):
            loading = launcher.loading_progress()
            for name, state in launcher.health().items():
                if state == NOT_NEEDED:
                    continue
                count = sum(len(model.components_at(name)) for model in self._models.values())
                done, component = loading.get(name, (0, ""))
                label = "" if state == "starting" else state
                if component:
                    label = f"loading {component} ({done + 1} of {count})"
                stages[name] = (
                    StartStage("up", count + 1, count + 1) if state == "up" else StartStage(label, done, count + 1)
                )
        self._progress.show(stages)
        done, total = (sum(getattr(stage, name) for stage in stages.values()) for name in ("done", "total"))
        self._set_phase("starting", done, total)

    def _set_phase(self, phase: str, done: int, total: int) -> None:
        """Publish the startup phase at `/ready`, unless the server is draining already."""
        from mstar.server.state import Phase

        if self._state.phase.name != "draining":
            self._state.phase = Phase(phase, done, total)

    def _warm_up(self, frontend: FrontendActor) -> None:
        """Run the warm-up requests of every model before clients connect."""
        from mstar.frontend.actor import RequestFailed

        requests = [
            (name, request) for name, planned in self._models.items() for request in planned.model.warmup_requests()
        ]
        self._set_phase("warming up", 0, len(requests) + 1)
        self._state.load_detokenizers()
        for done, (name, request) in enumerate(requests, 1):
            kind = type(request).__name__
            if self._state.phase.name == "draining":
                return
            self._set_phase("warming up", done, len(requests) + 1)
            self._progress.show({"warm-up": StartStage(f"{kind} for {name}", done - 1, len(requests))})
            try:
                for _ in frontend.open_stream(name, request):
                    pass
            except RequestFailed as error:
                log.warning("warm-up of %s with %s failed: %s", name, kind, error)
        if requests:
            self._progress.show({"warm-up": StartStage("done", len(requests), len(requests))})

    def _print_endpoints(self) -> None:
        """Print the models with their request types, and whether a key is required."""
        state = self._state
        for name, served in state.served_models.items():
            kinds = [
                kind.__name__.removesuffix("Request").lower()
                for kind in served.accepted_types
                if isinstance(kind, type)
            ]
            self._progress.log_event(f"  {name}: {', '.join(kinds) or 'generate'}", model=name, request_types=kinds)
        access = "API key required" if state.keys.is_required else "no API key required"
        self._progress.log_event(
            f"  {access}; GET /v1/models lists the endpoints of each model", api_key_required=state.keys.is_required
        )

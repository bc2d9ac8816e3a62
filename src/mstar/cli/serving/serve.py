"""`mstar serve`: bind the port, start all processes, warm up, then accept requests until SIGTERM.

With several front ends, these are processes of their own and this one has no client (`frontends`). Otherwise it is the
front end. The port is open from the start: `/ready` reports the startup progress. SIGTERM drains: new requests are
rejected, running ones finish, then the processes stop. SIGHUP reads the API keys again and starts a rolling update of
the workers, which reloads the weights; during the start, the update follows as soon as the server is ready.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import logging
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mstar import process_tuning
from mstar.cli.config import add_target, resolve_config, resolve_settings
from mstar.cli.serving.progress import LineProgress, StartStage, make_progress
from mstar.errors import LoadError, MstarError

if TYPE_CHECKING:
    import socket

    from mstar.cli.config import ServeConfig
    from mstar.cli.serving.frontends import FrontendProcesses
    from mstar.config import RuntimeConfig, ServerConfig
    from mstar.frontend.response_stream import FrontendActor
    from mstar.launch.in_process import InProcessLauncher
    from mstar.launch.launcher import Launcher
    from mstar.plan.planned_model import PlannedModel
    from mstar.server.http_server import HttpServer
    from mstar.server.state import RolloutStatus, ServerState, WorkerProcessStatus
    from mstar.server.telemetry.log_writer import LogWriter

log = logging.getLogger("mstar.serve")

START_POLL_S = 0.1
"""Seconds between updates of the startup progress."""


def add_serve(commands: Any) -> None:
    """Add the command to a parser."""
    text = "Serve models over HTTP."
    serve = commands.add_parser("serve", help=text, description=text)
    add_target(serve, is_needed=True)
    serve.add_argument(
        "--reload",
        action="store_true",
        help="Restart when a Python file in the folder of the model, or below it, changes (for development).",
    )
    serve.set_defaults(run=_serve)


def _serve(options: argparse.Namespace) -> None:
    if options.reload:
        from mstar.cli.serving.reload import serve_with_reload

        serve_with_reload(options, resolve_config(options), options.arguments)
        return
    serve_until_signal(options, resolve_config)


@contextmanager
def _defer_sighup() -> Iterator[threading.Event]:
    """Note SIGHUP until the event loop handles it: its default action would end a server that is starting."""
    received = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    previous = signal.signal(signal.SIGHUP, lambda _signal, _frame: received.set())
    try:
        yield received
    finally:
        signal.signal(signal.SIGHUP, previous)


def serve_until_signal(options: argparse.Namespace, resolve: Callable[[argparse.Namespace], ServeConfig]) -> None:
    """Serve with the configuration that `resolve` makes of the options, until SIGTERM or SIGINT."""
    from mstar.config import ServerConfig  # imported here: other commands do not need the server
    from mstar.server.telemetry import logs

    # Without the models: a checkpoint that has moved must not keep a withdrawn key valid.
    read_settings = functools.partial(resolve_settings, options)
    with _defer_sighup() as sighup_received:
        config = resolve(options)
        server_config = config.resolved.build(ServerConfig)
        log_format, log_level = server_config.log_format, server_config.log_level
        with logs.logging_to_stderr(log_format, log_level) as log_writer, _errors_in(log_format):
            _serve_config(config, read_settings, sighup_received, log_writer)


@contextmanager
def _errors_in(log_format: str) -> Iterator[None]:
    """Report an error that ends the server as a log line, if logs are JSON."""
    try:
        yield
    except Exception as error:
        if log_format != "json":
            raise
        is_expected = isinstance(error, MstarError)
        fields = {"error": type(error).__name__, "message": str(error)}
        log.critical("the server failed", exc_info=None if is_expected else error, extra={"fields": fields})
        raise SystemExit(1) from None


def _serve_config(
    config: ServeConfig,
    read_settings: Callable[[], ServeConfig],
    sighup_received: threading.Event,
    log_writer: LogWriter,
) -> None:
    """Serve with this configuration until a signal. `read_settings` reads its settings again."""
    import msgspec

    from mstar.cli.serving.api_keys import load_api_keys, reload_api_keys  # only this command needs them
    from mstar.cli.serving.frontends import check_frontends, reserve_port
    from mstar.config import HttpLimits, ServerConfig, disable_telemetry
    from mstar.plan.planned_model import load_planned_models
    from mstar.server import event_loop
    from mstar.server.frontends.create_state import check_hosts, create_state, start_otlp_export
    from mstar.server.http_server import bind_socket

    disable_telemetry()
    server_config, limits = config.resolved.build(ServerConfig), config.resolved.build(HttpLimits)
    check_frontends(server_config)
    keys = load_api_keys(config, server_config)
    models = load_planned_models(config.models, config.placements)
    state = create_state(models, keys, server_config, limits, config.runtime, config.mcp_servers)
    log_writer.on_drop = state.metrics.log_lines_dropped.inc
    has_own_frontend = server_config.frontends == 1
    if server_config.otlp_endpoint and has_own_frontend:
        start_otlp_export(state, server_config.otlp_endpoint)
    bind = bind_socket if has_own_frontend else reserve_port
    with bind(server_config.host, server_config.port) as listening:
        host, port = listening.getsockname()[:2]
        check_hosts(state, server_config, port)
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        progress = make_progress(server_config.log_format)
        progress.log_event(f"listening at {url}", url=url)
        if state.is_twin:
            progress.log_event("this server is a twin: it has no weights, and all outputs are synthetic")
        launcher = _make_launcher(config, models, msgspec.structs.replace(server_config, port=port))
        server = ModelServer(
            state, models, progress, functools.partial(reload_api_keys, keys, read_settings, server_config), url
        )
        with _probes(state, server_config, progress):
            event_loop.run(server.run(launcher, listening, server_config.drain_timeout_s, sighup_received))
        progress.log_event("stopped")


@contextmanager
def _probes(state: ServerState, server_config: ServerConfig, progress: LineProgress) -> Iterator[None]:
    """Answer probes on a port of their own, if one is configured."""
    from mstar.server.probe_server import serve_probes

    if server_config.probe_port is None:
        yield
        return
    with serve_probes(state, server_config.host, server_config.probe_port) as port:
        progress.log_event(f"probes at port {port}", probe_port=port)
        yield


def _make_launcher(
    config: ServeConfig, models: Mapping[str, PlannedModel], server: ServerConfig
) -> Launcher | InProcessLauncher:
    import msgspec

    from mstar.cli.serving.frontends import frontend_settings
    from mstar.cli.serving.gpus import warn_unused_gpus
    from mstar.config import HttpLimits
    from mstar.launch.frontends.group import FrontendGroup
    from mstar.launch.in_process import InProcessLauncher
    from mstar.launch.local_launcher import LocalLauncher

    shared = {"conductors": server.conductors, "log_format": server.log_format, "log_level": server.log_level}
    options = msgspec.structs.replace(config.runtime, **shared)
    if not server.cluster and config.twin is None:  # workers there are on other hosts
        warn_unused_gpus(models, is_in_process=server.in_process)
    if server.in_process:
        return InProcessLauncher(models, options=options)
    if server.cluster:
        return _make_ray_launcher(config, options, server)
    # The front end does not import torch.
    launcher = LocalLauncher(config.models, config.placements, options=options, numpy_only=True)
    if server.frontends > 1:
        limits = config.resolved.build(HttpLimits)
        launcher.frontends = FrontendGroup(frontend_settings(server, limits, config.mcp_servers))
    return launcher


def _make_ray_launcher(config: ServeConfig, options: RuntimeConfig, server: ServerConfig) -> Launcher:
    """A launcher that places workers on the hosts of a Ray cluster."""
    try:
        from mstar.launch.ray_launcher import RayLauncher
    except ModuleNotFoundError as error:
        raise LoadError(f"`{error.name}` is not installed\n  fix: pip install 'mstar-serve[cluster]'") from error
    ray = {"address": server.cluster, "is_insecure": server.insecure}
    return RayLauncher(config.models, config.placements, options=options, numpy_only=True, **ray)


def _is_conductor_up(launcher: Launcher, model: str) -> bool:
    return launcher.status.is_conductor_up(model)


def _rollout_status(launcher: Launcher) -> RolloutStatus:
    from mstar.server.state import RolloutStatus

    rollout = launcher.status.rollout()
    state = "running" if rollout.is_running else "failed" if rollout.error else ""
    return RolloutStatus(state, rollout.error, rollout.completed, rollout.failed)


class ModelServer:
    """Lifecycle of one server: listen, start the processes, warm up, serve, drain, stop."""

    def __init__(
        self,
        state: ServerState,
        models: Mapping[str, PlannedModel],
        progress: LineProgress,
        reload_keys: Callable[[], str],
        url: str,
    ) -> None:
        """`reload_keys` reads the API keys again and returns what changed, or raises MstarError."""
        self._url = url
        self._state = state
        self._models = models
        self._progress = progress
        self._reload_keys = reload_keys
        self._is_update_due = False
        """Whether SIGHUP arrived before the server was ready."""
        self._has_clients = True
        """Whether this process is the front end."""

    async def run(
        self,
        launcher: Launcher | InProcessLauncher,
        listening: socket.socket,
        drain_s: float,
        sighup_received: threading.Event,
    ) -> None:
        """Serve until SIGTERM or SIGINT. `sighup_received` is set if SIGHUP arrived before."""
        with self._handle_sighup(launcher):
            if sighup_received.is_set():
                self._on_sighup(launcher)
            await self._run(launcher, listening, drain_s)

    async def _run(self, launcher: Launcher | InProcessLauncher, listening: socket.socket, drain_s: float) -> None:
        from mstar.cli.serving.frontends import wait_accepting
        from mstar.launch.launcher import Launcher
        from mstar.launch.supervisor import LaunchError
        from mstar.server.admin.graphs import record_warmup

        state = self._state
        state.process_statuses = lambda: self._worker_statuses(launcher)
        if isinstance(launcher, Launcher):
            state.is_conductor_up = functools.partial(_is_conductor_up, launcher)
            state.rollout = functools.partial(_rollout_status, launcher)
        http_server = self._create_server(launcher, drain_s)
        serving = asyncio.create_task(http_server.serve([listening]))
        try:
            frontend = await self._start(launcher)
        except BaseException as error:
            self._progress.close()
            http_server.stop()
            await serving
            if isinstance(error, LaunchError) and state.phase.name == "draining":
                return  # SIGTERM interrupted the start
            raise
        try:
            if not serving.done():
                await asyncio.to_thread(self._warm_up, frontend)
            self._progress.close()
            if not serving.done() and state.phase.name != "draining":
                process_tuning.freeze_heap()
                self._print_endpoints()
                state.start_accepting(frontend, launcher.peers, asyncio.get_running_loop())
                await record_warmup(state)
                if isinstance(launcher, Launcher):
                    await wait_accepting(launcher.frontends, state)
                    launcher.release_standby()
                if state.phase.name == "ready":  # the shutdown has not begun meanwhile
                    self._progress.log_event("ready")
                if self._is_update_due:
                    self._start_rolling_update(launcher)
            await serving
            self._progress.log_event("stopping")
        finally:
            await asyncio.to_thread(launcher.stop)

    def _create_server(self, launcher: Launcher | InProcessLauncher, drain_s: float) -> HttpServer | FrontendProcesses:
        """The HTTP server, or that which supervises front ends in processes of their own."""
        from mstar.cli.serving.frontends import FrontendProcesses
        from mstar.launch.launcher import Launcher
        from mstar.server.app import build_app
        from mstar.server.http_server import HttpServer
        from mstar.studio.static_files import studio_routes

        if isinstance(launcher, Launcher) and launcher.frontends.names:
            self._has_clients = False
            return FrontendProcesses(self._state, launcher, drain_s)
        pages = studio_routes(needs_key=self._state.keys.is_required)
        return HttpServer(self._state, build_app(self._state, pages), drain_s)

    @contextmanager
    def _handle_sighup(self, launcher: Launcher | InProcessLauncher) -> Iterator[None]:
        """While active, SIGHUP reads the API keys again and starts a rolling update of the workers."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self._on_sighup, launcher)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGHUP)

    def _on_sighup(self, launcher: Launcher | InProcessLauncher) -> None:
        from mstar.launch.launcher import Launcher

        try:
            self._progress.log_event(self._reload_keys())
        except MstarError as error:
            log.error("API keys were not reloaded: %s", error)
        if isinstance(launcher, Launcher):
            launcher.frontends.report_soon()
        if self._state.phase.name == "ready":
            self._start_rolling_update(launcher)
        else:
            self._is_update_due = True

    def _start_rolling_update(self, launcher: Launcher | InProcessLauncher) -> None:
        """Start new workers that load the weights again and replace the old ones; in one process there is none."""
        from mstar.launch.launcher import Launcher

        if not isinstance(launcher, Launcher):
            return

        def update() -> None:
            self._progress.log_event("replacing workers")
            launcher.reload_weights().wait()
            error = launcher.status.rollout().error
            self._progress.log_event(f"workers not replaced: {error}" if error else "all workers replaced")

        threading.Thread(target=update, daemon=True).start()

    # ---------------------------------------------------------------- startup
    async def _start(self, launcher: Launcher | InProcessLauncher) -> FrontendActor:
        """Start all processes, and show the progress."""
        from mstar.frontend.response_stream import FrontendActor
        from mstar.launch.launcher import Launcher
        from mstar.wire.messages import Peer

        if isinstance(launcher, Launcher):
            starting = asyncio.create_task(asyncio.to_thread(launcher.start, hold_standby=True))
        else:
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
        from mstar.launch.child import NOT_NEEDED, RestartStatus
        from mstar.launch.launcher import Launcher
        from mstar.server.state import WorkerProcessStatus
        from mstar.worker.loading import find_nondeterminism

        names = dict.fromkeys(worker for model in self._models.values() for worker in model.plans.workers)
        if not isinstance(launcher, Launcher):
            state = "starting" if self._state.bridge is None else "up"
            return {
                name: WorkerProcessStatus(
                    state, devices=self._on_cpu(name), nondeterminism=find_nondeterminism(self._models, name)
                )
                for name in names
            }
        health, loading, hosts = launcher.health(), launcher.status.loading_progress(), launcher.status.hosts()
        restarts, devices = launcher.status.restarts(), launcher.status.devices()
        reasons = launcher.status.nondeterminism()
        running = {peer.worker for peer in launcher.peers()} if health else set[str]()
        statuses: dict[str, WorkerProcessStatus] = {}
        for name in names:
            reported = health.get(name, "starting")
            restart = restarts.get(name, RestartStatus())
            state = "stopped" if reported == NOT_NEEDED else "down" if health and name not in running else "starting"
            state = "up" if reported == "up" else state
            if state in ("down", "starting") and restart.failed_starts:
                state = "restarting"
            done, component = loading.get(name, (0, ""))
            total = sum(len(model.components_at(name)) for model in self._models.values())
            statuses[name] = WorkerProcessStatus(
                state,
                component,
                done,
                total,
                hosts.get(name, ""),
                restart.restarts,
                restart.failed_starts,
                restart.next_start_in_s,
                devices.get(name, {}),
                reasons.get(name, {}),
            )
        return statuses

    def _on_cpu(self, worker: str) -> dict[str, str]:
        """Devices of the components of a worker that shares the process of the server."""
        components = {name: model.components_at(worker) for name, model in self._models.items()}
        return {f"{name}.{component}": "cpu" for name, each in components.items() for component in each}

    def _show_progress(self, launcher: Launcher | InProcessLauncher) -> None:
        from mstar.launch.child import NOT_NEEDED
        from mstar.launch.launcher import Launcher

        stages: dict[str, StartStage] = {}
        if isinstance(launcher, Launcher):
            loading = launcher.status.loading_progress()
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
        from mstar.server.telemetry.logs import log_failure
        from mstar.wire.messages import RequestFinished

        requests = [
            (name, request) for name, planned in self._models.items() for request in planned.model.warmup_requests()
        ]
        self._set_phase("warming up", 0, len(requests) + 1)
        if self._has_clients:
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
                if isinstance(error.end, RequestFinished):
                    log_failure(error.end, name)
        if requests:
            self._progress.show({"warm-up": StartStage("done", len(requests), len(requests))})

    def _print_endpoints(self) -> None:
        """Print the models with their request types, the devices of components, whether keys are required, and URLs."""
        state = self._state
        for name, served in state.served_models.items():
            kinds = [
                kind.__name__.removesuffix("Request").lower()
                for kind in served.accepted_types
                if isinstance(kind, type)
            ]
            self._progress.log_event(f"  {name}: {', '.join(kinds) or 'generate'}", model=name, request_types=kinds)
        for worker, status in state.process_statuses().items():
            if status.devices:
                where = ", ".join(f"{component} on {device}" for component, device in status.devices.items())
                self._progress.log_event(f"  worker {worker}: {where}", worker=worker, devices=dict(status.devices))
        access = "API key required" if state.keys.is_required else "no API key required"
        self._progress.log_event(
            f"  {access}; GET /v1/models lists the endpoints of each model", api_key_required=state.keys.is_required
        )
        api, studio = f"{self._url}/v1", f"{self._url}/"
        self._progress.log_event(f"  API at {api}, studio at {studio}", api=api, studio=studio)

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

from mstar import interpreter
from mstar.cli.config import add_target, chosen
from mstar.cli.progress import Lines, Stage, display
from mstar.errors import LoadError

if TYPE_CHECKING:
    import socket

    from mstar.cli.config import Chosen
    from mstar.config import Options, Serving
    from mstar.launch.launcher import Launcher
    from mstar.launch.together import Together
    from mstar.plan.deployment import Deployed
    from mstar.server.door import Condition, Door
    from mstar.server.live import FrontEnd

log = logging.getLogger("mstar.serve")

LOOK_S = 0.1
"""How often it is looked how far the start is."""


def add_serve(commands: Any) -> None:
    """Add the command to a parser."""
    text = "serve models over HTTP"
    serve = commands.add_parser("serve", help=text, description=text)
    add_target(serve, is_needed=True)
    serve.set_defaults(run=_serve)


def _serve(options: argparse.Namespace) -> None:
    from mstar.cli.keyring import read_keys  # most commands do not need a server
    from mstar.config import Limits, Serving
    from mstar.media.decode import Decoders
    from mstar.media.decode import Limits as MediaLimits
    from mstar.plan.deployment import deploy
    from mstar.server import logs
    from mstar.server.door import Door
    from mstar.server.fetch import Fetcher, Rule
    from mstar.server.listen import bound

    found = chosen(options)
    serving, limits = found.resolved.made(Serving), found.resolved.made(Limits)
    keys = read_keys(found, serving)
    deployed = deploy(found.models, found.placements)
    Decoders.limits = MediaLimits(limits.media_bytes, limits.media_pixels, limits.media_seconds)
    door = Door({name: one.model for name, one in deployed.items()}, keys, limits)
    door.plans = {name: one.plans for name, one in deployed.items()}
    door.fetcher = Fetcher(map(Rule.of, serving.allow_media_host))
    door.meters.emulate(serving.metrics_compat)
    if serving.otlp:
        _export(door, serving.otlp)
    with logs.writing(serving.log_format), bound(serving.host, serving.port) as listening:
        host, port = listening.getsockname()[:2]
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        shown = display(serving.log_format)
        shown.say(f"listening at {url}", url=url)
        server = Server(door, deployed, shown)
        asyncio.run(server.run(_launcher(found, deployed, serving), listening, serving.drain_s))
        shown.say("ended")


def _export(door: Door, url: str) -> None:
    """Have spans of requests exported."""
    if not url.startswith(("http://", "https://")):
        raise LoadError(f"spans cannot go to {url}\n  fix: give the collector's address, as http://127.0.0.1:4318")
    try:
        from mstar.server.spans import SpanExport
    except ModuleNotFoundError as error:
        raise LoadError(f"`{error.name}` is not installed\n  fix: pip install 'mstar-serve[otel]'") from error
    SpanExport(door, url)


def _launcher(found: Chosen, deployed: Mapping[str, Deployed], serving: Serving) -> Launcher | Together:
    import msgspec

    from mstar.config import Options
    from mstar.launch.local import Local
    from mstar.launch.together import Together

    chosen_too = {"conductors": serving.conductors, "log_format": serving.log_format}
    options = msgspec.structs.replace(found.resolved.made(Options), **chosen_too)
    if serving.in_process:
        return Together(deployed, options=options)
    if serving.cluster:
        return _cluster(found, options, serving)
    return Local(found.models, found.placements, options=options, is_plain=True)  # a front end needs no torch


def _cluster(found: Chosen, options: Options, serving: Serving) -> Launcher:
    """A launcher that uses the hosts of a Ray cluster."""
    try:
        from mstar.launch.cluster import Cluster
    except ModuleNotFoundError as error:
        raise LoadError(f"`{error.name}` is not installed\n  fix: pip install 'mstar-serve[cluster]'") from error
    where = {"address": serving.cluster, "is_open": serving.insecure}
    return Cluster(found.models, found.placements, options=options, is_plain=True, **where)


class Server:
    """Listens, starts everything and lets clients in; at the end, ends everything."""

    def __init__(self, door: Door, deployed: Mapping[str, Deployed], shown: Lines) -> None:
        self._door = door
        self._deployed = deployed
        self._shown = shown

    async def run(self, launcher: Launcher | Together, listening: socket.socket, drain_s: float) -> None:
        """Serve until a signal comes."""
        from mstar.launch.supervisor import LaunchError
        from mstar.server.app import application
        from mstar.server.listen import Listener
        from mstar.studio.pages import routes

        door = self._door
        door.conditions = lambda: self._conditions(launcher)
        listener = Listener(door, application(door, routes(needs_key=door.keys.are_needed)), drain_s)
        serving = asyncio.create_task(listener.serve([listening]))
        try:
            front = await self._start(launcher)
        except BaseException as error:
            self._shown.close()
            listener.should_exit = True
            await serving
            if isinstance(error, LaunchError) and door.phase.name == "draining":
                return  # as it was told
            raise
        try:
            if not serving.done():
                await asyncio.to_thread(self._warm_up, front)
            self._shown.close()
            if not serving.done():
                interpreter.settle()
                self._welcome()
                door.begin(front, launcher.peers, asyncio.get_running_loop())
                self._shown.say("ready")
            with self._renewing(launcher):
                await serving
            self._shown.say("ending")
        finally:
            await asyncio.to_thread(launcher.stop)

    @contextmanager
    def _renewing(self, launcher: Launcher | Together) -> Iterator[None]:
        """Meanwhile a SIGHUP has workers replaced by such as load the weights anew."""
        from mstar.launch.launcher import Launcher

        loop = asyncio.get_running_loop()
        if not isinstance(launcher, Launcher) or threading.current_thread() is not threading.main_thread():
            yield
            return

        def renew() -> None:
            self._shown.say("replacing workers")
            launcher.renew().wait()
            self._shown.say("all workers are replaced")

        loop.add_signal_handler(signal.SIGHUP, lambda: threading.Thread(target=renew, daemon=True).start())
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGHUP)

    # ---------------------------------------------------------------- the start
    async def _start(self, launcher: Launcher | Together) -> FrontEnd:
        """Start everything, and tell how far it is."""
        from mstar.launch.launcher import Launcher
        from mstar.server.live import FrontEnd
        from mstar.wire.messages import Peer

        starting = asyncio.create_task(asyncio.to_thread(launcher.start))
        while not starting.done():
            await asyncio.wait([starting], timeout=LOOK_S)
            self._show(launcher)
            if self._door.phase.name == "draining" and isinstance(launcher, Launcher):
                launcher.give_up()
        await starting
        front = FrontEnd(launcher.node, Peer("front", 0), launcher.conductors)
        launcher.add(front)
        return front

    def _conditions(self, launcher: Launcher | Together) -> dict[str, Condition]:
        """How the workers are."""
        from mstar.launch.launcher import Launcher
        from mstar.launch.supervisor import RESTING
        from mstar.server.door import Condition

        names = dict.fromkeys(worker for one in self._deployed.values() for worker in one.plans.workers)
        if not isinstance(launcher, Launcher):
            return dict.fromkeys(names, Condition("starting" if self._door.bridge is None else "up"))
        health, loading, hosts = launcher.health(), launcher.loading(), launcher.hosts()
        running = {peer.name for peer in launcher.peers()} if health else set[str]()
        found: dict[str, Condition] = {}
        for name in names:
            told = health.get(name, "starting")
            state = "resting" if told == RESTING else "gone" if health and name not in running else "starting"
            done, part = loading.get(name, (0, ""))
            total = sum(len(one.components_at(name)) for one in self._deployed.values())
            found[name] = Condition("up" if told == "up" else state, part, done, total, hosts.get(name, ""))
        return found

    def _show(self, launcher: Launcher | Together) -> None:
        from mstar.launch.launcher import Launcher
        from mstar.launch.supervisor import RESTING

        stages: dict[str, Stage] = {}
        if isinstance(launcher, Launcher):
            loading = launcher.loading()
            for name, state in launcher.health().items():
                if state == RESTING:
                    continue
                parts = sum(len(one.components_at(name)) for one in self._deployed.values())
                done, part = loading.get(name, (0, ""))
                what = f"loading {part} ({done + 1} of {parts})" if part else "" if state == "starting" else state
                stages[name] = Stage("up", parts + 1, parts + 1) if state == "up" else Stage(what, done, parts + 1)
        self._shown.show(stages)
        done, total = (sum(getattr(stage, name) for stage in stages.values()) for name in ("done", "total"))
        self._tell("starting", done, total)

    def _tell(self, phase: str, done: int, total: int) -> None:
        """Let `/ready` say how far it is, unless it is told to end already."""
        from mstar.server.door import Phase

        if self._door.phase.name != "draining":
            self._door.phase = Phase(phase, done, total)

    def _warm_up(self, front: FrontEnd) -> None:
        """Have a request of each kind served before clients come."""
        from mstar.server.front import NotServed

        asks = [(name, ask) for name, one in self._deployed.items() for ask in one.model.warm_ups()]
        self._tell("warming up", 0, len(asks) + 1)
        self._door.prepare()
        for done, (name, ask) in enumerate(asks, 1):
            if self._door.phase.name == "draining":
                return
            self._tell("warming up", done, len(asks) + 1)
            self._shown.show({"warm-up": Stage(f"{type(ask).__name__} for {name}", done - 1, len(asks))})
            try:
                for _ in front.open(name, ask):
                    pass
            except NotServed as error:
                log.warning("the warm-up of %s with a %s failed: %s", name, type(ask).__name__, error)
        if asks:
            self._shown.show({"warm-up": Stage("done", len(asks), len(asks))})

    def _welcome(self) -> None:
        """Say what is served."""
        door = self._door
        for name, served in door.served.items():
            asks = [kind.__name__.lower() for kind in served.takes if isinstance(kind, type)]
            self._shown.say(f"  {name}: {', '.join(asks) or 'generate'}", model=name, takes=asks)
        who = "those who have a key" if door.keys.are_needed else "everybody who can reach it"
        self._shown.say(f"  open to {who}; GET /v1/models says where each is served", keys=door.keys.are_needed)

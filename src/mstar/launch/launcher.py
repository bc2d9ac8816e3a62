"""What every launcher does: it makes a node, starts conductors and workers, tells how they are, and ends them.

Where they run is for `Local` and `Cluster` to say. It speaks to no client and handles no signal: its caller does.
"""

from __future__ import annotations

import os
import queue
import re
import secrets
import threading
import time
import tomllib
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals
from typing import Any, Self, TypeVar

from mstar.config import RuntimeConfig, runtime_directory
from mstar.errors import format_names
from mstar.launch.process_handle import ProcessHandle, ProcessStarter
from mstar.launch.run_directory import RunDirectory
from mstar.launch.supervisor import LAUNCHER, NOT_NEEDED, STANDBY_NAME, Deployment, LaunchError, Supervisor
from mstar.plan.placement import Placement, parse_placement, read_placement
from mstar.plan.shards import split_into_shards
from mstar.transfer.codec import ArenaCodec
from mstar.transfer.remote_arrays import HostEndpoint
from mstar.wire.messages import Peer
from mstar.wire.transport.actor_loop import Actor, ActorLoop
from mstar.wire.transport.address_book import AddressBook

READY_TIMEOUT_S = 1800.0
"""How long everything may take to be up: large weights take long. Whoever dies meanwhile is noticed at once."""
DRAIN_TIMEOUT_S = 30.0
"""How long requests may take to end."""
TERMINATE_TIMEOUT_S = 2.0
"""How long a child may take to end when it is asked to, and to vanish when it is killed."""
LOOP_TIMEOUT_S = 5.0
"""How long the node's loop may take to answer."""
WORKER_NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")
CONDUCTOR_NAME = "conductor"
"""The name of the first conductor; the next ones have a number behind it."""

Result = TypeVar("Result")


class Launcher:
    """Conductors, the workers that the placements name, and the node on which the caller's own actors live.

    A placement is a file, or the text of one, or None for a model that needs one worker. It is started once.
    """

    _has_standby = False

    def __init__(
        self,
        models: Mapping[str, str],
        placements: Mapping[str, Path | str | None] | None = None,
        *,
        options: RuntimeConfig | None = None,
        numpy_only: bool = False,
    ) -> None:
        self._models = dict(models)
        self._numpy_only = numpy_only
        self._placement_texts: dict[str, str] = {}
        self._placements: dict[str, Placement] = {}
        for name in models:
            self._placement_texts[name], self._placements[name] = _read_placement(name, (placements or {}).get(name))
        self._options = options or RuntimeConfig()
        parts = split_into_shards(self._placements, self._options.conductors)
        self._shards = {
            f"{CONDUCTOR_NAME}-{number}" if number > 1 else CONDUCTOR_NAME: one for number, one in enumerate(parts, 1)
        }
        self._workers = tuple(worker for shard in parts for worker in shard.workers)
        self._reserved = (LAUNCHER.name, *self._shards, STANDBY_NAME)
        for worker in self._workers:
            _check_name(worker, self._reserved)
        self._exit_stack: ExitStack | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    # ---------------------------------------------------------------- where things run
    def _create_address_book(self, stack: ExitStack) -> AddressBook:  # noqa: ARG002  others have more to open
        """Where this process is, in a run directory of its own."""
        return AddressBook(self.directory)

    def _create_starter(self, on_exit: Callable[[ProcessHandle], None]) -> ProcessStarter:
        """Who starts children."""
        raise NotImplementedError

    # ---------------------------------------------------------------- from start to stop
    def start(self, progress: Callable[[str], None] = lambda _: None, ready_timeout_s: float = READY_TIMEOUT_S) -> None:
        """Start everything; return when conductors say that every worker is there, or raise LaunchError."""
        with ExitStack() as stack:
            self._start_processes(stack)
            deadline = time.monotonic() + ready_timeout_s
            while (news := _next_start_event(self, self._supervisor, deadline, ready_timeout_s)) is not None:
                progress(news)
            self._exit_stack = stack.pop_all()

    def abort_start(self) -> None:
        """From another thread: start no further. `start` ends what it has started, and raises LaunchError."""
        if "_supervisor" in vars(self):
            self._supervisor.start_events.put(LaunchError("it was told to end while it started\n  fix: start it again"))

    def stop(self, drain_timeout_s: float = DRAIN_TIMEOUT_S) -> None:
        """Let requests end for so long, then end every process. With 0 everything is killed at once."""
        if self._exit_stack is None:
            return
        stack, self._exit_stack = self._exit_stack, None
        with stack:
            if drain_timeout_s > 0:
                self.actor_loop.call_soon(self._supervisor.drain)
                self._supervisor.drained.wait(drain_timeout_s)
                self._signal_all(SIGTERM)

    def _start_processes(self, stack: ExitStack) -> None:
        """Make everything and start it; how to end it goes on the stack."""
        run = RunDirectory(runtime_directory())
        stack.callback(run.remove)
        self.directory = run.path
        self.key = secrets.token_bytes(32)
        whereabouts = self._create_address_book(stack)
        reach = HostEndpoint(whereabouts.ip, self.key, whereabouts.is_local)
        self.actor_loop = ActorLoop(whereabouts, self.key, ArenaCodec(numpy_only=self._numpy_only, endpoint=reach))
        self._supervisor = Supervisor(
            self.actor_loop,
            Deployment(
                directory=self.directory,
                key=self.key,
                models=self._models,
                placements=self._placement_texts,
                options=self._options,
                shards=self._shards,
                has_standby=self._has_standby,
            ),
            whereabouts,
            self._create_starter,
        )
        stack.callback(self._supervisor.starter.close)
        self.actor_loop.add(self._supervisor)
        thread = threading.Thread(target=self.actor_loop.run, name="mstar-launcher", daemon=True)
        thread.start()
        stack.callback(thread.join, LOOP_TIMEOUT_S)
        stack.callback(self.actor_loop.stop)
        stack.callback(self._signal_all, SIGKILL)

    def _signal_all(self, signal_number: Signals) -> None:
        """Send every process a signal, start no more, and wait until they are gone, but not for ever."""
        processes = _run_on_loop(self.actor_loop, self._supervisor.close)
        for process in processes:
            process.send_signal(signal_number)
        deadline = time.monotonic() + TERMINATE_TIMEOUT_S
        for process in processes:
            process.exited.wait(max(0.0, deadline - time.monotonic()))

    # ---------------------------------------------------------------- while it runs
    def add_frontend(self, frontend: Actor) -> None:
        """Host a front end on this node. Every new conductor is told of it; the present one it greets itself."""
        name = frontend.peer.name
        if name in (*self._reserved, *self._workers):
            raise LaunchError(f"`{name}` is already the name of another process\n  fix: give the front end its own")

        def join() -> None:
            self.actor_loop.add(frontend)
            self._supervisor.add_frontend(frontend.peer)

        _run_on_loop(self.actor_loop, join)

    def reload_weights(self) -> threading.Event:
        """Have workers replaced, one by one, by such as load the weights anew. The event is set when all are."""

        def begin() -> threading.Event:
            self._supervisor.reload_weights()
            return self._supervisor.weights_rolled

        return _run_on_loop(self.actor_loop, begin)

    @property
    def conductors(self) -> dict[str, Peer]:
        """The conductor of each model, in its present life."""
        children = self._supervisor.children
        return {model: children[name].peer for name, shard in self._shards.items() for model in shard.models}

    def peers(self) -> tuple[Peer, ...]:
        """The present lives of conductors and workers, of those that run."""
        return tuple(child.peer for child in self._supervisor.children.values() if child.process)

    @property
    def recent_exits(self) -> list[tuple[float, Peer, str]]:
        """The latest deaths: when, by the monotonic clock, who, and why."""
        return list(self._supervisor.exits)

    def pid(self, name: str) -> int:
        """The process of a child, or of the spare."""
        return self._supervisor.processes()[name].pid

    def health(self) -> dict[str, str]:
        """How each child is; none is there before the start."""
        children = self._supervisor.children if "_supervisor" in vars(self) else {}
        return {name: child.state() for name, child in children.items()}

    def loading_progress(self) -> dict[str, tuple[int, str]]:
        """Which component each worker loads that is not up yet, and how many it has loaded."""
        processes = self._supervisor.processes() if self.health() else {}
        return {name: found for name, process in processes.items() if (found := process.loading_progress())}

    def hosts(self) -> dict[str, str]:
        """The address of the host of each child that runs, if there are several."""
        return {name: process.host for name, process in self._supervisor.processes().items() if process.host}

    def stats(self) -> dict[str, Any]:
        """What is held here: the processes that live, by name, open files of this one, and how many were restarted."""
        return {
            "processes": {name: process.pid for name, process in self._supervisor.processes().items()},
            "fds": len(os.listdir("/proc/self/fd")),
            "restarts": self._supervisor.restart_count,
        }


def _next_start_event(
    launcher: Launcher, supervisor: Supervisor, deadline: float, ready_timeout_s: float
) -> str | None:
    """What happens next while everything starts; None when all is there."""
    try:
        news = supervisor.start_events.get(timeout=max(0.0, deadline - time.monotonic()))
    except queue.Empty:
        late = [
            name if state == "starting" else f"{name} ({state})"
            for name, state in launcher.health().items()
            if state not in ("up", NOT_NEEDED)
        ]
        what = f"not ready after {ready_timeout_s:g} s; not up: {format_names(late)}"
        raise LaunchError(f"{what}\n  fix: see what they wrote, or give them more time with ready_s") from None
    if isinstance(news, LaunchError):
        raise news
    return news


def _run_on_loop(actor_loop: ActorLoop, function: Callable[[], Result]) -> Result:
    """What a function returns that belongs to the thread of a node's loop."""
    result: Future[Result] = Future()

    def settle() -> None:
        try:
            result.set_result(function())
        except Exception as error:  # noqa: BLE001  raised again where it was asked for
            result.set_exception(error)

    actor_loop.call_soon(settle)
    return result.result(LOOP_TIMEOUT_S)


def _read_placement(model: str, source: Path | str | None) -> tuple[str, Placement]:
    """A placement, with its text."""
    if isinstance(source, Path):
        placement = read_placement(source)  # first, because it says best what is wrong with a file
        return source.read_text(), placement
    try:
        return source or "", parse_placement(tomllib.loads(source or ""))
    except tomllib.TOMLDecodeError as error:
        what = f"the placement of `{model}` is not TOML: {error}"
        raise LaunchError(f"{what}\n  fix: correct the text, or pass a file as Path(...)") from error


def _check_name(worker: str, reserved: tuple[str, ...]) -> None:
    if worker in reserved or not WORKER_NAME.fullmatch(worker):
        why = "reserved" if worker in reserved else "no name of a file"
        fix = f"use up to 32 letters, digits, _ and -, and none of {format_names(reserved)}"
        raise LaunchError(f"a placement names the worker `{worker}`, which is {why}\n  fix: {fix}")

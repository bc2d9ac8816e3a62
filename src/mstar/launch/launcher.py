"""Base launcher of a multi-process deployment: creates the actor loop and the supervisor, reports health, shuts down.

Subclasses choose where processes run: `LocalLauncher` on this host, `RayLauncher` on a cluster. It serves no client and
handles no signal; its caller does.
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
from mstar.launch.child import NOT_NEEDED
from mstar.launch.deployment import LAUNCHER, Deployment
from mstar.launch.deployment_status import DeploymentStatus
from mstar.launch.frontends.group import FrontendGroup
from mstar.launch.gpus.assignment import AssignedGpus
from mstar.launch.os_process.interpreters import worker_interpreters
from mstar.launch.process_handle import ProcessHandle, ProcessStarter
from mstar.launch.run_directory import RunDirectory
from mstar.launch.standby import STANDBY_NAME
from mstar.launch.supervisor import LaunchError, Supervisor
from mstar.launch.worker_processes import current_children
from mstar.plan.placement import Placement, parse_placement, read_placement
from mstar.plan.shards import split_into_shards
from mstar.transfer.codec import ArenaCodec
from mstar.transfer.remote_arrays import HostEndpoint
from mstar.wire.messages import Peer
from mstar.wire.transport.actor_loop import Actor, ActorLoop
from mstar.wire.transport.address_book import AddressBook

READY_TIMEOUT_S = 1800.0
"""Seconds to wait until everything is up: large weights load slowly. A crash during the start is reported at once."""
DRAIN_TIMEOUT_S = 30.0
"""Seconds to wait for running requests at shutdown."""
TERMINATE_TIMEOUT_S = 2.0
"""Seconds to wait for child processes after SIGTERM, and again after SIGKILL."""
LOOP_TIMEOUT_S = 5.0
"""Seconds to wait for a call on the actor loop."""
WORKER_NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")
CONDUCTOR_NAME = "conductor"
"""Name of the first conductor; further ones get a numeric suffix."""

Result = TypeVar("Result")


class Launcher:
    """Conductors, the workers of the placements, and the actor loop that hosts the front ends of the caller.

    A placement is a file, the text of one, or None for a model that needs one worker. A launcher can be started once.
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
        shards = split_into_shards(self._placements, self._options.conductors)
        self._shards = {
            f"{CONDUCTOR_NAME}-{number}" if number > 1 else CONDUCTOR_NAME: shard
            for number, shard in enumerate(shards, 1)
        }
        self._workers = tuple(worker for shard in shards for worker in shard.workers)
        self.frontends = FrontendGroup()
        """Front ends that are processes of their own. To have some, set it before the start."""
        self._reserved = (LAUNCHER.name, *self._shards, STANDBY_NAME)
        for worker in self._workers:
            _check_name(worker, self._reserved)
        self._gpus: Mapping[str, AssignedGpus] = {}
        """GPUs that the launcher assigns, by worker."""
        self._interpreters = worker_interpreters(self._placements.values())
        self._exit_stack: ExitStack | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    # ---------------------------------------------------------------- placement of processes
    def _create_address_book(self, stack: ExitStack) -> AddressBook:  # noqa: ARG002 - used by subclasses
        """Create the address book of this process."""
        return AddressBook(self.directory)

    def _create_starter(self, on_exit: Callable[[ProcessHandle], None]) -> ProcessStarter:
        """Create the starter of child processes."""
        raise NotImplementedError

    # ---------------------------------------------------------------- start and stop
    def start(
        self,
        progress: Callable[[str], None] = lambda _: None,
        ready_timeout_s: float = READY_TIMEOUT_S,
        *,
        hold_standby: bool = False,
    ) -> None:
        """Start all processes. Returns when every conductor reports its workers up; raises LaunchError otherwise.

        With `hold_standby` the standby starts after `release_standby`.
        """
        with ExitStack() as stack:
            self._start_processes(stack, hold_standby=hold_standby)
            deadline = time.monotonic() + ready_timeout_s
            while (event := _next_start_event(self, self._supervisor, deadline, ready_timeout_s)) is not None:
                progress(event)
            self._exit_stack = stack.pop_all()

    def release_standby(self) -> None:
        """Start the standby that `start` has held."""
        self._supervisor.is_standby_held = False

    def abort_start(self) -> None:
        """Abort `start` from another thread: it stops what it has started, and raises LaunchError."""
        if "_supervisor" in vars(self):
            self._supervisor.start_events.put(LaunchError("the start was aborted\n  fix: start again"))

    def stop(self, drain_timeout_s: float = DRAIN_TIMEOUT_S) -> None:
        """Graceful shutdown: drain for up to `drain_timeout_s`, then stop all processes. 0 kills them at once."""
        if self._exit_stack is None:
            return
        stack, self._exit_stack = self._exit_stack, None
        with stack:
            if drain_timeout_s > 0:
                self.actor_loop.call_soon(self._supervisor.drain)
                self._supervisor.drained.wait(drain_timeout_s)
                self._signal_all(SIGTERM)

    def _start_processes(self, stack: ExitStack, *, hold_standby: bool) -> None:
        """Create and start everything; cleanup callbacks go to `stack`."""
        try:
            run = RunDirectory(runtime_directory())
        except OSError as error:
            what = f"no run directory can be created: {error}"
            raise LaunchError(f"{what}\n  fix: set XDG_RUNTIME_DIR to a directory that can be written") from error
        stack.callback(run.remove)
        self.directory = run.path
        self.key = secrets.token_bytes(32)
        address_book = self._create_address_book(stack)
        endpoint = HostEndpoint(address_book.ip, self.key, address_book.is_local)
        self.actor_loop = ActorLoop(address_book, self.key, ArenaCodec(numpy_only=self._numpy_only, endpoint=endpoint))
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
                has_successors=not address_book.ip,
                cuda_devices={worker: ", ".join(gpus.names) for worker, gpus in self._gpus.items()},
                without_standby=frozenset((*self._gpus, *self._interpreters)),
            ),
            address_book,
            self._create_starter,
            self.frontends,
        )
        self._supervisor.is_standby_held = hold_standby
        stack.callback(self._supervisor.starter.close)
        self.actor_loop.add(self._supervisor)
        thread = threading.Thread(target=self.actor_loop.run, name="mstar-launcher", daemon=True)
        thread.start()
        stack.callback(thread.join, LOOP_TIMEOUT_S)
        stack.callback(self.actor_loop.stop)
        stack.callback(self._signal_all, SIGKILL)

    def _signal_all(self, signal_number: Signals) -> None:
        """Stop restarts, send every process a signal, and wait up to TERMINATE_TIMEOUT_S for their exits."""
        processes = _run_on_loop(self.actor_loop, self._supervisor.close)
        for process in processes:
            process.send_signal(signal_number)
        deadline = time.monotonic() + TERMINATE_TIMEOUT_S
        for process in processes:
            process.exited.wait(max(0.0, deadline - time.monotonic()))

    # ---------------------------------------------------------------- at run time
    def add_frontend(self, frontend: Actor) -> None:
        """Host a front end on the actor loop. It registers with the conductors itself; restarted ones get its name."""
        name = frontend.peer.name
        if name in (*self._reserved, *self._workers):
            raise LaunchError(f"the name `{name}` is used by another process\n  fix: give the front end a unique name")

        def join() -> None:
            self.actor_loop.add(frontend)
            self._supervisor.addresses.add_frontend(frontend.peer)

        _run_on_loop(self.actor_loop, join)

    def reload_weights(self) -> threading.Event:
        """Rolling update: replace all workers, one by one, by workers with reloaded weights. Returns the end event."""

        def begin() -> threading.Event:
            self._supervisor.reload_weights()
            return self._supervisor.rollout.finished

        return _run_on_loop(self.actor_loop, begin)

    @property
    def conductors(self) -> dict[str, Peer]:
        """Current incarnation of the conductor of each model."""
        children = self._supervisor.children
        return {model: children[name].peer for name, shard in self._shards.items() for model in shard.models}

    def peers(self) -> tuple[Peer, ...]:
        """Running conductors and workers. A worker that drains beside its successor comes before it."""
        children = self._supervisor.children
        current = {child.peer for child in current_children(children).values()}
        running = (child.peer for name, child in children.items() if child.process and name not in self.frontends.names)
        return tuple(sorted(running, key=lambda peer: peer in current))

    @property
    def recent_exits(self) -> list[tuple[float, Peer, str]]:
        """Recent process exits: monotonic time, peer, reason."""
        return list(self._supervisor.exits)

    def pid(self, name: str) -> int:
        """Process id of a child, or of the standby."""
        return self._supervisor.processes()[name].pid

    def health(self) -> dict[str, str]:
        """State of each conductor, worker and front end; empty before the start."""
        children = self._supervisor.children if "_supervisor" in vars(self) else {}
        return {name: child.state() for name, child in current_children(children).items()}

    @property
    def status(self) -> DeploymentStatus:
        """Restarts, rolling updates and loading progress."""
        return DeploymentStatus(vars(self).get("_supervisor"), self._shards)

    def stats(self) -> dict[str, Any]:
        """Running processes by name, open file descriptors of the launcher, number of restarts."""
        return {
            "processes": {name: process.pid for name, process in self._supervisor.processes().items()},
            "fds": len(os.listdir("/proc/self/fd")),
            "restarts": self._supervisor.restart_count,
        }


def _next_start_event(
    launcher: Launcher, supervisor: Supervisor, deadline: float, ready_timeout_s: float
) -> str | None:
    """Next event of the start; None when everything is up."""
    try:
        event = supervisor.start_events.get(timeout=max(0.0, deadline - time.monotonic()))
    except queue.Empty:
        late = [
            name if state == "starting" else f"{name} ({state})"
            for name, state in launcher.health().items()
            if state not in ("up", NOT_NEEDED)
        ]
        what = f"not ready after {ready_timeout_s:g} s; not up: {format_names(late)}"
        raise LaunchError(f"{what}\n  fix: read their output, or increase ready_timeout_s") from None
    if isinstance(event, LaunchError):
        raise event
    return event


def _run_on_loop(actor_loop: ActorLoop, function: Callable[[], Result]) -> Result:
    """Run a function on the actor loop and return its result."""
    result: Future[Result] = Future()

    def run() -> None:
        try:
            result.set_result(function())
        except Exception as error:  # noqa: BLE001 - re-raised by the caller
            result.set_exception(error)

    actor_loop.call_soon(run)
    return result.result(LOOP_TIMEOUT_S)


def _read_placement(model: str, source: Path | str | None) -> tuple[str, Placement]:
    """Text and content of a placement."""
    if isinstance(source, Path):
        placement = read_placement(source)  # first: its errors name the file
        return source.read_text(), placement
    try:
        return source or "", parse_placement(tomllib.loads(source or ""))
    except tomllib.TOMLDecodeError as error:
        what = f"the placement of `{model}` is not TOML: {error}"
        raise LaunchError(f"{what}\n  fix: correct the text, or pass a file as Path(...)") from error


def _check_name(worker: str, reserved: tuple[str, ...]) -> None:
    if worker in reserved or not WORKER_NAME.fullmatch(worker):
        problem = "reserved" if worker in reserved else "not a valid name"
        fix = f"use up to 32 letters, digits, _ and -, and none of {format_names(reserved)}"
        raise LaunchError(f"a placement names the worker `{worker}`, which is {problem}\n  fix: {fix}")

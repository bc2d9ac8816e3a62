"""The launcher as an actor: starts children, starts them again when they die, and tells the conductor.

Everything here runs on the loop of the launcher's node, and in its thread alone, because children die with the thread
that started them. What a death means for requests is the conductor's business.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from pathlib import Path
from signal import SIGKILL

import msgspec

from mstar.config import ConductorSettings, Options, WorkerSettings
from mstar.errors import MstarError
from mstar.launch.process import Process
from mstar.launch.restarts import Restarts
from mstar.launch.watch import Watch
from mstar.wire.messages import Busy, Drain, Drained, Gone, Hello, Kill, Message, Peer, Ready
from mstar.wire.node import Node
from mstar.worker import blackbox

LAUNCHER = Peer("launcher", 0)
CONDUCTOR, SPARE = "conductor", "spare"
SPARE_AFTER_S = 0.5
"""How long after another child a spare is started: those who wait for the child need the cores more."""
LOOK_S, BUSY = 0.2, 0.1
"""How often it is looked who computes, and in which part of that time at least."""
DEATHS_KEPT = 1000
WORDS_KEPT = 20

log = logging.getLogger("mstar.launch")


class LaunchError(MstarError):
    """A deployment could not be started."""


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """What is started: the same for every child, in every life."""

    directory: Path
    key: bytes
    models: dict[str, str]
    placements: dict[str, str]
    options: Options
    workers: tuple[str, ...]
    command: tuple[str, ...]
    has_spare: bool


class Child:
    """A name, and the life it has now."""

    def __init__(self, name: str) -> None:
        self.peer = Peer(name, -1)
        self.process: Process | None = None
        self.restarts = Restarts()
        self.due: float | None = 0.0
        """When it is to be started if it has no process; None if it is given up."""
        self.is_up = False
        self.used = 0.0
        """How many seconds of processor time it had used when that was looked at last."""
        self.sentence = ""
        """Why it is killed, if it is."""

    def state(self) -> str:
        """What an operator wants to know of it."""
        if self.process:
            return "up" if self.is_up else "starting"
        return "given up: it died at every start" if self.due is None else "waiting to be started"


class Supervisor:
    """The launcher of one deployment. Until everything is there, `news` says what happens; None is the end of it."""

    peer = LAUNCHER

    def __init__(self, node: Node, deployment: Deployment) -> None:
        self.children = {name: Child(name) for name in (CONDUCTOR, *deployment.workers)}
        self.spare = Child(SPARE)
        """A process without a name yet, which can take the place of a dead one at once."""
        self.fronts: dict[str, int] = {}
        self.deaths: deque[tuple[float, Peer, str]] = deque(maxlen=DEATHS_KEPT)
        self.restarted = 0
        self.news: queue.SimpleQueue[str | LaunchError | None] = queue.SimpleQueue()
        self.is_starting = True
        self.is_closing = False
        self.is_draining = False
        self.drained = threading.Event()
        self.watch = Watch(lambda process: node.call(lambda: self._died(process)))
        self._looked = 0.0
        self._node = node
        self._deployment = deployment

    def processes(self) -> dict[str, Process]:
        """Those that run, by name."""
        every = [*self.children.values(), self.spare]
        return {
            child.peer.name: process for child in every if (process := child.process) and not process.ended.is_set()
        }

    def drain(self) -> None:
        """Have the conductor finish what it has; `drained` is set when it says so, or can no more."""
        self.is_draining = True
        self._node.send(LAUNCHER, self.children[CONDUCTOR].peer, Drain())

    def close(self) -> list[Process]:
        """Start nothing more; what is left to be ended."""
        self.is_closing = True
        return list(self.processes().values())

    # ---------------------------------------------------------------- as an actor
    def receive(self, now: float, sender: Peer, message: Message) -> None:
        """Take a message."""
        match message:
            case Hello():
                self._came_up(now, sender)
            case Ready() if self.is_starting:
                for child in self.children.values():  # the conductor may have heard of them first
                    self._came_up(now, child.peer)
                self.is_starting = False
                self.news.put(None)
            case Kill(peer=peer, why=why):
                child = self.children.get(peer.name)
                if child and child.process and child.peer == peer:
                    child.sentence = why
                    child.process.send(SIGKILL)
            case Drained():
                self.drained.set()
            case _:
                pass

    def tick(self, now: float) -> None:
        """Start whoever is to be started now."""
        if self.is_closing:
            return
        for child in self.children.values():
            if not child.process and child.due is not None and child.due <= now:
                self._start(now, child)
        self._look(now)
        spare = self.spare
        is_due = spare.due is not None and spare.due <= now
        if self._deployment.has_spare and not self.is_starting and not spare.process and is_due:
            spare.process = self._spawn()

    def _look(self, now: float) -> None:
        """Tell the conductor which workers compute: one that does is not dead, even if it is not heard of."""
        if now - self._looked < LOOK_S:
            return
        spent, self._looked = now - self._looked, now
        conductor = self.children[CONDUCTOR]
        for child in self.children.values():
            if child is not conductor and child.process and conductor.process:
                used = child.process.used()
                if used - child.used > BUSY * spent:
                    self._node.send(LAUNCHER, conductor.peer, Busy(child.peer))
                child.used = used

    # ---------------------------------------------------------------- birth
    def _spawn(self) -> Process:
        process = Process(self._deployment.command)
        self.watch.add(process)
        return process

    def _start(self, now: float, child: Child) -> None:
        try:
            process = self.spare.process or self._spawn()
        except OSError as error:
            self._over(now, child, f"could not be started: {error}")
            return
        self.spare.process = None
        if self.spare.due is not None:
            self.spare.due = now + SPARE_AFTER_S
        child.process = process
        child.peer = Peer(child.peer.name, child.peer.incarnation + 1)
        child.sentence = ""
        self.restarted += child.peer.incarnation > 0
        process.give(msgspec.msgpack.encode(self._settings(child.peer)))

    def _settings(self, me: Peer) -> ConductorSettings | WorkerSettings:
        # The conductor in any case: one that is dead now will greet who is there when it comes back.
        there = [child.peer for child in self.children.values() if child.process or child.peer.name == CONDUCTOR]
        peers = {LAUNCHER.name: LAUNCHER.incarnation} | self.fronts
        peers |= {peer.name: peer.incarnation for peer in there if peer != me}
        told = {
            "name": me.name,
            "incarnation": me.incarnation,
            "peers": peers,
            "directory": str(self._deployment.directory),
            "key": self._deployment.key,
            "models": self._deployment.models,
            "placements": self._deployment.placements,
            "options": self._deployment.options,
        }
        return (
            ConductorSettings(**told) if me.name == CONDUCTOR else WorkerSettings(**told, black_box=str(self._box(me)))
        )

    def _box(self, peer: Peer) -> Path:
        return self._deployment.directory / f"{peer}.box"

    def _came_up(self, now: float, sender: Peer) -> None:
        child = self.children.get(sender.name)
        if child is None or child.peer != sender:
            return  # a front end
        if self.is_starting and not child.is_up:
            self.news.put(f"{sender.name} is up")
        child.is_up = True
        child.restarts.up(now)
        if self.is_draining and sender.name == CONDUCTOR:
            self.drain()  # the one that was asked is dead

    # ---------------------------------------------------------------- death
    def _died(self, process: Process) -> None:
        now = time.monotonic()
        if process is self.spare.process:
            self.spare.process = None
            wait = self.spare.restarts.died(now)
            self.spare.due = None if wait is None else now + max(wait, SPARE_AFTER_S)
            return
        child = next(child for child in self.children.values() if child.process is process)
        self._over(now, child, child.sentence or process.why(), process.last_words())

    def _over(self, now: float, child: Child, why: str, words: str = "") -> None:
        peer = child.peer
        child.process, child.is_up = None, False
        self.deaths.append((now, peer, why))
        self._node.forget(peer)
        suspects = blackbox.read(self._box(peer))
        for left in (self._box(peer), self._deployment.directory / str(peer)):
            left.unlink(missing_ok=True)
        if self.is_closing:
            return
        log.warning("%s %s", peer, why)
        if self.is_starting:
            self.is_closing = True
            self.news.put(_stillborn(peer, why, words))
            return
        if self.children[CONDUCTOR].process:
            self._node.send(LAUNCHER, self.children[CONDUCTOR].peer, Gone(peer, why, suspects))
        wait = child.restarts.died(now)
        child.due = None if wait is None else now + wait
        if wait is None:
            log.error("%s died at every start and is given up", peer.name)
            if peer.name == CONDUCTOR:
                self.drained.set()  # nobody is left who could finish anything
        self.tick(now)


def _stillborn(peer: Peer, why: str, words: str) -> LaunchError:
    lines = words.splitlines()[-WORDS_KEPT:] or ["(it wrote nothing)"]
    said = "\n".join(f"    {line}" for line in lines)
    return LaunchError(f"{peer.name} {why} before everything was up. Its last words:\n{said}\n  fix: see what it says")

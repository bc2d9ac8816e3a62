"""The launcher as an actor: starts children, starts them again when they die, and tells their conductors.

Everything here runs on the loop of the launcher's node, and in its thread alone, because children die with the thread
that started them. What a death means for requests is the conductor's business, and so is how many workers are needed.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from signal import SIGKILL, SIGTERM

import msgspec

from mstar.config import ConductorSettings, Options, WorkerSettings
from mstar.errors import MstarError
from mstar.launch.restarts import Restarts
from mstar.launch.running import Running, Starter
from mstar.plan.shards import Shard
from mstar.wire.messages import (
    Busy,
    Drain,
    Drained,
    Gone,
    Hello,
    Kill,
    Meet,
    Message,
    Peer,
    Ready,
    Renew,
    Renewed,
    Retire,
    Wanted,
)
from mstar.wire.node import Node
from mstar.wire.whereabouts import Whereabouts

LAUNCHER = Peer("launcher", 0)
SPARE = "spare"
SPARE_AFTER_S = 0.5
"""How long after another child a spare is started: those who wait for the child need the cores more."""
LOOK_S, BUSY = 0.2, 0.1
"""How often it is looked who computes, and in which part of that time at least."""
RETIRE_S = 2.0
"""How long a worker that is not needed may take to end before it is killed."""
RESTING = "not needed now"
"""The state of a worker that is planned and not wanted."""
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
    shards: dict[str, Shard]
    """By the name of its conductor."""
    has_spare: bool

    def shard_of(self, name: str) -> str:
        """The conductor of a worker; that of a conductor is itself."""
        return next(conductor for conductor, shard in self.shards.items() if name in (conductor, *shard.workers))


class Child:
    """A name, and the life it has now."""

    def __init__(self, name: str, *, is_wanted: bool = True) -> None:
        self.peer = Peer(name, -1)
        self.process: Running | None = None
        self.restarts = Restarts()
        self.is_wanted = is_wanted
        self.due: float | None = 0.0
        """When it is to be started if it is wanted and has no process; None if it is given up."""
        self.is_up = False
        self.used = 0.0
        """How many seconds of processor time it had used when that was looked at last."""
        self.sentence = ""
        """Why it is killed, if it is."""
        self.retired: float | None = None
        """When it was told to end because nobody needs it."""

    def state(self) -> str:
        """What an operator wants to know of it."""
        if self.process:
            return "up" if self.is_up else self.process.waits() or "starting"
        if not self.is_wanted:
            return RESTING
        return "given up: it died at every start" if self.due is None else "waiting to be started"


class Supervisor:
    """The launcher of one deployment. Until everything is there, `news` says what happens; None is the end of it."""

    peer = LAUNCHER

    def __init__(
        self,
        node: Node,
        deployment: Deployment,
        whereabouts: Whereabouts,
        starter: Callable[[Callable[[Running], None]], Starter],
    ) -> None:
        shards = deployment.shards
        self.children = {name: Child(name) for name in shards} | {
            name: Child(name, is_wanted=name in shard.first) for shard in shards.values() for name in shard.workers
        }
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
        self.edition = 0
        self.renewed = threading.Event()
        """Set as long as every worker has the present edition, as far as conductors have said."""
        self.renewed.set()
        self._unready, self._undrained, self._unrenewed = {*shards}, {*shards}, set[str]()
        """Conductors that have not said yet that all are there; that nothing is left; that all are renewed."""
        self._is_old = False
        """Whether there are newer weights than those of the edition."""
        self.starter = starter(lambda process: node.call(lambda: self._died(process)))
        self._looked = 0.0
        self._node = node
        self._deployment = deployment
        self._whereabouts = whereabouts

    def processes(self) -> dict[str, Running]:
        """Those that run, by name."""
        every = [*self.children.values(), self.spare]
        return {
            child.peer.name: process for child in every if (process := child.process) and not process.ended.is_set()
        }

    def drain(self) -> None:
        """Have conductors finish what they have; `drained` is set when all say so, or can no more."""
        self.is_draining = True
        self._tell(Drain(), *self._deployment.shards)

    def renew(self) -> None:
        """Have every worker replaced by one that loads the weights anew; `renewed` is set when that is done.

        One renewal after the other: a request that began with an edition finds it wherever it goes on.
        """
        self._is_old = True
        if self.renewed.is_set():
            self.renewed.clear()
            self._go_on_renewing()

    def _go_on_renewing(self) -> None:
        """Begin the renewal that was asked for since the last one began, or be done."""
        if not self._is_old:
            self.renewed.set()
            return
        self._is_old = False
        self.edition += 1
        self._unrenewed = {*self._deployment.shards}
        self._tell(Renew(self.edition), *self._deployment.shards)

    def welcome(self, front: Peer) -> None:
        """A front end is there."""
        self.fronts[front.name] = front.incarnation
        self._introduce(front, self._whereabouts.mine)

    def close(self) -> list[Running]:
        """Start nothing more; what is left to be ended."""
        self.is_closing = True
        return list(self.processes().values())

    def _tell(self, message: Message, *conductors: str) -> None:
        for child in (self.children[name] for name in conductors):
            if child.process:
                self._node.send(LAUNCHER, child.peer, message)

    # ---------------------------------------------------------------- as an actor
    def receive(self, now: float, sender: Peer, message: Message) -> None:
        """Take a message."""
        match message:
            case Hello():
                self._came_up(now, sender)
            case Ready() if self.is_starting:
                self._is_ready(now, sender.name)
            case Meet(peer=peer, address=address) if sender == peer:
                self._introduce(peer, address)
            case Kill() | Wanted() | Retire():
                self._obey(now, message)
            case Renewed(edition=self.edition) if _is_last(self._unrenewed, sender.name):
                self._go_on_renewing()
            case Drained() if _is_last(self._undrained, sender.name):
                self.drained.set()
            case _:
                pass

    def _is_ready(self, now: float, conductor: str) -> None:
        """All are there that a conductor needs."""
        for name in (conductor, *self._deployment.shards[conductor].workers):
            if self.children[name].process:  # the conductor may have heard of them first
                self._came_up(now, self.children[name].peer)
        if _is_last(self._unready, conductor):
            self.is_starting = False
            self.news.put(None)

    def _obey(self, now: float, message: Kill | Wanted | Retire) -> None:
        """Do what a conductor says of a worker."""
        child = self.children.get(message.worker if isinstance(message, Wanted) else message.peer.name)
        if child is None:
            return
        if isinstance(message, Wanted):
            if not child.is_wanted:
                child.is_wanted, child.due = True, now
                self.tick(now)
        elif child.process and child.peer == message.peer:
            if isinstance(message, Kill):
                child.sentence = message.why
                child.process.send(SIGKILL)
            elif child.retired is None:
                child.is_wanted, child.retired, child.sentence = False, now, RESTING
                child.process.send(SIGTERM)

    def tick(self, now: float) -> None:
        """Start whoever is to be started now, and end whoever should have ended."""
        if self.is_closing:
            return
        for child in self.children.values():
            if child.process is None:
                if child.is_wanted and child.due is not None and child.due <= now:
                    self._start(now, child)
            elif child.process.is_lost():
                self._over(now, child, child.sentence or "cannot be reached")
            elif child.retired is not None and now - child.retired > RETIRE_S:
                child.retired = now
                child.process.send(SIGKILL)
        self.starter.tick(now)
        self._look(now)
        spare = self.spare
        is_due = spare.due is not None and spare.due <= now
        if self._deployment.has_spare and not self.is_starting and not spare.process and is_due:
            spare.process = self.starter.start(SPARE)

    def _look(self, now: float) -> None:
        """Tell conductors which workers compute: one that does is not dead, even if it is not heard of."""
        if now - self._looked < LOOK_S:
            return
        spent, self._looked = now - self._looked, now
        for name, child in self.children.items():
            if child.process:
                used = child.process.used()
                if name not in self._deployment.shards and used - child.used > BUSY * spent:
                    self._tell(Busy(child.peer), self._deployment.shard_of(name))
                child.used = used

    # ---------------------------------------------------------------- birth
    def _start(self, now: float, child: Child) -> None:
        try:
            process = self.spare.process or self.starter.start(child.peer.name)
        except OSError as error:
            self._over(now, child, f"could not be started: {error}")
            return
        self.spare.process = None
        if self.spare.due is not None:
            self.spare.due = now + SPARE_AFTER_S
        child.process = process
        child.peer = Peer(child.peer.name, child.peer.incarnation + 1)
        child.sentence, child.retired = "", None
        self.restarted += child.peer.incarnation > 0
        if shard := self._deployment.shards.get(child.peer.name):
            _rouse([self.children[name] for name in shard.first], now)
        process.become(self._settings(child.peer))

    def _settings(self, me: Peer) -> ConductorSettings | WorkerSettings:
        conductor = self._deployment.shard_of(me.name)
        shard = self._deployment.shards[conductor]
        # The conductor in any case: one that is dead now will greet who is there when it comes back.
        children = [self.children[name] for name in (conductor, *shard.workers)]
        there = [child.peer for child in children if child.process or child.peer.name == conductor]
        peers = {LAUNCHER.name: LAUNCHER.incarnation} | self.fronts
        peers |= {peer.name: peer.incarnation for peer in there if peer != me}
        known = _known(self._whereabouts, self.fronts)
        told = {
            "name": me.name,
            "incarnation": me.incarnation,
            "peers": peers,
            "directory": str(self._deployment.directory),
            "key": self._deployment.key,
            "ip": self._whereabouts.ip,
            "addresses": {name: known[Peer(name, n)] for name, n in peers.items() if Peer(name, n) in known},
            "edition": self.edition,
            "models": {name: self._deployment.models[name] for name in shard.models},
            "placements": {name: self._deployment.placements[name] for name in shard.models},
            "options": self._deployment.options,
        }
        if me.name == conductor:
            return ConductorSettings(**told)
        return WorkerSettings(**told, conductor=conductor, black_box=str(self._deployment.directory / f"{me}.box"))

    def _introduce(self, peer: Peer, address: str) -> None:
        """Tell every child where another one is, and that one where all are: what it was told may be old by now."""
        if not self._whereabouts.ip:
            return
        for child in self.children.values():
            if child.process and child.peer != peer:
                self._node.send(LAUNCHER, child.peer, Meet(peer, address))
        if peer.name in self.children:
            for other, where in _known(self._whereabouts, self.fronts).items():
                if other != peer:
                    self._node.send(LAUNCHER, peer, Meet(other, where))

    def _came_up(self, now: float, sender: Peer) -> None:
        child = self.children.get(sender.name)
        if child is None or child.peer != sender:
            return  # a front end
        if self.is_starting and not child.is_up:
            self.news.put(f"{sender.name} is up")
        is_new, child.is_up = not child.is_up, True
        child.restarts.up(now)
        if sender.name in self._deployment.shards and is_new:  # the one that was asked is dead
            if self.is_draining:
                self._tell(Drain(), sender.name)
            if not self.renewed.is_set():
                self._tell(Renew(self.edition), sender.name)

    # ---------------------------------------------------------------- death
    def _died(self, process: Running) -> None:
        now = time.monotonic()
        if process is self.spare.process:
            self.spare.process = None
            wait = self.spare.restarts.died(now)
            self.spare.due = None if wait is None else now + max(wait, SPARE_AFTER_S)
            return
        child = next((child for child in self.children.values() if child.process is process), None)
        if child:  # another has taken the place of one that was lost
            self._over(now, child, child.sentence or process.why())

    def _over(self, now: float, child: Child, why: str) -> None:
        peer, process = child.peer, child.process
        child.process, child.is_up = None, False
        self.deaths.append((now, peer, why))
        self._node.forget(peer)
        suspects = process.remains() if process else []
        if self.is_closing:
            return
        log.log(logging.WARNING if child.retired is None else logging.INFO, "%s %s", peer, why)
        if self.is_starting:
            self.is_closing = True
            self.news.put(_stillborn(peer, why, process))
            return
        self._tell(Gone(peer, why, suspects), self._deployment.shard_of(peer.name))
        self._plan_next(now, child)
        self.tick(now)

    def _plan_next(self, now: float, child: Child) -> None:
        """Decide when a name that has died is started again."""
        if child.retired is not None:
            child.due = now  # if it is wanted again already
            if not child.is_wanted:
                self.starter.rest(child.peer.name)
            return
        wait = child.restarts.died(now)
        child.due = None if wait is None else now + wait
        if wait is None:
            log.error("%s died at every start and is given up", child.peer.name)
            if _is_last(self._undrained, child.peer.name):  # nobody is left who could finish anything
                self.drained.set()


def _is_last(waited: set[str], conductor: str) -> bool:
    """Tick a conductor off; whether it was the last that was waited for."""
    was_waited = conductor in waited
    waited.discard(conductor)
    return was_waited and not waited


def _known(whereabouts: Whereabouts, fronts: Mapping[str, int]) -> dict[Peer, str]:
    """Where everybody is, as far as it is known; nobody, on a single machine."""
    if not whereabouts.ip:
        return {}
    here = [LAUNCHER, *(Peer(name, incarnation) for name, incarnation in fronts.items())]
    return whereabouts.known() | dict.fromkeys(here, whereabouts.mine)


def _rouse(first: Iterable[Child], now: float) -> None:
    """There is a new conductor, which does not know of models that rest: those run that run from the start."""
    for child in first:
        if not child.is_wanted:
            child.is_wanted, child.due = True, now


def _stillborn(peer: Peer, why: str, process: Running | None) -> LaunchError:
    lines = (process.last_words() if process else "").splitlines()[-WORDS_KEPT:] or ["(it wrote nothing)"]
    said = "\n".join(f"    {line}" for line in lines)
    where, fix = "", "see what it says"
    if process and process.host:
        where, fix = f" at {process.host}", f"{fix}; models and weights have to be at the same path on every host"
    return LaunchError(f"{peer.name}{where} {why} before everything was up. Its last words:\n{said}\n  fix: {fix}")

"""The processes of a simulated deployment: the real cores, and drivers that do for them what real drivers do.

Drivers decide nothing about requests. When processes die and start is the world's business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mstar.conductor import core as conducting
from mstar.server import streams as serving
from mstar.sim.engine import SimEngine
from mstar.sim.history import Violation
from mstar.sim.life import Life
from mstar.sim.models import Crash
from mstar.sim.oracle import digest
from mstar.wire import messages as m
from mstar.worker import commands as working
from mstar.worker.core import WorkerCore

if TYPE_CHECKING:
    from mstar.sim.scenario import Client
    from mstar.sim.world import World

LAUNCHER = m.Peer("launcher", 0)


class WorkerLife(Life):
    """A worker: its core, and an engine that it gives commands."""

    def __init__(self, world: World, peer: m.Peer, conductor: m.Peer) -> None:
        super().__init__(world, peer)
        plans = {name: world.served[name].plans for name in world.shards.models[conductor.name]}
        self.core = WorkerCore(peer, conductor, plans, (), world.scenario.worker)
        self.engine = SimEngine(world.drawn, world.scenario.costs, world.once)
        self.heard = world.now
        """When it last heard of its conductor."""

    def start(self, _: list[m.Peer]) -> None:
        """It is up: say so."""
        for peer in (self.core.conductor, LAUNCHER):
            self.say(peer, m.Hello(edition=self.core.edition))

    def receive(self, sender: m.Peer, message: m.Message) -> None:
        """Take a message."""
        if sender.name == self.core.conductor.name:
            self.heard = self.world.now
        elif sender.name in self.world.shards:
            raise Violation(f"I15 {self.peer} is told {message} by {sender}, which does not conduct it")
        if isinstance(message, m.Forget):
            self.forget(message.peer)
        self._act(self.core.step(self.world.now, working.Received(sender, message)))

    def tick(self) -> None:
        """Time has passed."""
        self._act(self.core.step(self.world.now, working.Tick()))

    def _act(self, actions: list[working.Action]) -> None:
        for action in actions:
            if isinstance(action, working.Send):
                if isinstance(action.message, m.Released):
                    self.world.judge.released(self, action.message)
                self.say(action.to, action.message)
            else:
                if isinstance(action, working.Batch):
                    self.world.judge.queues(self)
                self._run(self.engine.take(action))

    def _run(self, seconds: float | None) -> None:
        """A batch begins that takes so long; and what the engine has to say is said soon."""
        world = self.world
        if seconds is not None:
            world.judge.computes(self)
            world.later(seconds * world.trouble.slowness(self.peer.name), self, self._end)
        for answer in self.engine.answers:
            world.later(0.001, self, self._tell, answer)
        self.engine.answers.clear()

    def _tell(self, answer: working.Exported) -> None:
        self._act(self.core.step(self.world.now, answer))

    def _end(self) -> None:
        """The batch has run."""
        try:
            ran, seconds = self.engine.end()
        except Crash:
            self.world.kill(self.peer, "a trap")
            return
        self._run(seconds)
        self._act(self.core.step(self.world.now, ran))


class ConductorLife(Life):
    """A conductor: its core."""

    def __init__(self, world: World, peer: m.Peer) -> None:
        super().__init__(world, peer)
        served = {name: world.served[name] for name in world.shards.models[peer.name]}
        self.core = conducting.ConductorCore(peer, LAUNCHER, served, world.scenario.limits)
        self.late = 0
        """How many messages it had ignored when it was last looked at."""

    def start(self, roster: list[m.Peer]) -> None:
        """It is up: say so to everyone."""
        for peer in roster:
            self.say(peer, m.Hello())

    def receive(self, sender: m.Peer, message: m.Message) -> None:
        """Take a message."""
        is_old = False
        if isinstance(message, m.Done | m.Failed | m.Lost) and (request := self.core.requests.get(message.rid)):
            is_old = request.attempt != message.attempt
        self._act(self.core.step(self.world.now, conducting.Received(sender, message)))
        self.world.judge.conducted(self, message, is_old=is_old)

    def tick(self) -> None:
        """Time has passed."""
        self._act(self.core.step(self.world.now, conducting.Tick()))

    def _act(self, actions: list[conducting.Send]) -> None:
        for action in actions:
            self.say(action.to, action.message)
            if isinstance(action.message, m.Forget):
                self.forget(action.message.peer)
            elif isinstance(action.message, m.End):
                self.world.judge.over(action.message)
            elif isinstance(action.message, m.Drained):
                self.world.judge.drained(self)
            elif isinstance(action.message, m.Start):
                self.world.judge.comings.starts(self, action.message)
            elif isinstance(action.message, m.Retire):
                self.world.judge.comings.retires(self, action.message.peer)


class FrontLife(Life):
    """A front end: its core, and its clients."""

    def __init__(self, world: World, peer: m.Peer) -> None:
        super().__init__(world, peer)
        conductors = {model: world.peers[name] for name, models in world.shards.models.items() for model in models}
        self.core = serving.FrontCore(peer, conductors, digest)
        self.clients: dict[str, Client] = {}

    def start(self, _: list[m.Peer]) -> None:
        """It is up: say so."""
        for conductor in dict.fromkeys(self.core.conductors.values()):
            self.say(conductor, m.Hello())

    def receive(self, sender: m.Peer, message: m.Message) -> None:
        """Take a message."""
        if isinstance(message, m.Forget):
            self.forget(message.peer)
        if isinstance(message, m.Standing):
            return
        if isinstance(message, m.Heard) and (client := self.clients.get(message.rid)):
            self.world.talks.heard(client, message)
        actions = self.core.step(self.world.now, serving.Received(sender, message))
        if isinstance(message, m.Emit) and (client := self.clients.get(message.rid)):
            self.world.judge.delivers(client, message, sum(isinstance(one, serving.Deliver) for one in actions))
        self._act(actions)

    def tick(self) -> None:
        """Time has passed."""
        self._act(self.core.step(self.world.now, serving.Tick()))

    # ---------------------------------------------------------------- what its clients do
    def open(self, client: Client) -> None:
        """A client asks for something."""
        self.clients[client.rid] = client
        ask = m.Value(client.ask)
        submit = m.Submit(client.rid, client.model, ask, client.tenant, client.patience, pace=client.pace)
        self._act(self.core.step(self.world.now, serving.Opened(submit)))

    def leave(self, client: Client) -> None:
        """A client goes away."""
        if self.clients.pop(client.rid, None) is not None:
            self.world.history.leave(client.rid)
            self._act(self.core.step(self.world.now, serving.Left(client.rid)))

    def tell(self, client: Client, value: int | None) -> None:
        """A client says more."""
        if client.rid in self.clients:
            self.world.talks.says(client, value)
            self._act(self.core.step(self.world.now, serving.Told(client.rid, value)))

    def took(self, client: Client) -> None:
        """A client has taken all that it was given."""
        for kind, count in client.given.items():
            if client.taken.get(kind) != count:
                client.taken[kind] = count
                self._act(self.core.step(self.world.now, serving.Took(client.rid, kind, count)))

    def _act(self, actions: list[serving.Action]) -> None:
        for action in actions:
            if isinstance(action, serving.Deliver):
                self._deliver(action)
            elif isinstance(action, serving.Ended):
                self._ended(action.rid, action.end)
            elif isinstance(action, serving.Waits):
                self.world.talks.waits(self.clients[action.rid], action.number, action.answer)
            else:
                self.say(action.to, action.message)

    def _deliver(self, delivery: serving.Deliver) -> None:
        world, rid = self.world, delivery.rid
        world.history.deliver(rid, delivery.kind, delivery.index, digest(delivery.value))
        world.note("deliver", rid, delivery.kind, delivery.index)
        client = self.clients[rid]
        client.given[delivery.kind] = delivery.index + 1
        world.judge.delivered(client, delivery.kind)
        if world.now >= client.slow_until:
            self.took(client)

    def _ended(self, rid: str, end: m.Finished | m.Refused) -> None:
        client = self.clients.pop(rid)
        self.world.talks.ended(client)
        self.world.judge.ended(client, end)


class LauncherLife(Life):
    """The launcher as an actor. It never dies; what it does about deaths is in the world."""

    def __init__(self, world: World, peer: m.Peer) -> None:
        super().__init__(world, peer)
        self._drained: set[str] = set()
        self._renewed = dict.fromkeys(world.shards.models, 0)
        """The newest edition that every worker of a conductor has."""

    @property
    def is_drained(self) -> bool:
        """Whether every conductor has said that nothing is left."""
        return self._drained == self.world.shards.models.keys()

    @property
    def renewed(self) -> int:
        """The newest edition that every worker has."""
        return min(self._renewed.values())

    def tell(self, message: m.Message, *conductors: str) -> None:
        """Tell those of these conductors that are there."""
        for life in [life for name in conductors if (life := self.world.lives.get(name)) is not None]:
            self.say(life.peer, message)
            self.flush()

    def receive(self, sender: m.Peer, message: m.Message) -> None:
        """Take a message."""
        match message:
            case m.Kill():
                self.world.kill(message.peer, message.why)
            case m.Wanted():
                self.world.want(message.worker)
            case m.Retire():
                self.world.retire(message.peer)
            case m.Drained():
                self._drained.add(sender.name)
            case m.Renewed():
                self._renewed[sender.name] = max(self._renewed[sender.name], message.edition)
            case m.Hello() if sender.name in self.world.shards:
                if self.world.trouble.is_draining:
                    self.say(sender, m.Drain())  # the one that was asked is dead
                if self.renewed < self.world.edition:
                    self.say(sender, m.Renew(self.world.edition))
            case _:
                pass

    def tick(self) -> None:
        """Nothing to do."""


AnyLife = WorkerLife | ConductorLife | FrontLife
"""The lives that can end."""


def stock_of(life: Any) -> dict[str, int]:
    """What a life holds, counted."""
    return life.core.stock() | {"unacked": life.unacked()}

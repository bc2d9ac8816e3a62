"""The processes of a simulated deployment: the real cores, and drivers that do for them what real drivers do.

Drivers decide nothing about requests. When processes die and start is the world's business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mstar.conductor.core import ConductorCore
from mstar.frontend import core as serving
from mstar.sim.engine import SimEngine
from mstar.sim.history import Violation
from mstar.sim.models import WorkerCrash
from mstar.sim.oracle import digest
from mstar.sim.process import SimProcess
from mstar.wire import messages as m
from mstar.wire.steps import MessageReceived, SendMessage, Tick
from mstar.worker import commands as working
from mstar.worker.core import WorkerCore

if TYPE_CHECKING:
    from mstar.sim.scenario import SimClient
    from mstar.sim.simulation import Simulation

LAUNCHER = m.Peer("launcher", 0)


class SimWorker(SimProcess):
    """A worker: its core, and an engine that it gives commands."""

    def __init__(self, simulation: Simulation, peer: m.Peer, conductor: m.Peer) -> None:
        super().__init__(simulation, peer)
        plans = {name: simulation.planned_models[name].plans for name in simulation.shards.models[conductor.name]}
        self.core = WorkerCore(peer, conductor, plans, (), simulation.scenario.worker_limits)
        self.engine = SimEngine(simulation.rng, simulation.scenario.costs, simulation.non_idempotent_calls)
        self.conductor_seen_at = simulation.now
        """When it last heard of its conductor."""

    def start(self, _: list[m.Peer]) -> None:
        """It is up: say so."""
        for peer in (self.core.conductor, LAUNCHER):
            self.send(peer, m.Register(weights_version=self.core.weights_version))

    def receive(self, sender: m.Peer, message: m.Message) -> None:
        """Take a message."""
        if sender.name == self.core.conductor.name:
            self.conductor_seen_at = self.simulation.now
        elif sender.name in self.simulation.shards:
            raise Violation(f"I15 {self.peer} is told {message} by {sender}, which does not conduct it")
        if isinstance(message, m.PeerDead):
            self.mark_peer_dead(message.peer)
        self._perform(self.core.step(self.simulation.now, working.MessageReceived(sender, message)))

    def tick(self) -> None:
        """Time has passed."""
        self._perform(self.core.step(self.simulation.now, working.Tick()))

    def _perform(self, actions: list[working.Action]) -> None:
        for action in actions:
            if isinstance(action, working.SendMessage):
                if isinstance(action.message, m.AttemptReleased):
                    self.simulation.checker.on_attempt_released(self, action.message)
                self.send(action.to, action.message)
            else:
                if isinstance(action, working.Batch):
                    self.simulation.checker.on_batch_submitted(self)
                self._schedule_batch(self.engine.submit(action))

    def _schedule_batch(self, seconds: float | None) -> None:
        """A batch begins that takes so long; and what the engine has to say is said soon."""
        world = self.simulation
        if seconds is not None:
            world.checker.on_batch_started(self)
            world.schedule_for(seconds * world.fault_injector.slow_factor(self.peer.name), self, self._finish_batch)
        for answer in self.engine.outputs:
            world.schedule_for(0.001, self, self._report, answer)
        self.engine.outputs.clear()

    def _report(self, answer: working.ExportFinished) -> None:
        self._perform(self.core.step(self.simulation.now, answer))

    def _finish_batch(self) -> None:
        """The batch has run."""
        try:
            ran, seconds = self.engine.finish_batch()
        except WorkerCrash:
            self.simulation.kill(self.peer, "a trap")
            return
        self._schedule_batch(seconds)
        self._perform(self.core.step(self.simulation.now, ran))


class SimConductor(SimProcess):
    """A conductor: its core."""

    def __init__(self, simulation: Simulation, peer: m.Peer) -> None:
        super().__init__(simulation, peer)
        served = {name: simulation.planned_models[name] for name in simulation.shards.models[peer.name]}
        self.core = ConductorCore(peer, LAUNCHER, served, simulation.scenario.conductor_limits)
        self.ignored_messages = 0
        """How many messages it had ignored when it was last looked at."""

    def start(self, roster: list[m.Peer]) -> None:
        """It is up: say so to everyone."""
        for peer in roster:
            self.send(peer, m.Register())

    def receive(self, sender: m.Peer, message: m.Message) -> None:
        """Take a message."""
        is_old = False
        if isinstance(message, m.SeatDone | m.AttemptFailed | m.RetryNeeded) and (
            request := self.core.lifecycle.requests.get(message.rid)
        ):
            is_old = request.attempt != message.attempt
        self._perform(self.core.step(self.simulation.now, MessageReceived(sender, message)))
        self.simulation.checker.on_conductor_step(self, message, is_old=is_old)

    def tick(self) -> None:
        """Time has passed."""
        self._perform(self.core.step(self.simulation.now, Tick()))

    def _perform(self, actions: list[SendMessage]) -> None:
        for action in actions:
            self.send(action.to, action.message)
            if isinstance(action.message, m.PeerDead):
                self.mark_peer_dead(action.message.peer)
            elif isinstance(action.message, m.ReleaseAttempt):
                self.simulation.checker.on_attempt_ended(action.message)
            elif isinstance(action.message, m.Drained):
                self.simulation.checker.on_drained(self)
            elif isinstance(action.message, m.StartWalk):
                self.simulation.checker.scaling.on_start_walk(self, action.message)
            elif isinstance(action.message, m.StopWorker):
                self.simulation.checker.scaling.on_stop_worker(self, action.message.peer)


class SimFrontend(SimProcess):
    """A front end: its core, and its clients."""

    def __init__(self, simulation: Simulation, peer: m.Peer) -> None:
        super().__init__(simulation, peer)
        conductors = {
            model: simulation.peers[name] for name, models in simulation.shards.models.items() for model in models
        }
        self.core = serving.FrontendCore(peer, conductors, digest)
        self.clients: dict[str, SimClient] = {}

    def start(self, _: list[m.Peer]) -> None:
        """It is up: say so."""
        for conductor in dict.fromkeys(self.core.conductors.values()):
            self.send(conductor, m.Register())

    def receive(self, sender: m.Peer, message: m.Message) -> None:
        """Take a message."""
        if isinstance(message, m.PeerDead):
            self.mark_peer_dead(message.peer)
        if isinstance(message, m.ModelStatusReply):
            return
        if isinstance(message, m.InputAccepted) and (client := self.clients.get(message.rid)):
            self.simulation.client_inputs.on_accepted(client, message)
        actions = self.core.step(self.simulation.now, serving.MessageReceived(sender, message))
        if isinstance(message, m.Emit) and (client := self.clients.get(message.rid)):
            self.simulation.checker.check_delivery(
                client, message, sum(isinstance(one, serving.Deliver) for one in actions)
            )
        self._perform(actions)

    def tick(self) -> None:
        """Time has passed."""
        self._perform(self.core.step(self.simulation.now, serving.Tick()))

    # ---------------------------------------------------------------- what its clients do
    def submit(self, client: SimClient) -> None:
        """A client asks for something."""
        self.clients[client.rid] = client
        ask = m.Value(client.request)
        submit = m.Submit(client.rid, client.model, ask, client.tenant, client.timeout_s, slo=client.slo)
        self._perform(self.core.step(self.simulation.now, serving.RequestOpened(submit)))

    def disconnect(self, client: SimClient) -> None:
        """A client goes away."""
        if self.clients.pop(client.rid, None) is not None:
            self.simulation.history.disconnect(client.rid)
            self._perform(self.core.step(self.simulation.now, serving.ClientLeft(client.rid)))

    def send_input(self, client: SimClient, value: int | None) -> None:
        """A client says more."""
        if client.rid in self.clients:
            self.simulation.client_inputs.on_input(client, value)
            self._perform(self.core.step(self.simulation.now, serving.InputSent(client.rid, value)))

    def consume_outputs(self, client: SimClient) -> None:
        """A client has taken all that it was given."""
        for kind, count in client.delivered.items():
            if client.consumed.get(kind) != count:
                client.consumed[kind] = count
                self._perform(self.core.step(self.simulation.now, serving.OutputsConsumed(client.rid, kind, count)))

    def _perform(self, actions: list[serving.Action]) -> None:
        for action in actions:
            if isinstance(action, serving.Deliver):
                self._deliver(action)
            elif isinstance(action, serving.RequestEnded):
                self._end_request(action.rid, action.end)
            elif isinstance(action, serving.AwaitingInput):
                self.simulation.client_inputs.on_answer(self.clients[action.rid], action.number, action.answer)
            else:
                self.send(action.to, action.message)

    def _deliver(self, delivery: serving.Deliver) -> None:
        world, rid = self.simulation, delivery.rid
        world.history.deliver(rid, delivery.kind, delivery.index, digest(delivery.value))
        world.log("deliver", rid, delivery.kind, delivery.index)
        client = self.clients[rid]
        client.delivered[delivery.kind] = delivery.index + 1
        world.checker.on_delivered(client, delivery.kind)
        if world.now >= client.stalled_until:
            self.consume_outputs(client)

    def _end_request(self, rid: str, end: m.RequestFinished | m.RequestRejected) -> None:
        client = self.clients.pop(rid)
        self.simulation.client_inputs.on_end(client)
        self.simulation.checker.on_end(client, end)


class SimLauncher(SimProcess):
    """The launcher as an actor. It never dies; what it does about deaths is in the world."""

    def __init__(self, simulation: Simulation, peer: m.Peer) -> None:
        super().__init__(simulation, peer)
        self._drained_conductors: set[str] = set()
        self._rolled_versions = dict.fromkeys(simulation.shards.models, 0)
        """The newest edition that every worker of a conductor has."""

    @property
    def is_drained(self) -> bool:
        """Whether every conductor has said that nothing is left."""
        return self._drained_conductors == self.simulation.shards.models.keys()

    @property
    def rolled_version(self) -> int:
        """The newest edition that every worker has."""
        return min(self._rolled_versions.values())

    def broadcast(self, message: m.Message, *conductors: str) -> None:
        """Tell those of these conductors that are there."""
        for life in [life for name in conductors if (life := self.simulation.processes.get(name)) is not None]:
            self.send(life.peer, message)
            self.flush()

    def receive(self, sender: m.Peer, message: m.Message) -> None:
        """Take a message."""
        match message:
            case m.Kill():
                self.simulation.kill(message.peer, message.reason)
            case m.StartWorker():
                self.simulation.start_worker(message.worker)
            case m.StopWorker():
                self.simulation.stop_worker(message.peer)
            case m.Drained():
                self._drained_conductors.add(sender.name)
            case m.WeightsRolled():
                self._rolled_versions[sender.name] = max(self._rolled_versions[sender.name], message.weights_version)
            case m.Register() if sender.name in self.simulation.shards:
                if self.simulation.fault_injector.is_draining:
                    self.send(sender, m.Drain())  # the one that was asked is dead
                if self.rolled_version < self.simulation.weights_version:
                    self.send(sender, m.RollWeights(self.simulation.weights_version))
            case _:
                pass

    def tick(self) -> None:
        """Nothing to do."""


AnyProcess = SimWorker | SimConductor | SimFrontend
"""The lives that can end."""


def process_stats(process: Any) -> dict[str, int]:
    """What a life holds, counted."""
    return process.core.stats() | {"unacked": process.unacked_frames()}

"""Processes of a simulated deployment: the real cores with simulated drivers.

Drivers decide nothing about requests. Start and death of processes are in `simulation`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from zlib import crc32

from mstar.conductor.core import ConductorCore
from mstar.conductor.liveness.watch import ConductorWatch
from mstar.frontend import core as serving
from mstar.sim.engine import SimEngine
from mstar.sim.environment import Environment
from mstar.sim.history import Violation
from mstar.sim.models import WorkerCrash
from mstar.sim.oracle import digest
from mstar.sim.process import ActorGroup, SimProcess
from mstar.wire import messages as m
from mstar.wire.message import MessageReceived, SendMessage, Tick
from mstar.worker import commands as working
from mstar.worker.core import WorkerCore

if TYPE_CHECKING:
    from mstar.sim.scenario import SimClient

LAUNCHER = m.Peer("launcher", 0)
ENGINE_REPORT_S = 0.001
"""Seconds until a worker gets a report of its engine."""


class SimWorker(SimProcess):
    """A worker core with a simulated engine and the newest weights."""

    def __init__(self, simulation: Environment, peer: m.Peer) -> None:
        super().__init__(simulation, peer)
        conductor = simulation.peers[simulation.shards.conductor(peer.name)]
        plans = {name: simulation.planned_models[name].plans for name in simulation.shards.models[conductor.name]}
        self.core = WorkerCore(peer, conductor, plans, (), simulation.scenario.worker_limits)
        version = simulation.serving_versions.get(conductor.name, simulation.weights_version)
        self.core.weights_version = simulation.weights_versions[peer] = version
        salt = crc32(f"{peer}".encode())
        self.engine = SimEngine(simulation.rng, simulation.scenario.costs, simulation.non_idempotent_calls, salt)
        self.conductor_seen_at = simulation.now
        """Time of the last message from its conductor."""

    def start(self, _: list[m.Peer]) -> None:
        """Register with conductor and launcher."""
        for peer in (self.core.conductor, LAUNCHER):
            self.send(peer, m.Register(weights_version=self.core.weights_version))

    def receive(self, sender: m.Peer, message: m.Message) -> None:
        """Handle a message."""
        if sender.name == self.core.conductor.name:
            self.conductor_seen_at = self.simulation.now
        elif sender.name in self.simulation.shards:
            raise Violation(f"I15 {self.peer} got {message} from {sender}, which is not its conductor")
        if isinstance(message, m.PeerDead):
            self.mark_peer_dead(message.peer)
        self._step(working.MessageReceived(sender, message))

    def tick(self) -> None:
        """Let the core check its timeouts."""
        self._step(working.Tick())

    def _step(self, event: working.Event) -> None:
        actions = self.core.step(self.simulation.now, event)
        self.simulation.checker.focused.on_worker_step(self)
        self._perform(actions)

    def _perform(self, actions: list[working.Action]) -> None:
        for action in actions:
            if isinstance(action, working.SendMessage):
                if isinstance(action.message, m.AttemptReleased):
                    self.simulation.checker.on_attempt_released(self, action.message)
                elif isinstance(action.message, m.Emit):
                    self.simulation.checker.focused.on_emit(action.message)
                self.send(action.to, action.message)
            else:
                if isinstance(action, working.Batch):
                    self.simulation.checker.on_batch_submitted(self, action)
                self._schedule_batch(self.engine.submit(action))

    def _schedule_batch(self, seconds: float | None) -> None:
        """Schedule the end of a batch that starts, and deliver the engine's reports."""
        simulation = self.simulation
        if seconds is not None:
            simulation.checker.on_batch_started(self)
            simulation.schedule_for(
                seconds * simulation.fault_injector.slow_factor(self.peer.name), self, self._finish_batch
            )
        for report in self.engine.outputs:
            simulation.schedule_for(ENGINE_REPORT_S, self, self._report, report)
        self.engine.outputs.clear()

    def _report(self, report: working.ExportFinished) -> None:
        self._step(report)

    def _finish_batch(self) -> None:
        """Report the batch that ends; a crash trap kills the worker."""
        try:
            report, seconds = self.engine.finish_batch()
        except WorkerCrash:
            has_counters = self.simulation.scenario.has_oom_counters
            cause = m.ExitCause.CRASH if has_counters else m.ExitCause.UNEXPLAINED
            self.simulation.kill(self.peer, "a crash trap", cause)
            return
        self._schedule_batch(seconds)
        self._step(report)


class SimConductor(SimProcess):
    """A conductor core."""

    def __init__(self, simulation: Environment, peer: m.Peer) -> None:
        super().__init__(simulation, peer)
        models = {name: simulation.planned_models[name] for name in simulation.shards.models[peer.name]}
        self.core = ConductorCore(peer, LAUNCHER, models, simulation.scenario.conductor_limits)
        own = [simulation.processes.get(name) for name in simulation.shards.processes(peer.name)]
        self.core.failure_detector.expect(worker.peer for worker in own if worker is not None and worker.is_up)
        self.ignored_messages = 0
        """Value of `stale_messages` after the last message."""

    def start(self, peers: list[m.Peer]) -> None:
        """Register with all peers."""
        for peer in peers:
            self.send(peer, m.Register())

    def receive(self, sender: m.Peer, message: m.Message) -> None:
        """Handle a message."""
        is_old = False
        if isinstance(message, m.SeatDone | m.AttemptFailed | m.RetryNeeded) and (
            request := self.core.lifecycle.requests.get(message.rid)
        ):
            is_old = request.attempt != message.attempt
        self._perform(self.core.step(self.simulation.now, MessageReceived(sender, message)))
        self.simulation.checker.on_conductor_step(self, message, is_old=is_old)
        self.simulation.checker.focused.on_conductor_step(self)

    def tick(self) -> None:
        """Let the core check its timeouts, and send the launcher a heartbeat if it watches conductors."""
        self._perform(self.core.step(self.simulation.now, Tick()))
        self.simulation.checker.focused.on_conductor_step(self)
        self.simulation.checker.waiting.on_conductor_tick(self)
        if self.simulation.scenario.has_long_pauses:
            self.send(LAUNCHER, m.Heartbeat())

    def _perform(self, actions: list[SendMessage]) -> None:
        for action in actions:
            self.send(action.to, action.message)
            if isinstance(action.message, m.PeerDead):
                self.mark_peer_dead(action.message.peer)
            elif isinstance(action.message, m.ReleaseAttempt):
                self.simulation.checker.on_attempt_ended(action.message)
            elif isinstance(action.message, m.Drained):
                self.simulation.checker.on_drained(self)
            elif isinstance(action.message, m.RequestFinished):
                self.simulation.checker.focused.executions.on_finished(action.message)
            elif isinstance(action.message, m.StartWalk):
                self.simulation.checker.on_start_walk(self, action.message)
            elif isinstance(action.message, m.StopWorker):
                self.simulation.checker.scaling.on_stop_worker(self, action.message.peer)


class SimFrontend(SimProcess):
    """A front-end core with its clients."""

    def __init__(self, simulation: Environment, peer: m.Peer, group: ActorGroup | None = None) -> None:
        super().__init__(simulation, peer, group)
        conductors = {
            model: simulation.peers[name] for name, models in simulation.shards.models.items() for model in models
        }
        self.core = serving.FrontendCore(peer, conductors, digest)
        self.clients: dict[str, SimClient] = {}

    def start(self, _: list[m.Peer]) -> None:
        """Register with conductor and launcher."""
        for conductor in dict.fromkeys(self.core.conductors.values()):
            self.send(conductor, m.Register())

    def receive(self, sender: m.Peer, message: m.Message) -> None:
        """Handle a message."""
        if isinstance(message, m.PeerDead):
            self.mark_peer_dead(message.peer)
        if isinstance(message, m.ModelStatusReply):
            return
        if isinstance(message, m.InputAccepted) and (client := self.clients.get(message.rid)):
            self.simulation.client_inputs.on_accepted(client, message)
        actions = self.core.step(self.simulation.now, serving.MessageReceived(sender, message))
        if isinstance(message, m.Emit) and (client := self.clients.get(message.rid)):
            self.simulation.checker.check_delivery(
                client, message, sum(isinstance(action, serving.Deliver) for action in actions)
            )
        self._perform(actions)

    def tick(self) -> None:
        """Let the core check its timeouts."""
        self._perform(self.core.step(self.simulation.now, serving.Tick()))

    # ---------------------------------------------------------------- clients
    def submit(self, client: SimClient) -> None:
        """Submit the request of a client."""
        self.clients[client.rid] = client
        request = m.Value(client.request)
        submit = m.Submit(client.rid, client.model, request, client.tenant, client.timeout_s, slo=client.slo)
        self._perform(self.core.step(self.simulation.now, serving.RequestOpened(submit)))

    def disconnect(self, client: SimClient) -> None:
        """Disconnect a client, unless its request has ended."""
        if self.clients.pop(client.rid, None) is not None:
            self.simulation.history.disconnect(client.rid)
            self._perform(self.core.step(self.simulation.now, serving.ClientLeft(client.rid)))

    def send_input(self, client: SimClient, value: int | None) -> None:
        """Send an input of a client, unless its request has ended."""
        if client.rid in self.clients:
            self.simulation.client_inputs.on_input(client, value)
            self._perform(self.core.step(self.simulation.now, serving.InputSent(client.rid, value)))

    def consume_outputs(self, client: SimClient) -> None:
        """A client consumes everything it has received."""
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
        simulation, rid = self.simulation, delivery.rid
        simulation.history.deliver(rid, delivery.kind, delivery.index, digest(delivery.value))
        simulation.checker.focused.executions.on_delivered(rid, delivery.kind, delivery.index, digest(delivery.value))
        simulation.log("deliver", rid, delivery.kind, delivery.index)
        client = self.clients[rid]
        client.delivered[delivery.kind] = delivery.index + 1
        simulation.checker.on_delivered(client, delivery.kind)
        if simulation.now >= client.stalled_until:
            self.consume_outputs(client)

    def _end_request(self, rid: str, end: m.RequestFinished | m.RequestRejected) -> None:
        client = self.clients.pop(rid)
        self.simulation.client_inputs.on_end(client)
        self.simulation.checker.on_end(client, end)


class SimLauncher(SimProcess):
    """The launcher. It never dies; it restarts processes in `Simulation`."""

    def __init__(self, simulation: Environment, peer: m.Peer) -> None:
        super().__init__(simulation, peer)
        self._watch = ConductorWatch()
        self._drained_conductors: set[str] = set()
        self._rolled_versions = dict.fromkeys(simulation.shards.models, 0)
        """By conductor, the version of the last rolling update that has ended."""

    @property
    def is_drained(self) -> bool:
        """Whether every conductor reported that it is drained."""
        return self._drained_conductors == self.simulation.shards.models.keys()

    @property
    def rolled_version(self) -> int:
        """The version of the last rolling update that has ended everywhere."""
        return min(self._rolled_versions.values())

    def broadcast(self, message: m.Message, *conductors: str) -> None:
        """Send a message to those of the named conductors that run."""
        for process in [process for name in conductors if (process := self.simulation.processes.get(name)) is not None]:
            self.send(process.peer, message)
            self.flush()

    def receive(self, sender: m.Peer, message: m.Message) -> None:
        """Handle a message."""
        if sender.name in self.simulation.shards:
            self._watch.on_message(self.simulation.now, sender)
        match message:
            case m.Kill() | m.StartWorker() | m.StopWorker():
                self._on_worker_command(message)
            case m.Drained():
                self._drained_conductors.add(sender.name)
            case m.WeightsRolled() | m.RolloutFailed():
                self._on_rollout_end(sender.name, message)
            case m.Register() if sender.name in self.simulation.shards:
                if self.simulation.fault_injector.is_draining:
                    self.send(sender, m.Drain())  # its predecessor got the message
                if self._rolled_versions[sender.name] < self.simulation.weights_version:
                    self.send(sender, m.RollWeights(self.simulation.weights_version))
            case _:
                pass

    def _on_rollout_end(self, conductor: str, message: m.WeightsRolled | m.RolloutFailed) -> None:
        """Note the end of a rolling update. After one that failed, workers load the old version."""
        if isinstance(message, m.RolloutFailed):
            if message.weights_version == self._rolled_versions[conductor]:
                return
            self.simulation.log("rolled back to version", message.serving_version)
            self.simulation.serving_versions[conductor] = message.serving_version
            self.simulation.worker_processes.on_rolled_back(conductor)
        self._rolled_versions[conductor] = max(self._rolled_versions[conductor], message.weights_version)

    def _on_worker_command(self, message: m.Kill | m.StartWorker | m.StopWorker) -> None:
        match message:
            case m.Kill():
                self.simulation.checker.deaths.on_kill(message.peer, message.reason)
                self.simulation.kill(message.peer, message.reason, m.ExitCause.CRASH)
            case m.StartWorker():
                self.simulation.start_worker(message.worker, message.beside)
            case m.StopWorker():
                self.simulation.stop_worker(message.peer)

    def tick(self) -> None:
        """Replace a conductor that hangs. Conductors send heartbeats only in scenarios with long pauses."""
        if self.simulation.scenario.has_long_pauses and (hung := self._watch.find_hung(self.simulation.now)):
            self.simulation.checker.deaths.on_kill(hung[0], "it hangs")
            self.simulation.kill(hung[0], "it hangs", m.ExitCause.CRASH)

    def mark_peer_dead(self, peer: m.Peer) -> None:
        """Drop links to a dead incarnation."""
        super().mark_peer_dead(peer)
        self._watch.forget(peer)


AnyProcess = SimWorker | SimConductor | SimFrontend
"""The processes that can die."""


def process_stats(process: Any) -> dict[str, int]:
    """Return the counts of what a process holds."""
    return process.core.stats() | {"unacked": process.unacked_frames()}

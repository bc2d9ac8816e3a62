"""A conductor core with simulated workers, driven by hand: deliver messages, advance the clock, check messages."""

from mstar.conductor.core import ConductorCore
from mstar.conductor.limits import ConductorLimits
from mstar.conductor.model import ConductorModel
from mstar.plan.compile import plan
from mstar.plan.placement import parse_placement
from mstar.sim.models import SimRequest, sim_model
from mstar.wire import messages as m
from mstar.wire.active_clock import MAX_STEP_S
from mstar.wire.message import MessageReceived, Tick
from mstar.wire.stats import WorkerLoad

CONDUCTOR = m.Peer("conductor", 0)
LAUNCHER = m.Peer("launcher", 0)
FRONTEND = m.Peer("frontend", 0)
LIMITS = ConductorLimits(scale_down_delay_s=5.0, drain_timeout_s=30.0, heartbeat_timeout_s=1e9)
"""No heartbeat timeout: simulated workers are silent."""


def planned(name, place):
    """A simulator model with a placement."""
    model = sim_model(name)
    return ConductorModel.from_plans(model, plan(model.graphs(), parse_placement({"place": place}, "a test")))


def worker_load(queued_batches=0, utilization=0.0, deadline_misses=0):
    return WorkerLoad(utilization, {}, queued_batches, deadline_misses)


class StubLauncher:
    """Starts and stops the workers of a deployment as its conductor commands."""

    def __init__(self, deployment):
        self.incarnations = {}
        self._deployment = deployment

    def start_incarnation(self, name):
        """Register the next incarnation of a worker."""
        self.incarnations[name] = self.incarnations.get(name, -1) + 1
        self._deployment.worker_up(name, self.incarnations[name])

    def stop_workers(self):
        """Let the workers exit that were stopped (`StopWorker`); return their names."""
        peers = [stop.peer for stop in self._deployment.sent_of_kind(m.StopWorker)]
        for peer in peers:
            self._deployment.exit_process(peer, "stopped")
        return [peer.name for peer in peers]

    def apply_commands(self):
        """Stop and start workers; return the names of both."""
        stopped = self.stop_workers()
        started = [start.worker for start in self._deployment.sent_of_kind(m.StartWorker)]
        for name in started:
            if name not in self._deployment.workers:
                self.start_incarnation(name)
        return stopped, started

    def stop_idle_workers(self, seconds=6.0):
        """Advance the clock and stop workers; return the sorted names of those that stopped."""
        stopped = []
        for _ in range(round(seconds)):
            self._deployment.advance_time(1.0)
            stopped += self.stop_workers()
        return sorted(stopped)


class Deployment:
    """A conductor of some models, each with a placement. Its workers exist only as messages."""

    def __init__(self, places, limits=LIMITS, conductor=CONDUCTOR):
        self.model = next(iter(places))
        models = {name: planned(name, place) for name, place in places.items()}
        self.core = ConductorCore(conductor, LAUNCHER, models, limits)
        self._now = 0.0
        self.sent = []
        self.launcher = StubLauncher(self)

    @property
    def now(self):
        return self._now

    @now.setter
    def now(self, until):
        """Let time pass while the conductor runs; a jump would be a pause of the conductor."""
        while self._now < until:
            self._now = min(until, self._now + MAX_STEP_S)
            self.core.clock.advance(self._now)

    @property
    def workers(self):
        return self.core.membership.workers

    @property
    def requests(self):
        return self.core.lifecycle.requests

    # ---------------------------------------------------------------- events
    def deliver(self, sender, message):
        sent = self.core.step(self.now, MessageReceived(sender, message))
        self.sent += [(send.to, send.message) for send in sent]

    def tick(self, seconds=0.0):
        """Advance the clock at once and tick."""
        self.now += seconds
        self.sent += [(send.to, send.message) for send in self.core.step(self.now, Tick())]

    def advance_time(self, seconds, loads=()):
        """Advance the clock in steps of 0.1 s; workers report these loads in each step."""
        until = self.now + seconds
        while self.now < until:
            self.now += 0.1
            for name, load in dict(loads).items():
                if name in self.workers:
                    self.deliver(self.workers[name].peer, m.Heartbeat(0.0, load))
            self.tick()

    def worker_up(self, name, incarnation=0, weights_version=0):
        self.deliver(m.Peer(name, incarnation), m.Register(weights_version=weights_version))

    def start_all(self):
        for name in sorted({name for model in self.core.models.values() for name in model.plans.workers}):
            self.launcher.start_incarnation(name)
        return self

    def exit_process(self, peer, reason="killed", suspects=(), cause=m.ExitCause.EXTERNAL):
        self.deliver(LAUNCHER, m.ProcessExited(peer, reason, list(suspects), cause=cause))

    def submit(self, rid, **fields):
        self.deliver(FRONTEND, m.Submit(rid, self.model, m.Value(SimRequest(1, 3)), **fields))

    def finish_walk(self, rid, outputs=None, states=None):
        """Have all seats of the running walk report that they are done."""
        request = self.requests[rid]
        run = request.walk_run
        for seat, peer in enumerate(run.seats):
            done = m.SeatDone(rid, request.attempt, run.number, seat, outputs or {}, states or {}, {"Text": 3})
            self.deliver(peer, done)

    # ---------------------------------------------------------------- messages sent
    def sent_of_kind(self, kind):
        """Return the messages of a kind that were sent since the last call, and remove them."""
        messages = [message for _, message in self.sent if isinstance(message, kind)]
        self.sent = [(to, message) for to, message in self.sent if not isinstance(message, kind)]
        return messages

    def sent_to(self, peer):
        """Return and remove all messages to a peer."""
        messages = [message for to, message in self.sent if to == peer]
        self.sent = [(to, message) for to, message in self.sent if to != peer]
        return messages

    def started_walks(self):
        """By request, the worker of the first seat of each walk started since the last call."""
        return {start.rid: start.seats[0] for start in self.sent_of_kind(m.StartWalk)}

    def started_workers(self):
        return [start.worker for start in self.sent_of_kind(m.StartWorker)]

"""A worker's core: told what happened, it says what to do. No IO, no clock, no threads, no tensors.

Here are messages, batches and states; how a walk begins, goes on and ends at this worker is in `visits`. What a request
does wrong ends that request only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, assert_never, cast

from mstar.engine.jobs import Done as JobDone
from mstar.engine.jobs import Failed as JobFailed
from mstar.engine.jobs import Job
from mstar.failpoints import hit
from mstar.plan.frame import Ready
from mstar.plan.tables import Plans
from mstar.wire import messages as m
from mstar.worker import visits
from mstar.worker.batches import Limits, Waiting
from mstar.worker.commands import (
    Action,
    Batch,
    Cargo,
    Event,
    Exported,
    Fork,
    Free,
    Load,
    Make,
    Ran,
    Received,
    Send,
    StateRef,
    Tick,
)
from mstar.worker.costs import Key
from mstar.worker.early import Early
from mstar.worker.load import Gauge
from mstar.worker.order import Waiter
from mstar.worker.tally import Tally
from mstar.worker.tours import Guest, Tour

BEAT = 0.2
"""Seconds between two signs of life."""
LEASE = 1.5
"""Who has not heard of its conductor for so long starts nothing: it may have been given up, and its work to others."""
QUEUED = 2
"""How many batches the engine has at most: one runs, one waits."""


class WorkerCore:
    """The state of one worker. `components` are those it has loaded, each as "model.component"."""

    def __init__(
        self, me: m.Peer, conductor: m.Peer, plans: Mapping[str, Plans], components: tuple[str, ...], limits: Limits
    ) -> None:
        self.me = me
        self.conductor = conductor
        self.edition = 0
        """Which edition of the weights it has loaded."""
        self.plans = plans
        self.guests: dict[str, Guest] = {}
        self.waiting = Waiting(limits)
        self.early = Early()
        self.gauge = Gauge(self.waiting.seconds)
        self.tally = Tally(plans)
        self.ready: list[Ready] = []
        """Calls that became ready in this step."""
        self.out: list[Action] = []
        """What is to be done after this step."""
        self.exports: dict[int, visits.Leaving] = {}
        """States that are made ready to go, by ticket."""
        self.late = 0
        """How many messages spoke of what is over."""
        self._components = components
        self._dropped: list[int] = []
        self._owners: dict[int, Tour | None] = {}
        self._running: dict[int, tuple[Key, list[Waiter], float]] = {}
        self._numbers = 0
        self._heard = self._beaten = float("-inf")

    def step(self, now: float, event: Event) -> list[Action]:
        """Take note of an event; what to do now, in order."""
        self.tally.now = now
        match event:
            case Received():
                self._receive(now, event.sender, event.message)
            case Ran():
                self._ran(event)
            case Exported():
                visits.depart(self, event)
            case Tick():
                self._tick(now)
            case _:
                assert_never(event)
        self._go_on(now)
        out, self.out = self.out, []
        return out

    def stock(self) -> dict[str, int]:
        """What it holds, counted."""
        return {
            "requests": len(self.guests),
            "waiting": len(self.waiting),
            "running": len(self._running),
            "states": len(self._owners),
            "exports": len(self.exports),
            "early": len(self.early),
        }

    def running(self) -> Iterator[Waiter]:
        """The calls that the engine has."""
        return (waiter for _, waiters, _ in self._running.values() for waiter in waiters)

    # ---------------------------------------------------------------- messages
    def _receive(self, now: float, sender: m.Peer, message: m.Message) -> None:
        if sender.name == self.conductor.name:
            if sender.incarnation > self.conductor.incarnation:
                self._change_conductor(sender)
            self._heard = now
        match message:
            case m.Start():
                visits.begin(self, message)
            case m.Notes() | m.StateInput():
                self._hear(now, message)
            case m.Credit():
                if (guest := self.guests.get(message.rid)) is not None and guest.attempt == message.attempt:
                    guest.taken[message.kind] = max(message.taken, guest.taken.get(message.kind, 0))
            case m.End():
                visits.end(self, message)
            case m.ForkState() | m.FreeStates() | m.SendState():
                self._keep(message)
            case m.Hello():
                self.out.append(Send(sender, m.Hello(self._components, self.edition)))
            case _:
                pass  # beats and news of others: that they came is all there is to them

    def _change_conductor(self, conductor: m.Peer) -> None:
        """The old one is gone, and the new one knows nothing of what runs here: it will be started anew."""
        self.conductor = conductor
        for guest in list(self.guests.values()):
            visits.drop(self, guest)

    def _hear(self, now: float, message: m.Notes | m.StateInput) -> None:
        guest = self.guests.get(message.rid)
        tour = None if guest is None else guest.tour
        told = (message.attempt, message.walk)
        now_at = (-1, -1) if guest is None else (guest.attempt, -1 if tour is None else tour.start.walk)
        if tour is not None and told == now_at:
            visits.hear(self, tour, message)
        elif told < now_at or not self.early.keep(now, message):
            self.late += 1

    def _keep(self, message: m.ForkState | m.FreeStates | m.SendState) -> None:
        """The conductor speaks of states that a route holds."""
        hit("worker.keep")
        guest = self.guests.get(message.rid)
        if guest is None or guest.attempt > message.attempt:
            self.late += 1
        elif isinstance(message, m.FreeStates):
            for number in message.states:
                guest.kept.pop(number, None)
        elif message.state not in guest.kept:
            self.say(m.Lost(message.rid, message.attempt, f"{self.me} does not hold state {message.state}"))
        elif isinstance(message, m.ForkState):
            guest.kept[message.copy] = self.fork(None, guest.kept[message.state])
        else:
            visits.send_state(self, guest, message)

    def _tick(self, now: float) -> None:
        for rid, attempt, _ in self.early.expire(now):
            self.say(m.Lost(rid, attempt, "something came for a walk that was never begun here"))
        if now - self._beaten >= BEAT:
            self._beaten = now
            self.tally.watch.expire(now)
            since = min((since for _, _, since in self._running.values()), default=now)
            self.say(m.Beat(now - since, self.gauge.load(self.guests.values(), self.waiting.batches())))

    def say(self, message: m.Message) -> None:
        """Tell the conductor."""
        self.out.append(Send(self.conductor, message))

    # ---------------------------------------------------------------- batches
    def _go_on(self, now: float) -> None:
        """Queue batches, and free what nobody refers to any more."""
        hit("worker.go_on")
        if self.ready:
            self.waiting.add(now, self.ready)
            self.ready.clear()
        while self.waiting and len(self._running) < QUEUED and now - self._heard <= LEASE:
            running = next((key for key, _, _ in self._running.values()), None)
            chosen = self.waiting.choose(now, running, self._elsewhere)
            if chosen is None:
                break
            self._queue(now, *chosen)
        if self._dropped:
            freed = tuple(self._dropped)
            self._dropped.clear()
            for number in freed:
                self._owners.pop(number, None)
            self.out.append(Free(freed))

    @property
    def _elsewhere(self) -> int:
        """How many of those that are here are at other workers too."""
        if all(len(plans.workers) == 1 for plans in self.plans.values()):
            return 0
        tours = (guest.tour for guest in self.guests.values() if guest.tour is not None)
        return sum(any(peer != self.me for peer in tour.start.seats) for tour in tours)

    def _queue(self, now: float, key: Key, chosen: list[Waiter]) -> None:
        hit("worker.queue")
        for waiter in chosen:
            waiter.tour.in_flight += 1
            if waiter.job is None:
                waiter.job = Job(waiter.frame.arguments(waiter.instruction))
        jobs = [cast("Job", waiter.job) for waiter in chosen]
        tours = {waiter.tour.number: waiter.tour for waiter in chosen}.values()
        suspects = [m.Suspect(tour.guest.rid, tour.guest.attempt, tour.calls[key[1]]) for tour in tours]
        number = self.next()
        self._running[number] = (key, chosen, now)
        name, cost = self.plans[key[0]].keys[key[1]], self.waiting.costs.usual(key)
        self.out.append(Batch(number, key[0], name, jobs, suspects, cost, self.waiting.least_slack()))

    def _ran(self, event: Ran) -> None:
        """A batch is back: each of its requests goes on by itself."""
        hit("worker.ran")
        key, waiters, _ = self._running.pop(event.number)
        self.tally.ran(key, waiters, event.results, event.seconds)
        self.waiting.learn(key, waiters, event.seconds)
        for number in event.evicted:
            if (owner := self._owners.get(number)) is not None:
                owner.is_parked = True
        for waiter, result in zip(waiters, event.results, strict=True):
            tour = waiter.tour
            tour.in_flight -= 1
            if tour.is_over:
                visits.release(self, tour)
            elif isinstance(result, JobDone):
                waiter.job = None
                tour.calls[key[1]] += 1
                self.gauge.called(tour, key[1])
                visits.complete(self, waiter, result.values)
            elif isinstance(result, JobFailed):
                visits.fail(self, tour, result.error)
            else:
                self.waiting.put_back(key, waiter)

    def unpark(self) -> None:
        """Somebody is done, and their memory free: the first of those that had to make room may go on."""
        tours = [guest.tour for guest in self.guests.values() if guest.tour is not None]
        parked = [tour for tour in tours if tour.is_parked and not tour.is_over]
        if parked:
            min(parked, key=lambda tour: tour.number).is_parked = False

    # ---------------------------------------------------------------- states
    def next(self) -> int:
        """A number that was not used before."""
        self._numbers += 1
        return self._numbers

    def _ref(self, owner: Tour | None) -> StateRef:
        ref = StateRef(self.next(), self._dropped)
        self._owners[ref.number] = owner
        return ref

    def new_state(self, tour: Tour, component: str, kind: str) -> StateRef:
        """A fresh state."""
        ref = self._ref(tour)
        self.out.append(Make(ref.number, tour.start.model, component, kind, tour.start.tenant))
        return ref

    def fork(self, tour: Tour | None, state: StateRef) -> StateRef:
        """A copy of a state."""
        ref = self._ref(tour)
        self.out.append(Fork(state.number, ref.number))
        return ref

    def load(self, tour: Tour, cargo: Any) -> StateRef:
        """A state that another worker sent."""
        ref = self._ref(tour)
        self.out.append(Load(ref.number, tour.start.model, cast("Cargo", cargo)))
        return ref

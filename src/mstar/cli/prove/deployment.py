"""Deployment: the subject in real processes, with a client that compares every output."""

from __future__ import annotations

import json
import os
import queue
import signal
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Self

from mstar.cli.prove.refuted import Refuted
from mstar.cli.prove.subject import NAME, Subject
from mstar.frontend.actor import FrontendActor, RequestStream
from mstar.launch.local_launcher import LocalLauncher
from mstar.testing.parity import first_difference
from mstar.walk.emissions import KINDS, Emission
from mstar.walk.model import Outcome
from mstar.wire.messages import Peer, RequestFinished

TIMEOUT_S = 300.0
"""Maximum seconds between two outputs of a request."""
IDLE_TIMEOUT_S = 20.0
"""Maximum seconds until the memory of ended requests is free."""
RESTART_TIMEOUT_S = 120.0
"""Maximum seconds until a killed worker is back."""
_REQUEST_COUNTS = ("requests", "waiting", "running", "states", "exports", "engine_states")
"""Counts of a process that are 0 when no request is in progress."""


def placement(subject: Subject, workers: Sequence[Sequence[str]]) -> str:
    """A placement file with these workers for each component."""
    rules = [f"{json.dumps(name)} = {json.dumps(own)}" for name, own in zip(subject.components, workers, strict=True)]
    return "\n".join(["[place]", *rules])


def placement_by_walk(subject: Subject) -> str:
    """A placement file with a worker of its own for each walk: states move between walks."""
    sections: list[str] = []
    for number, (name, components) in enumerate(subject.components_by_walk.items()):
        rules = [f"{json.dumps(component)} = {json.dumps(f'w{number}')}" for component in components]
        sections += [f"[walks.{json.dumps(name)}]", *rules]
    return "\n".join(sections)


class Deployment:
    """Launcher, conductor and workers on this host, and a front end in this process."""

    def __init__(self, subject: Subject, placement_text: str) -> None:
        self._subject = subject
        target = os.path.abspath(subject.target) if subject.target.endswith(".py") else subject.target
        self._launcher = LocalLauncher({NAME: target}, {NAME: placement_text}, standby=False)

    def __enter__(self) -> Self:
        launcher = self._launcher.__enter__()
        self._frontend = FrontendActor(launcher.actor_loop, Peer("prove", 0), launcher.conductors)
        launcher.add_frontend(self._frontend)
        return self

    def __exit__(self, *exception: object) -> None:
        self._launcher.__exit__(*exception)

    @property
    def workers(self) -> list[str]:
        """Names of the workers."""
        conductors = {peer.worker for peer in self._launcher.conductors.values()}
        return sorted(peer.worker for peer in self._launcher.peers() if peer.worker not in conductors)

    def open(self, number: int) -> RequestStream:
        """Submit a request."""
        return self._frontend.open_stream(NAME, self._subject.requests[number], timeout_s=TIMEOUT_S)

    def check(self, number: int, stream: RequestStream, first: Sequence[Emission] = (), *, fix: str) -> None:
        """Refute the model unless the outputs of a request are those of its run in this process.

        `first` are the outputs that were read before.
        """
        emissions = [*first]
        try:
            emissions += (KINDS[one.kind](one.value, **dict(one.clock)) for one in stream.events(TIMEOUT_S))
        except queue.Empty:
            raise Refuted(f"request {number} had no output for {TIMEOUT_S:g} s", fix) from None
        end = stream.end
        if not isinstance(end, RequestFinished) or end.status != "ok":
            problem, _, own_fix = str(getattr(end, "error_message", end)).partition("\n  fix: ")
            raise Refuted(f"request {number} failed: {problem}", own_fix or fix)
        expected = self._subject.expected[number]
        if (difference := first_difference(_as_sent(expected), Outcome(emissions, stream.result))) is not None:
            raise Refuted(f"request {number} differs: {difference}", fix)

    def kill(self, worker: str) -> int:
        """Kill a worker as a crash does; returns its process id."""
        pid = self._launcher.pid(worker)
        os.kill(pid, signal.SIGKILL)
        return pid

    def wait_restarted(self, worker: str, killed_pid: int, fix: str) -> None:
        """Wait until a killed worker is up again."""
        deadline = time.monotonic() + RESTART_TIMEOUT_S
        while time.monotonic() < deadline:
            is_new = self._launcher.stats()["processes"].get(worker, killed_pid) != killed_pid
            if is_new and {*self._launcher.health().values()} == {"up"}:
                return
            time.sleep(0.05)
        raise Refuted(f"worker {worker} did not restart: {self._launcher.health()}", fix)

    def require_idle(self, fix: str) -> None:
        """Refute the model unless all memory of requests becomes free."""
        deadline = time.monotonic() + IDLE_TIMEOUT_S
        while left := self._counts_left():
            if time.monotonic() > deadline:
                raise Refuted(f"memory of ended requests is not free: {', '.join(left)}", fix)
            time.sleep(0.05)

    def _counts_left(self) -> list[str]:
        left: list[str] = []
        for peer in self._launcher.peers():
            counts = self._frontend.query_counts(peer).result(IDLE_TIMEOUT_S)
            names = [name for name in counts if name in _REQUEST_COUNTS or name.endswith(".pages_used")]
            left += [f"{name} of {peer.worker} is {counts[name]}" for name in names if counts[name]]
        return left


def _as_sent(outcome: Outcome) -> Outcome:
    """An outcome with its emissions in the order of a client, which has an order within each kind only."""
    by_kind: defaultdict[str, list[Emission]] = defaultdict(list)
    for emission in outcome.emissions:
        by_kind[type(emission).__name__].append(emission)
    return Outcome([one for own in by_kind.values() for one in own], outcome.result)

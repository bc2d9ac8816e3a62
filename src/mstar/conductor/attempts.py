"""Attempts of requests: their numbers, the retry budget, and which attempts workers have not released yet.

A released attempt still occupies workers until each of them confirms with `AttemptReleased`. Admission counts it as
running until then.
"""

from __future__ import annotations

from itertools import count

from mstar.conductor.limits import ConductorLimits
from mstar.conductor.membership import Membership, WorkerLost
from mstar.conductor.outbox import Outbox
from mstar.conductor.requests import Request
from mstar.conductor.worker import Worker
from mstar.failpoints import hit
from mstar.wire import messages as m

ATTEMPTS_PER_INCARNATION = 1 << 40
"""Maximum attempts under one incarnation of a conductor. Later incarnations use higher numbers."""


class Attempts:
    """Attempt numbers and unreleased attempts of one conductor."""

    def __init__(self, conductor: m.Peer, limits: ConductorLimits, membership: Membership, outbox: Outbox) -> None:
        self.first = conductor.incarnation * ATTEMPTS_PER_INCARNATION
        """Lower numbers belong to earlier incarnations of the conductor."""
        self._max_retries = limits.max_retries
        self._membership = membership
        self._outbox = outbox
        self._numbers = count(self.first)
        self._unreleased: dict[tuple[str, int], set[m.Peer]] = {}
        """By request and attempt, the workers that have not confirmed."""
        self._unreleased_at: dict[m.Peer, set[tuple[str, int]]] = {}
        """By worker, what it has not confirmed."""

    def __len__(self) -> int:
        return len(self._unreleased)

    def next(self) -> int:
        """Return a number that no other attempt has, not even of a request submitted again after its end."""
        return next(self._numbers)

    def count_retry(self, request: Request) -> bool:
        """Count a retry; return whether the request is within its retry budget."""
        request.retries += 1
        return request.retries <= self._max_retries

    def release(self, request: Request, *, keeps_states: bool = False, can_wait: bool = False) -> None:
        """Have workers drop the current attempt of a request, and its states unless `keeps_states`.

        With `can_wait`, they confirm it with their next message.
        """
        hit("conductor.release_attempt")
        request.lookaheads.clear()  # workers drop them with the attempt
        peers = {peer for peer in request.workers if self._membership.is_alive(peer)}
        for peer in sorted(peers, key=lambda peer: peer.name):
            self._outbox.send(peer, m.ReleaseAttempt(request.rid, request.attempt, keeps_states, can_wait))
            if not keeps_states:
                self._membership.workers[peer.name].forget(request.rid)
        # An unresponsive worker confirms when it is back. Until then others must not wait for it.
        if peers := {peer for peer in peers if self._membership.is_responsive(peer)}:
            key = request.rid, request.attempt
            self._unreleased[key] = peers
            for peer in peers:
                self._unreleased_at.setdefault(peer, set()).add(key)
        if not keeps_states:
            request.workers = set()

    def on_released(self, rid: str, attempt: int, peer: m.Peer) -> None:
        """Handle the confirmation of one worker."""
        hit("conductor.on_released")
        if peer in self._unreleased.get((rid, attempt), ()):
            self._confirm((rid, attempt), peer)
            self._unreleased_at[peer].discard((rid, attempt))
            if not self._unreleased_at[peer]:
                del self._unreleased_at[peer]

    def on_worker_lost(self, _: float, lost: WorkerLost) -> None:
        """Expect no confirmation from a lost worker."""
        self._discard(lost.peer)

    def on_worker_unresponsive(self, _: float, worker: Worker) -> None:
        """Await no confirmation from an unresponsive worker."""
        self._discard(worker.peer)

    def _discard(self, peer: m.Peer) -> None:
        for key in self._unreleased_at.pop(peer, ()):
            self._confirm(key, peer)

    def _confirm(self, key: tuple[str, int], peer: m.Peer) -> None:
        peers = self._unreleased[key]
        peers.discard(peer)
        if not peers:
            del self._unreleased[key]

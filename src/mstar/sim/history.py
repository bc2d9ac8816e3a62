"""Client-visible history of a run and its invariants: exactly-once, in-order delivery, one correct end per request.

Used for simulated and real runs. Each submission, delivery, disconnect and end is recorded in the order it happened,
and a violation raises at once. Knows neither processes nor cores.

| invariant | meaning |
|---|---|
| I1 | outputs arrive once, in order, with the expected value |
| I2 | a request ends once, and nothing is delivered after its end |
| I3 | a request that ends ok delivered everything |
| I4 | a request is not rejected after it was admitted |
| I8 | nothing is delivered after the client disconnected |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

REFUSED = "refused"
"""Status of a rejected request."""


class Violation(Exception):
    """An invariant is violated."""


@dataclass(eq=False, slots=True)
class ClientView:
    """One request as its client sees it."""

    expected_streams: Mapping[str, Sequence[bytes]] | None
    """By kind, the digests of the expected outputs; None if each execution has other ones."""
    expected_result: bytes
    """Digest of the expected result of the route."""
    submitted_at: float
    delivered: dict[str, int] = field(default_factory=dict[str, int])
    """Number of delivered outputs by kind."""
    status: str = ""
    """Final status; empty while it runs."""
    ended_at: float = 0.0
    has_disconnected: bool = False
    is_admitted: bool = False
    """Whether it was admitted, as far as known: it must not be rejected later."""


class History:
    """The requests of one run by id."""

    def __init__(self) -> None:
        self.requests: dict[str, ClientView] = {}

    def submit(self, now: float, rid: str, streams: Mapping[str, Sequence[bytes]] | None, result: bytes) -> ClientView:
        """A client submits a request with these expected outputs."""
        view = self.requests[rid] = ClientView(streams, result, now)
        return view

    def deliver(self, rid: str, kind: str, index: int, digest: bytes) -> None:
        """A client receives an output."""
        view = self.requests[rid]
        if view.status:
            raise Violation(f"I2 {rid} received {kind} {index} after it ended {view.status}")
        if view.has_disconnected:
            raise Violation(f"I8 {rid} received {kind} {index} after its client left")
        before = view.delivered.get(kind, 0)
        if index != before:
            raise Violation(f"I1 {rid} received {kind} {index} after {before} of them")
        if view.expected_streams is not None:
            expected_digests = view.expected_streams.get(kind, ())
            if index >= len(expected_digests) or digest != expected_digests[index]:
                expected = expected_digests[index].decode() if index < len(expected_digests) else "nothing"
                raise Violation(f"I1 {rid} received {kind} {index} = {digest.decode()}, expected {expected}")
        view.delivered[kind] = before + 1
        view.is_admitted = True

    def disconnect(self, rid: str) -> None:
        """A client disconnects."""
        self.requests[rid].has_disconnected = True

    def end(self, now: float, rid: str, status: str, result: bytes) -> None:
        """A client receives the final status."""
        view = self.requests[rid]
        if view.status:
            raise Violation(f"I2 {rid} ended {status} after it ended {view.status}")
        if view.has_disconnected:
            raise Violation(f"I8 {rid} ended {status} after its client left")
        if status == REFUSED and view.is_admitted:
            raise Violation(f"I4 {rid} was rejected after it was admitted")
        if status == "ok" and view.expected_streams is not None:
            counts = {kind: len(digests) for kind, digests in view.expected_streams.items()}
            if counts != view.delivered or result != view.expected_result:
                received = f"{view.delivered} and {result.decode()}"
                expected = f"{counts} and {view.expected_result.decode()}"
                raise Violation(f"I3 {rid} ended ok with {received}, expected {expected}")
        view.status, view.ended_at = status, now

    def pending_requests(self) -> list[str]:
        """Return the requests that have neither ended nor lost their client."""
        return [rid for rid, view in self.requests.items() if not view.status and not view.has_disconnected]

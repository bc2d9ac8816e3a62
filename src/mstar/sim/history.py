"""What clients have seen, and whether they may have seen it. Simulated and real runs are judged by this alone.

A history is told of each submission, delivery, departure and end, in the order in which they happened, and says at once
what is wrong. It knows neither processes nor cores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

REFUSED = "refused"
"""The status of a request that was not taken on."""


class Violation(Exception):
    """Something happened that must never happen."""


@dataclass(eq=False, slots=True)
class ClientView:
    """One request as its client has seen it."""

    expected_streams: Mapping[str, Sequence[bytes]]
    """What it should give: a digest for each emission of each kind."""
    expected_result: bytes
    """A digest of what its route should return."""
    submitted_at: float
    delivered: dict[str, int] = field(default_factory=dict[str, int])
    """How many emissions of each kind were delivered."""
    status: str = ""
    """How it ended."""
    ended_at: float = 0.0
    has_disconnected: bool = False
    is_admitted: bool = False
    """Something of it was delivered, or whoever keeps this history knows that it was taken on."""


class History:
    """What the clients of one run have seen, by request."""

    def __init__(self) -> None:
        self.requests: dict[str, ClientView] = {}

    def submit(self, now: float, rid: str, streams: Mapping[str, Sequence[bytes]], result: bytes) -> ClientView:
        """A client asks for something that should give this."""
        seen = self.requests[rid] = ClientView(streams, result, now)
        return seen

    def deliver(self, rid: str, kind: str, index: int, digest: bytes) -> None:
        """A client was given an emission."""
        seen = self.requests[rid]
        if seen.status:
            raise Violation(f"I2 {rid} was given {kind} {index} after it ended {seen.status}")
        if seen.has_disconnected:
            raise Violation(f"I8 {rid} was given {kind} {index} after its client left")
        before = seen.delivered.get(kind, 0)
        if index != before:
            raise Violation(f"I1 {rid} was given {kind} {index} after {before} of them")
        want = seen.expected_streams.get(kind, ())
        if index >= len(want) or digest != want[index]:
            wanted = want[index].decode() if index < len(want) else "nothing"
            raise Violation(f"I1 {rid} was given {kind} {index} = {digest.decode()}, not {wanted}")
        seen.delivered[kind] = before + 1
        seen.is_admitted = True

    def disconnect(self, rid: str) -> None:
        """A client is gone."""
        self.requests[rid].has_disconnected = True

    def end(self, now: float, rid: str, status: str, result: bytes) -> None:
        """A client was told how its request has ended."""
        seen = self.requests[rid]
        if seen.status:
            raise Violation(f"I2 {rid} ended {status} after it ended {seen.status}")
        if seen.has_disconnected:
            raise Violation(f"I8 {rid} ended {status} after its client left")
        if status == REFUSED and seen.is_admitted:
            raise Violation(f"I4 {rid} was refused after it was taken on")
        if status == "ok":
            want = {kind: len(digests) for kind, digests in seen.expected_streams.items()}
            if want != seen.delivered or result != seen.expected_result:
                got = f"{seen.delivered} and {result.decode()}, not {want} and {seen.expected_result.decode()}"
                raise Violation(f"I3 {rid} ended ok with {got}")
        seen.status, seen.ended_at = status, now

    def pending_requests(self) -> list[str]:
        """Requests whose clients still wait."""
        return [rid for rid, seen in self.requests.items() if not seen.status and not seen.has_disconnected]

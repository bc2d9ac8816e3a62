"""Keys: who may come in, and how much each may ask for. Keys are kept as digests, and compared in constant time.

How a key reaches the server, and what a refused client is told, is decided by others.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Allowance:
    """What each key may ask for."""

    a_second: float = 1000.0
    """How many requests, on average."""
    at_once: int = 16_384
    """How many requests at the same time; a burst may be as large."""


class Holder:
    """Who holds one key: its name in logs, and what it has asked for lately."""

    def __init__(self, name: str, allowance: Allowance) -> None:
        self.name = name
        """A few digits of the key's digest."""
        self.live = 0
        self._allowance = allowance
        self._tokens = float(allowance.at_once)
        self._counted = float("-inf")

    def wait(self, now: float) -> float:
        """For how many seconds it may not begin another request; if 0, one is taken off its account."""
        if self.live >= self._allowance.at_once:
            return 1.0
        rate = self._allowance.a_second
        self._tokens = min(float(self._allowance.at_once), self._tokens + (now - self._counted) * rate)
        self._counted = now
        if self._tokens < 1:
            return (1 - self._tokens) / rate
        self._tokens -= 1
        return 0.0


class Keys:
    """The keys of a server. Without any, everybody may come in, and shares one allowance."""

    def __init__(self, keys: Iterable[str] = (), allowance: Allowance | None = None) -> None:
        self._allowance = allowance or Allowance()
        digests = [hashlib.sha256(key.encode()).digest() for key in keys]
        self._holders = {digest: Holder(digest.hex()[:8], self._allowance) for digest in digests}
        self._everybody = None if digests else Holder("", self._allowance)

    def holder(self, authorization: str) -> Holder | None:
        """Who sent this header, or None if nobody that is known."""
        if self._everybody is not None:
            return self._everybody
        scheme, _, key = authorization.partition(" ")
        shown = hashlib.sha256(key.strip().encode()).digest()
        found = None
        for digest, holder in self._holders.items():  # all of them, so that the time says nothing
            if hmac.compare_digest(digest, shown):
                found = holder
        return found if scheme.lower() in ("bearer", "api-key") else None

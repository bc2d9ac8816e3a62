"""Keys: who may come in, how much each may ask for, and what each is promised.

Keys are kept as digests, and compared in constant time. How a key reaches the server, and what a refused client is
told, is decided by others.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping

from mstar.config import Allowance
from mstar.wire.pace import Pace

__all__ = ["Allowance", "Holder", "Keys", "digest_of"]


def digest_of(key: str) -> bytes:
    """What is kept of a key."""
    return hashlib.sha256(key.encode()).digest()


class Holder:
    """Who holds one key: its name in logs, what it is promised, and what it has asked for lately."""

    def __init__(self, name: str, allowance: Allowance, pace: Pace | None = None) -> None:
        self.name = name
        """What the operator calls it, or a few digits of the key's digest."""
        self.pace = pace or Pace()
        """What is promised for a request that says nothing of it."""
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
    """The keys of a server; `named` are those whose holders have a name, by digest. Without any, all may come in."""

    def __init__(
        self,
        keys: Iterable[str] = (),
        allowance: Allowance | None = None,
        named: Mapping[bytes, Holder] | None = None,
        pace: Pace | None = None,
    ) -> None:
        allowance = allowance or Allowance()
        digests = map(digest_of, keys)
        self._holders = {digest: Holder(digest.hex()[:8], allowance, pace) for digest in digests} | dict(named or {})
        self._everybody = None if self._holders else Holder("", allowance, pace)

    @property
    def are_needed(self) -> bool:
        """Whether nobody comes in without one."""
        return self._everybody is None

    def holder(self, authorization: str) -> Holder | None:
        """Who sent this header, or None if nobody that is known."""
        if self._everybody is not None:
            return self._everybody
        scheme, _, key = authorization.partition(" ")
        shown = digest_of(key.strip())
        found = None
        for digest, holder in self._holders.items():  # all of them, so that the time says nothing
            if hmac.compare_digest(digest, shown):
                found = holder
        return found if scheme.lower() in ("bearer", "api-key") else None

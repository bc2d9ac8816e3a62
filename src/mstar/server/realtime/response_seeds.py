"""Random seeds of the responses of a session: one seed and a count, so that an imported session continues them."""

from __future__ import annotations

import hashlib
import secrets


class ResponseSeeds:
    """Seeds of the responses of one session that are sampled. Greedy ones need none: equal text then sounds equal."""

    def __init__(self) -> None:
        self.seed = secrets.randbits(62)
        self.count = 0
        """Seeds drawn so far."""

    def next(self) -> int:
        """A new seed."""
        self.count += 1
        digest = hashlib.blake2b(f"{self.seed}/{self.count}".encode(), digest_size=8).digest()
        return int.from_bytes(digest) >> 2

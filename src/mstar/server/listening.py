"""What a client says in a call until it is made into an item, and who notices when they begin and when they are done.

Moments are milliseconds since the call began to listen. Nothing is sent here.
"""

from __future__ import annotations

from dataclasses import replace

from mstar.media.ears import Ears, Heard
from mstar.server.conversation import PCM_MS
from mstar.server.refusals import Refusal
from mstar.server.session import ServerVad

LONGEST_MS = 600_000
"""So much sound may wait to be made into an item."""
_LATE_MS = 100
"""So long after somebody began to speak they are noticed at the latest."""


class Listening:
    """The sound of one client that waits."""

    def __init__(self, hears: ServerVad | None) -> None:
        self._waiting = bytearray()
        self._forgotten = 0
        """How many bytes came before those that wait."""
        self.turn_to(hears)

    def turn_to(self, hears: ServerVad | None) -> None:
        """Listen anew, from now on in this way; without one, nobody is noticed."""
        self._hears = hears
        self._ears = hears and Ears(hears.threshold, hears.silence_duration_ms)
        self._since_ms = self.now_ms

    @property
    def now_ms(self) -> int:
        """The moment until which it has heard."""
        return (self._forgotten + len(self._waiting)) // PCM_MS

    @property
    def start_ms(self) -> int:
        """The moment from which on it has not forgotten."""
        return self._forgotten // PCM_MS

    def append(self, pcm: bytes) -> list[Heard]:
        """More sound; who has begun, and who is done. Raises Refusal if too much waits."""
        if len(self._waiting) + len(pcm) > LONGEST_MS * PCM_MS:
            raise Refusal(400, "buffer_full", f"{LONGEST_MS} ms of sound wait to be committed; commit or clear them")
        self._waiting += pcm
        if self._ears is None or self._hears is None:
            return []
        heard = [replace(one, at_ms=self._since_ms + one.at_ms) for one in self._ears.feed(pcm)]
        if not heard and not self._ears.is_speech:
            self.forget(self.now_ms - self._hears.prefix_padding_ms - _LATE_MS)
        return heard

    def forget(self, until_ms: int) -> bytes:
        """Let go of the sound before a moment; what it was."""
        count = min(max(until_ms * PCM_MS - self._forgotten, 0), len(self._waiting))
        pcm = bytes(self._waiting[:count])
        del self._waiting[:count]
        self._forgotten += count
        return pcm

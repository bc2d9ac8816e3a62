"""What a client says in a call until it is made into an item, and who notices when they begin and when they are done.

Moments are milliseconds since the call began to listen. Nothing is sent here.
"""

from __future__ import annotations

from dataclasses import replace

from mstar.media.vad import EnergyVad, SpeechEdge
from mstar.server.errors import ApiError
from mstar.server.realtime.config import ServerVad
from mstar.server.realtime.conversation import PCM_BYTES_PER_MS

MAX_BUFFER_MS = 600_000
"""So much sound may wait to be made into an item."""
_VAD_LATENCY_MS = 100
"""So long after somebody began to speak they are noticed at the latest."""


class InputAudioBuffer:
    """The sound of one client that waits."""

    def __init__(self, turn_detection: ServerVad | None) -> None:
        self._pcm = bytearray()
        self._discarded_bytes = 0
        """How many bytes came before those that wait."""
        self.set_turn_detection(turn_detection)

    def set_turn_detection(self, turn_detection: ServerVad | None) -> None:
        """Listen anew, from now on in this way; without one, nobody is noticed."""
        self._turn_detection = turn_detection
        self._vad = turn_detection and EnergyVad(turn_detection.threshold, turn_detection.silence_duration_ms)
        self._vad_start_ms = self.end_ms

    @property
    def end_ms(self) -> int:
        """The moment until which it has heard."""
        return (self._discarded_bytes + len(self._pcm)) // PCM_BYTES_PER_MS

    @property
    def start_ms(self) -> int:
        """The moment from which on it has not forgotten."""
        return self._discarded_bytes // PCM_BYTES_PER_MS

    def append(self, pcm: bytes) -> list[SpeechEdge]:
        """More sound; who has begun, and who is done. Raises Refusal if too much waits."""
        if len(self._pcm) + len(pcm) > MAX_BUFFER_MS * PCM_BYTES_PER_MS:
            raise ApiError(
                400, "buffer_full", f"{MAX_BUFFER_MS} ms of sound wait to be committed; commit or clear them"
            )
        self._pcm += pcm
        if self._vad is None or self._turn_detection is None:
            return []
        heard = [replace(one, at_ms=self._vad_start_ms + one.at_ms) for one in self._vad.feed(pcm)]
        if not heard and not self._vad.is_speech:
            self.consume(self.end_ms - self._turn_detection.prefix_padding_ms - _VAD_LATENCY_MS)
        return heard

    def consume(self, until_ms: int) -> bytes:
        """Let go of the sound before a moment; what it was."""
        count = min(max(until_ms * PCM_BYTES_PER_MS - self._discarded_bytes, 0), len(self._pcm))
        pcm = bytes(self._pcm[:count])
        del self._pcm[:count]
        self._discarded_bytes += count
        return pcm

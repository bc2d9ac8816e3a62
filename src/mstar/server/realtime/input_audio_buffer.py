"""Input audio buffer of a realtime session, with voice activity detection (OpenAI `input_audio_buffer`).

Holds PCM audio until it is committed to an item. Positions are milliseconds since the start of the session. This module
sends no events.
"""

from __future__ import annotations

from dataclasses import replace

from mstar.media.vad import SAMPLE_RATE, EnergyVad, SpeechEdge, pcm_to_samples
from mstar.requests import AudioInput
from mstar.server.errors import ApiError
from mstar.server.inputs.memory_budget import Reservation
from mstar.server.realtime.config import ServerVad
from mstar.server.realtime.conversation import PCM_BYTES_PER_MS

MAX_BUFFER_MS = 600_000
"""Maximum milliseconds of audio before it must be committed or cleared."""
_VAD_LATENCY_MS = 100
"""Maximum milliseconds between the start of speech and its detection."""


class InputAudioBuffer:
    """Uncommitted audio of one session and its VAD. Its bytes count against the memory budget of the server."""

    def __init__(self, turn_detection: ServerVad | None, memory: Reservation) -> None:
        self._memory = memory
        self._pcm = bytearray()
        self._discarded_bytes = 0
        """Bytes received before those in the buffer."""
        self.set_turn_detection(turn_detection)

    def set_turn_detection(self, turn_detection: ServerVad | None) -> None:
        """Restart the VAD with these settings; None turns it off."""
        self._turn_detection = turn_detection
        self._vad = turn_detection and EnergyVad(turn_detection.threshold, turn_detection.silence_duration_ms)
        self._vad_start_ms = self.end_ms

    @property
    def end_ms(self) -> int:
        """Position of the end of the buffer."""
        return (self._discarded_bytes + len(self._pcm)) // PCM_BYTES_PER_MS

    @property
    def start_ms(self) -> int:
        """Position of the start of the buffer."""
        return self._discarded_bytes // PCM_BYTES_PER_MS

    @property
    def is_speech(self) -> bool:
        """Whether the audio is part of a future item: the user speaks, or turns are not detected."""
        return self._vad is None or self._vad.is_speech

    def read(self, from_s: float) -> AudioInput:
        """The audio from this many seconds after the start of the buffer on, which stays in the buffer."""
        return AudioInput(pcm_to_samples(bytes(self._pcm[int(from_s * 1000) * PCM_BYTES_PER_MS :])), SAMPLE_RATE)

    def append(self, pcm: bytes) -> list[SpeechEdge]:
        """Add audio; return where speech started and stopped. Raises ApiError if the buffer is full.

        Without speech, audio older than the prefix padding is discarded.
        """
        if len(self._pcm) + len(pcm) > MAX_BUFFER_MS * PCM_BYTES_PER_MS:
            message = f"the input audio buffer is full (limit {MAX_BUFFER_MS} ms). fix: commit or clear it"
            raise ApiError(400, "buffer_full", message)
        self._memory.add(len(pcm), "audio")
        self._pcm += pcm
        if self._vad is None or self._turn_detection is None:
            return []
        edges = [replace(edge, at_ms=self._vad_start_ms + edge.at_ms) for edge in self._vad.feed(pcm)]
        if not edges and not self._vad.is_speech:
            self.consume(self.end_ms - self._turn_detection.prefix_padding_ms - _VAD_LATENCY_MS)
        return edges

    def consume(self, until_ms: int) -> bytes:
        """Remove and return the audio before a position."""
        count = min(max(until_ms * PCM_BYTES_PER_MS - self._discarded_bytes, 0), len(self._pcm))
        pcm = bytes(self._pcm[:count])
        del self._pcm[:count]
        self._discarded_bytes += count
        self._memory.remove(count)
        return pcm

"""Input audio buffer of a realtime session, with turn detection (OpenAI `input_audio_buffer`).

Holds PCM audio until it is committed to an item. Voice activity detection finds speech; with `server_vad` each run of
speech is a turn, and with `semantic_vad` a model decides (see `semantic_turns`). Positions are milliseconds since the
start of the session. This module sends no events.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from mstar.media.vad import SAMPLE_RATE, EnergyVad, SpeechEdge, VadState, pcm_to_samples
from mstar.requests import AudioInput
from mstar.server.errors import ApiError
from mstar.server.inputs.memory_budget import Reservation
from mstar.server.realtime.config import SemanticVad, ServerVad
from mstar.server.realtime.conversation import PCM_BYTES_PER_MS
from mstar.server.realtime.semantic_turns import PAUSE_MS, SemanticTurns, TurnContext, TurnState

MAX_BUFFER_MS = 600_000
"""Maximum milliseconds of audio before it must be committed or cleared."""
_SEMANTIC_VAD_THRESHOLD = 0.5
_VAD_LATENCY_MS = 100
"""Maximum milliseconds between the start of speech and its detection."""


@dataclass(frozen=True, slots=True)
class InputAudioState:
    """State of a buffer without its audio, so that another server can continue."""

    vad_start_ms: int
    vad: VadState | None
    turns: TurnState | None


class InputAudioBuffer:
    """Uncommitted audio of one session and its turns. Its bytes count against the memory budget of the server."""

    def __init__(
        self, turn_detection: ServerVad | SemanticVad | None, memory: Reservation, turn_context: TurnContext
    ) -> None:
        self._memory = memory
        self._turn_context = turn_context
        self._pcm = bytearray()
        self._discarded_bytes = 0
        """Bytes received before those in the buffer."""
        self.set_turn_detection(turn_detection)

    def set_turn_detection(self, turn_detection: ServerVad | SemanticVad | None) -> None:
        """Restart turn detection with these settings; None turns it off."""
        self._turn_detection = turn_detection
        self._semantic_turns: SemanticTurns | None = None
        match turn_detection:
            case None:
                self._vad = None
            case ServerVad():
                self._vad = EnergyVad(turn_detection.threshold, turn_detection.silence_duration_ms)
            case SemanticVad():
                self._vad = EnergyVad(_SEMANTIC_VAD_THRESHOLD, PAUSE_MS)
                self._semantic_turns = SemanticTurns(turn_detection, self._turn_context, self._read_span)
        self._vad_start_ms = self.end_ms

    @property
    def state(self) -> InputAudioState:
        """Its state without the audio."""
        vad, turns = self._vad, self._semantic_turns
        return InputAudioState(self._vad_start_ms, vad and vad.state, turns and turns.state)

    def restore(self, state: InputAudioState, audio_start: int, audio: bytes) -> None:
        """Continue with a state and this audio. Raises ApiError without memory for it."""
        self._discarded_bytes = audio_start
        self.add(audio)
        self._vad_start_ms = state.vad_start_ms
        if self._vad is not None and state.vad is not None:
            self._vad.restore(state.vad)
        if self._semantic_turns is not None and state.turns is not None:
            self._semantic_turns.restore(state.turns)

    def bytes_after(self, position: int) -> tuple[int, bytes]:
        """Position of the first byte, counted from the start of the session, and the bytes after a position."""
        return self._discarded_bytes, bytes(self._pcm[max(0, position - self._discarded_bytes) :])

    @property
    def end_ms(self) -> int:
        """Position of the end of the buffer."""
        return (self._discarded_bytes + len(self._pcm)) // PCM_BYTES_PER_MS

    @property
    def start_ms(self) -> int:
        """Position of the start of the buffer."""
        return self._discarded_bytes // PCM_BYTES_PER_MS

    @property
    def is_turn(self) -> bool:
        """Whether the audio is part of a future item: the user has the turn, or turns are not detected."""
        if self._semantic_turns is not None:
            return self._semantic_turns.is_turn
        return self._vad is None or self._vad.is_speech

    def read(self, from_s: float) -> AudioInput:
        """The audio from this many seconds after the start of the buffer on, which stays in the buffer."""
        return self._read_bytes(int(from_s * 1000) * PCM_BYTES_PER_MS, len(self._pcm))

    def _read_span(self, start_ms: int, end_ms: int) -> AudioInput:
        """The audio between two positions, as far as it is in the buffer."""
        start, end = (position * PCM_BYTES_PER_MS - self._discarded_bytes for position in (start_ms, end_ms))
        return self._read_bytes(max(start, 0), max(end, 0))

    def _read_bytes(self, start: int, end: int) -> AudioInput:
        return AudioInput(pcm_to_samples(bytes(self._pcm[start:end])), SAMPLE_RATE)

    def add(self, pcm: bytes) -> None:
        """Add audio. Raises ApiError if the buffer is full."""
        if len(self._pcm) + len(pcm) > MAX_BUFFER_MS * PCM_BYTES_PER_MS:
            message = f"the input audio buffer is full (limit {MAX_BUFFER_MS} ms). fix: commit or clear it"
            raise ApiError(400, "buffer_full", message)
        self._memory.add(len(pcm), "audio")
        self._pcm += pcm

    async def append(self, pcm: bytes) -> AsyncIterator[SpeechEdge]:
        """Add audio and yield where turns start and end. Raises ApiError if the buffer is full.

        Without speech, audio older than the prefix padding is discarded.
        """
        self.add(pcm)
        vad, turns, detection = self._vad, self._semantic_turns, self._turn_detection
        if vad is None or detection is None:
            return
        edges = [replace(edge, at_ms=self._vad_start_ms + edge.at_ms) for edge in vad.feed(pcm)]
        if turns is None:
            for edge in edges:
                yield edge
        else:
            async for edge in turns.process(edges, self.end_ms):
                yield edge
        if not vad.is_speech and (turns is None or turns.is_idle):
            self.consume(self.end_ms - detection.prefix_padding_ms - _VAD_LATENCY_MS)

    def consume(self, until_ms: int) -> bytes:
        """Remove and return the audio before a position."""
        count = min(max(until_ms * PCM_BYTES_PER_MS - self._discarded_bytes, 0), len(self._pcm))
        pcm = bytes(self._pcm[:count])
        del self._pcm[:count]
        self._discarded_bytes += count
        self._memory.remove(count)
        return pcm

"""Turns of a realtime session with `semantic_vad`: a model tells pauses from ends, and backchannels from interruptions.

Voice activity detection reports speech, and each silence of `PAUSE_MS`. Then:

1. After a pause, the model predicts from the last seconds of the turn how likely the speaker continues. The turn ends
   after a silence of that probability times the maximum of the `eagerness`, at least `PAUSE_MS`. Speech before that
   continues the turn.
2. While the assistant speaks, speech is held: the model reads it at its first pause, or after `HOLD_MS`. A backchannel
   ("mm-hmm", "yes") is ignored, and anything else starts a turn, as does speech that lasts `MAX_HOLD_MS`.

Time is that of the audio, so the result does not depend on how fast it arrives. This module sends no events.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from mstar.media.vad import SpeechEdge
from mstar.requests import AudioInput, TurnPrediction
from mstar.server.realtime.config import SemanticVad

PAUSE_MS = 200
"""Milliseconds of silence after which the model is asked."""
HOLD_MS = 600
"""Milliseconds of speech after which the model decides whether it interrupts the assistant."""
MAX_HOLD_MS = 1200
"""Milliseconds of speech that interrupt the assistant in any case."""
WINDOW_MS = 3200
"""Milliseconds of audio that the model reads."""
_LEAD_MS = 200
"""Milliseconds before the speech that the model reads too, for the level of the noise."""
_MAX_SILENCE_MS = {"low": 8000, "medium": 4000, "auto": 4000, "high": 2000}
"""Milliseconds of silence that end a turn in any case, by eagerness, as OpenAI documents them."""


@dataclass(frozen=True, slots=True)
class TurnContext:
    """What turn detection uses of its session."""

    predict: Callable[[AudioInput], Awaitable[TurnPrediction]]
    is_assistant_speaking: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class TurnState:
    """State of the turns of a session, so that another server can continue."""

    is_turn: bool
    speech_start_ms: int
    turn_end_ms: int | None
    decision_ms: int | None


class SemanticTurns:
    """Finds the turns of one session. `read_audio` returns the audio between two positions in milliseconds."""

    def __init__(
        self, settings: SemanticVad, context: TurnContext, read_audio: Callable[[int, int], AudioInput]
    ) -> None:
        self._max_silence_ms = _MAX_SILENCE_MS[settings.eagerness]
        self._context = context
        self._read_audio = read_audio
        self.is_turn = False
        """Whether the user has the turn, speaking or pausing."""
        self._speech_start_ms = 0
        """Start of the turn, or of the speech that is held."""
        self._turn_end_ms: int | None = None
        """In a pause: when the turn ends, unless speech comes first."""
        self._decision_ms: int | None = None
        """While speech is held: when the model reads it."""

    @property
    def state(self) -> TurnState:
        """Its state."""
        return TurnState(self.is_turn, self._speech_start_ms, self._turn_end_ms, self._decision_ms)

    def restore(self, state: TurnState) -> None:
        """Continue with a state."""
        self.is_turn, self._speech_start_ms = state.is_turn, state.speech_start_ms
        self._turn_end_ms, self._decision_ms = state.turn_end_ms, state.decision_ms

    @property
    def is_idle(self) -> bool:
        """Whether no audio is part of a turn, or could be."""
        return not self.is_turn and self._decision_ms is None

    async def process(self, edges: list[SpeechEdge], end_ms: int) -> AsyncIterator[SpeechEdge]:
        """Process audio until `end_ms` with these edges of speech, and yield where turns start and end."""
        for edge in edges:
            async for turn_edge in self._advance(edge.at_ms):
                yield turn_edge
            on_edge = self._on_speech if edge.is_start else self._on_pause
            async for turn_edge in on_edge(edge.at_ms):
                yield turn_edge
        async for turn_edge in self._advance(end_ms):
            yield turn_edge

    async def _advance(self, now_ms: int) -> AsyncIterator[SpeechEdge]:
        """End a turn whose pause is long enough, and decide about speech that was held long enough."""
        if self._turn_end_ms is not None and now_ms >= self._turn_end_ms:
            yield self._end_turn(self._turn_end_ms)
        while self._decision_ms is not None and now_ms >= self._decision_ms:
            at_ms, last_ms = self._decision_ms, self._speech_start_ms + MAX_HOLD_MS
            if at_ms < last_ms and self._is_backchannel(await self._predict(at_ms)):
                self._decision_ms = last_ms
            else:
                yield self._start_turn()

    async def _on_speech(self, at_ms: int) -> AsyncIterator[SpeechEdge]:
        self._turn_end_ms = None
        if self.is_turn:
            return
        self._speech_start_ms = at_ms
        if self._context.is_assistant_speaking():
            self._decision_ms = at_ms + HOLD_MS
        else:
            yield self._start_turn()

    async def _on_pause(self, at_ms: int) -> AsyncIterator[SpeechEdge]:
        """Decide after `PAUSE_MS` of silence."""
        prediction = await self._predict(at_ms)
        if self._decision_ms is not None:
            self._decision_ms = None
            if self._is_backchannel(prediction):
                return
            yield self._start_turn()
        silence_ms = max(PAUSE_MS, round(self._max_silence_ms * prediction.continues))
        self._turn_end_ms = at_ms - PAUSE_MS + silence_ms

    def _start_turn(self) -> SpeechEdge:
        self.is_turn, self._decision_ms = True, None
        return SpeechEdge(is_start=True, at_ms=self._speech_start_ms)

    def _end_turn(self, at_ms: int) -> SpeechEdge:
        self.is_turn, self._turn_end_ms = False, None
        return SpeechEdge(is_start=False, at_ms=at_ms)

    def _is_backchannel(self, prediction: TurnPrediction) -> bool:
        """Whether speech is ignored. After the assistant has finished, "yes" is an answer."""
        is_likely = prediction.backchannel > max(prediction.continues, prediction.end_of_turn)
        return is_likely and self._context.is_assistant_speaking()

    async def _predict(self, at_ms: int) -> TurnPrediction:
        start_ms = max(self._speech_start_ms - _LEAD_MS, at_ms - WINDOW_MS)
        return await self._context.predict(self._read_audio(start_ms, at_ms))

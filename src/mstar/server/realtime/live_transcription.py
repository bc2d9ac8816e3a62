"""Live transcription of one realtime item: text deltas while the user speaks, by repeated transcription.

Algorithm (LocalAgreement-2, as in whisper_streaming):

1. Transcribe the window, the audio that is not yet settled, again and again.
2. Text on which two passes in a row agree is stable. It is sent as a delta and never changes.
3. When the window is longer than `MAX_WINDOW_S`, it is cut at the end of the stable words.
4. At the end of the turn, a last pass over the window completes the transcript. Deltas join to the transcript.

Work is bounded: a pass starts only when `MIN_PASS_AUDIO_S` of new audio arrived, and at least twice the duration of the
last pass. So passes take at most half of the time, and fewer run on a busy server. The model must return word times.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import takewhile

from mstar.requests import AudioInput, Segment, Transcript
from mstar.server.errors import ApiError

MIN_PASS_AUDIO_S = 0.5
"""Minimum seconds of new audio before another pass."""
PASS_TIME_FACTOR = 2.0
"""Minimum seconds of new audio per second that the last pass took."""
MAX_WINDOW_S = 12.0
"""Seconds of the window after which it is cut."""
MAX_UNSTABLE_S = 24.0
"""Seconds of the window after which all of its text counts as stable. Whisper reads at most 30 s at once."""

Transcribe = Callable[[AudioInput], Awaitable[Transcript]]
SendDelta = Callable[[str], Awaitable[None]]


class LocalAgreement:
    """Words of a window that were transcribed equally twice in a row. Times are seconds since the start of the item."""

    def __init__(self) -> None:
        self.stable_end = 0.0
        """End of the last stable word."""
        self._previous = list[Segment]()

    def add(self, words: Sequence[Segment], *, is_final: bool = False) -> str:
        """Add the words of a pass; return the text that became stable: all of it, if the pass is final."""
        fresh = [word for word in words if word.start + word.end > 2 * self.stable_end]
        count = len(fresh) if is_final else _common_prefix(fresh, self._previous)
        self._previous = fresh[count:]
        if count:
            self.stable_end = max(self.stable_end, fresh[count - 1].end)
        return "".join(word.text for word in fresh[:count])


def _common_prefix(left: Sequence[Segment], right: Sequence[Segment]) -> int:
    """Number of words with which both start."""
    equal = (_key(a) == _key(b) for a, b in zip(left, right, strict=False))
    return sum(1 for _ in takewhile(bool, equal))


def _key(word: Segment) -> str:
    """A word without case and punctuation, in which passes differ without a meaning."""
    return re.sub(r"\W", "", word.text).lower() or word.text


class LiveTranscription:
    """Transcription of one item while its audio arrives. `read_audio` returns it from a second on."""

    def __init__(
        self, read_audio: Callable[[float], AudioInput], transcribe: Transcribe, send_delta: SendDelta
    ) -> None:
        self._read_audio = read_audio
        self._transcribe = transcribe
        self._send_delta = send_delta
        self._agreement = LocalAgreement()
        self._window_start = 0.0
        self._seconds_seen = 0.0
        """Seconds of audio at the start of the last pass."""
        self._pause_s = MIN_PASS_AUDIO_S
        """Minimum seconds of new audio before the next pass."""
        self._task: asyncio.Task[None] | None = None
        self._has_words = True
        """Whether the model returns word times; assumed until it does not once."""
        self._text = ""

    def update(self, seconds: float) -> None:
        """Start a pass if enough of the first `seconds` of the item is new."""
        is_running = self._task is not None and not self._task.done()
        if self._has_words and not is_running and seconds - self._seconds_seen >= self._pause_s:
            self._task = asyncio.create_task(self._run_pass(seconds))

    async def finish(self, audio: AudioInput) -> str:
        """Return the transcript of the complete audio, after its last delta. Raises ApiError."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        window = AudioInput(audio.samples[int(self._window_start * audio.rate) :], audio.rate)
        transcript = await self._transcribe(window)
        words = transcript.words
        await self._send(transcript.text if words is None else self._agreement.add(self._shift(words), is_final=True))
        return self._text.rstrip()

    def cancel(self) -> None:
        """Stop a running pass: the audio was discarded."""
        if self._task is not None:
            self._task.cancel()

    async def _run_pass(self, seconds: float) -> None:
        """Run one pass. An error is left to the last pass, which reports it."""
        self._seconds_seen, started = seconds, time.monotonic()
        window = self._read_audio(self._window_start)
        try:
            transcript = await self._transcribe(window)
        except ApiError:
            return
        finally:
            self._pause_s = max(MIN_PASS_AUDIO_S, PASS_TIME_FACTOR * (time.monotonic() - started))
        if transcript.words is None:
            self._has_words = False
            return
        window_s = seconds - self._window_start
        is_flushed = window_s > MAX_UNSTABLE_S
        stable = self._agreement.add(self._shift(transcript.words), is_final=is_flushed)
        if is_flushed:
            self._window_start = seconds
        elif window_s > MAX_WINDOW_S:
            self._window_start = max(self._window_start, self._agreement.stable_end)
        await self._send(stable)

    def _shift(self, words: Sequence[Segment]) -> list[Segment]:
        """Times since the start of the item."""
        offset = self._window_start
        return [Segment(word.start + offset, word.end + offset, word.text) for word in words]

    async def _send(self, text: str) -> None:
        text = text if self._text else text.lstrip()
        if text:
            self._text += text
            await self._send_delta(text)

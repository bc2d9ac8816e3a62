"""Transcription of the user's audio in a realtime session (OpenAI `conversation.item.input_audio_transcription.*`).

A conversation transcribes an item when it is committed. A transcription session transcribes it while the user speaks
too, so that deltas are early.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any, cast

from mstar.frontend.response_stream import RequestEnded
from mstar.requests import AudioInput, Transcript, TranscriptionRequest
from mstar.server.errors import ApiError
from mstar.server.realtime.config import SessionConfig, TranscriptionConfig
from mstar.server.realtime.conversation import Item
from mstar.server.realtime.input_audio_buffer import InputAudioBuffer
from mstar.server.realtime.live_transcription import LiveTranscription
from mstar.server.realtime.response import EventSender
from mstar.server.state import ServedModel
from mstar.server.websocket_session import WebSocketSession
from mstar.wire import messages as m

_EVENT = "conversation.item.input_audio_transcription"


class InputTranscriber:
    """Transcribes the items of one session."""

    def __init__(
        self, websocket: WebSocketSession, send_event: EventSender, step: AbstractAsyncContextManager[None]
    ) -> None:
        """`step` makes changes and their events one step of the session."""
        self._websocket = websocket
        self._send_event = send_event
        self._step = step
        self._live: LiveTranscription | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.unfinished: dict[str, None] = {}
        """Ids of the committed items whose transcript was not sent."""

    @property
    def is_busy(self) -> bool:
        """Whether a committed item is not transcribed yet."""
        return bool(self._tasks)

    def update(self, config: SessionConfig, buffer: InputAudioBuffer, item_id: str) -> None:
        """Transcribe the buffered audio of a future item live, if the session does so."""
        if config.transcription is None or not config.is_transcription or not buffer.is_turn:
            return
        if self._live is None:
            self._live = self._start_live(config.transcription, buffer, item_id)
        self._live.update((buffer.end_ms - buffer.start_ms) / 1000)

    def commit(self, config: SessionConfig, item: Item) -> None:
        """Transcribe a committed item, if the session has transcription."""
        live, self._live = self._live, None
        if config.transcription is None:
            return
        self.unfinished[item.id] = None
        task = asyncio.create_task(self._complete(item, config.transcription, live))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def clear(self) -> None:
        """Forget the future item: its audio was discarded."""
        if self._live is not None:
            self._live.cancel()
            self._live = None

    def close(self) -> None:
        """Cancel everything."""
        self.clear()
        for task in self._tasks:
            task.cancel()

    def _start_live(self, settings: TranscriptionConfig, buffer: InputAudioBuffer, item_id: str) -> LiveTranscription:
        async def transcribe(audio: AudioInput) -> Transcript:
            return await self._transcribe(settings, audio, has_words=True)

        async def send_delta(delta: str) -> None:
            await self._send_event(f"{_EVENT}.delta", item_id=item_id, content_index=0, delta=delta)

        return LiveTranscription(buffer.read, transcribe, send_delta)

    async def _complete(self, item: Item, settings: TranscriptionConfig, live: LiveTranscription | None) -> None:
        """Send the transcript of a committed item."""
        location, audio = {"item_id": item.id, "content_index": 0}, item.parts[0]
        assert isinstance(audio, AudioInput), "a committed item starts with its audio"
        try:
            if live is not None:
                transcript = await live.finish(audio)
            else:
                transcript = (await self._transcribe(settings, audio)).text
        except ApiError as error:
            await self._finish(item, "failed", **location, error=error.content["error"])
            return
        item.transcript, usage = transcript, {"type": "duration", "seconds": len(audio.samples) / audio.rate}
        await self._finish(item, "completed", **location, transcript=transcript, usage=usage)

    async def _finish(self, item: Item, outcome: str, **fields: Any) -> None:
        async with self._step:
            self.unfinished.pop(item.id, None)
            await self._send_event(f"{_EVENT}.{outcome}", **fields)

    async def _transcribe(
        self, settings: TranscriptionConfig, audio: AudioInput, *, has_words: bool = False
    ) -> Transcript:
        """Raises ApiError."""
        request = TranscriptionRequest(audio, settings.language, settings.prompt, word_timestamps=has_words)
        served = find_transcription_model(self._websocket, settings.model)
        transcript = Transcript("", (), "", 0.0)
        with self._websocket.start_requests(served, request) as stream:
            async for event in stream:
                if isinstance(event, RequestEnded) and isinstance(event.end, m.RequestFinished):
                    transcript = cast("Transcript", event.end.result.content)
        return transcript


def find_transcription_model(websocket: WebSocketSession, name: str) -> ServedModel:
    """The transcription model of this name; without a name, the only one. Raises ApiError."""
    models = {
        name: served
        for name, served in websocket.state.served_models.items()
        if TranscriptionRequest in served.accepted_types
    }
    served = next(iter(models.values())) if not name and len(models) == 1 else models.get(name)
    if served is None:
        message = f"no transcription model is named `{name}`. fix: use a transcription model of GET /v1/models"
        raise ApiError(404, "model_not_found", message, param="model")
    return served

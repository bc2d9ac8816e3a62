"""Streaming text-to-speech over a WebSocket (`/v1/audio/speech/stream`): text input in pieces, one request a sentence.

Protocol:

1. The client sends `session.config`, then any number of `input.text`, then `input.done`. `input.cancel` drops text that
   is not synthesized yet and stops the sentence that is.
2. For each sentence the server sends `audio.start`, binary audio messages and `audio.done`, with `audio.words` between
   them if the session asked for timestamps; after the last one `session.done`. An `error` event ends the session.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from dataclasses import asdict
from typing import Annotated, Any, Literal

import msgspec
from pydantic import Field

from mstar.requests import Finish
from mstar.server.errors import ApiError
from mstar.server.http_exchange import parse_body
from mstar.server.openai.schema import StrictModel
from mstar.server.openai.speech import MAX_INPUT_CHARS, SpeechOptions, audio_chunks
from mstar.server.state import ServedModel
from mstar.server.websocket_session import WebSocketSession

CONFIG_TIMEOUT_S = 60.0
"""Seconds to wait for `session.config`."""
MAX_PENDING_CHARS = 16 * MAX_INPUT_CHARS
"""Maximum characters of sentences that wait for synthesis."""
_SENTENCE_END = re.compile(r"(?<=[.!?…])\s+|(?<=[。！？])|\n+")


class SpeechSessionConfig(SpeechOptions):
    """First event of a session: voice, format and model."""

    type: Literal["session.config"]
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] = "pcm"


class SpeechInput(StrictModel):
    """Any later event of the client."""

    type: Literal["input.text", "input.done", "input.cancel"]
    text: Annotated[str, Field(max_length=MAX_PENDING_CHARS)] = ""


async def stream_speech(websocket: WebSocketSession) -> None:
    """WS /v1/audio/speech/stream."""
    await websocket.accept()
    try:
        async with asyncio.timeout(CONFIG_TIMEOUT_S):
            config = parse_body(SpeechSessionConfig, _to_bytes(await websocket.receive()))
        await SpeechStreamSession(websocket, websocket.resolve_model(config.model), config).run()
    except TimeoutError:
        message = f"no session.config received within {CONFIG_TIMEOUT_S:g} s. fix: send it as the first message"
        await _send_event(websocket, "error", **ApiError(408, "config_timeout", message).content)
    except ApiError as error:
        await _send_event(websocket, "error", **error.content)
        raise
    await websocket.close_websocket()


class SpeechStreamSession:
    """State of one session: sentences that wait, and the one that is synthesized."""

    def __init__(self, websocket: WebSocketSession, served_model: ServedModel, config: SpeechSessionConfig) -> None:
        config.audio_encoder()  # rejects an unsupported format before any text arrives
        config.check_timestamps(served_model)
        self._websocket = websocket
        self._served_model = served_model
        self._config = config
        self._count = 0
        self._partial_sentence = ""
        self._sentences: deque[str] = deque()
        self._is_input_done = False
        self._synthesis: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Receive text and synthesize it until the input is done and all audio is sent. Raises ApiError."""
        receiving = asyncio.create_task(self._websocket.receive())
        try:
            while self._synthesis or self._sentences or not self._is_input_done:
                if self._synthesis is None and self._sentences:
                    self._synthesis = asyncio.create_task(self._synthesize(self._sentences.popleft()))
                waiting = {receiving} if self._synthesis is None else {receiving, self._synthesis}
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if self._synthesis is not None and self._synthesis.done():
                    finished, self._synthesis = self._synthesis, None
                    finished.result()
                if receiving.done():
                    await self._on_input(parse_body(SpeechInput, _to_bytes(receiving.result())))
                    receiving = asyncio.create_task(self._websocket.receive())
            await _send_event(self._websocket, "session.done", total_sentences=self._count)
        finally:
            tasks: list[asyncio.Task[Any]] = [receiving] if self._synthesis is None else [receiving, self._synthesis]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _on_input(self, event: SpeechInput) -> None:
        if event.type == "input.cancel":
            await self._cancel()
            return
        *sentences, self._partial_sentence = _SENTENCE_END.split(self._partial_sentence + event.text)
        if event.type == "input.done":
            self._is_input_done = True
            sentences.append(self._partial_sentence)
        self._sentences.extend(sentence.strip() for sentence in sentences if sentence.strip())
        if len(self._partial_sentence) > MAX_INPUT_CHARS or sum(map(len, self._sentences)) > MAX_PENDING_CHARS:
            message = (
                f"text: a sentence is longer than {MAX_INPUT_CHARS} characters, or more than {MAX_PENDING_CHARS} "
                "characters wait for synthesis. fix: end sentences with punctuation and send text more slowly"
            )
            raise ApiError(413, "too_large", message, param="text")

    async def _cancel(self) -> None:
        self._partial_sentence = ""
        self._sentences.clear()
        if self._synthesis is not None:
            cancelled, self._synthesis = self._synthesis, None
            cancelled.cancel()
            await asyncio.wait({cancelled})
            await _send_event(
                self._websocket, "audio.done", sentence_index=self._count - 1, error=False, cancelled=True
            )

    async def _synthesize(self, sentence: str) -> None:
        index, encoder, total_bytes = self._count, self._config.audio_encoder(), 0
        self._count += 1
        request = self._config.to_request(sentence, self._served_model)
        with self._websocket.start_requests(self._served_model, request) as stream:
            format_fields = {"format": self._config.response_format, "sample_rate": encoder.rate}
            await _send_event(
                self._websocket, "audio.start", sentence_index=index, sentence_text=sentence, **format_fields
            )
            async for part in audio_chunks(stream, encoder):
                if isinstance(part, bytes):
                    total_bytes += len(part)
                    await self._websocket.send(part)
                elif not isinstance(part, Finish) and self._config.timestamp_granularities:
                    words = [asdict(word) for word in part]
                    await _send_event(self._websocket, "audio.words", sentence_index=index, words=words)
        await _send_event(self._websocket, "audio.done", sentence_index=index, total_bytes=total_bytes, error=False)


async def _send_event(websocket: WebSocketSession, kind: str, **content: Any) -> None:
    await websocket.send(msgspec.json.encode({"type": kind, **content}).decode())


def _to_bytes(message: str | bytes) -> bytes:
    return message.encode() if isinstance(message, str) else message

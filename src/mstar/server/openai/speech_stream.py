"""Speech while the text is still written: text comes in over a WebSocket bit by bit, and is said sentence by sentence.

A client sends `session.config`, `input.text` as often as it likes, then `input.done`; `input.cancel` takes back what
has not been said. It hears `audio.start`, sound as binary messages and `audio.done` for each sentence, and
`session.done` at the end. What goes wrong is an `error`, and the end. How sound is made is not known here.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from typing import Annotated, Any, Literal

import msgspec
from pydantic import Field

from mstar.server.errors import ApiError
from mstar.server.http_exchange import parse_body
from mstar.server.openai.schema import StrictModel
from mstar.server.openai.speech import MAX_INPUT_CHARS, SpeechOptions, audio_chunks
from mstar.server.state import ServedModel
from mstar.server.websocket_session import WebSocketSession

CONFIG_TIMEOUT_S = 60.0
"""How long a client may take to begin."""
MAX_PENDING_CHARS = 16 * MAX_INPUT_CHARS
"""How many characters may wait to be said."""
_SENTENCE_END = re.compile(r"(?<=[.!?…])\s+|(?<=[。！？])|\n+")


class SpeechSessionConfig(SpeechOptions):
    """The first thing a client says."""

    type: Literal["session.config"]
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] = "pcm"


class SpeechInput(StrictModel):
    """Anything it says after that."""

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
        await _send_event(websocket, "error", **ApiError(408, "config_timeout", "no session.config has come").content)
    except ApiError as refusal:
        await _send_event(websocket, "error", **refusal.content)
        raise
    await websocket.close_websocket()


class SpeechStreamSession:
    """What one client has said under way."""

    def __init__(self, websocket: WebSocketSession, served_model: ServedModel, config: SpeechSessionConfig) -> None:
        config.audio_encoder()  # a format that cannot be made is told at once
        self._websocket = websocket
        self._served_model = served_model
        self._config = config
        self._count = 0
        self._partial_sentence = ""
        self._sentences: deque[str] = deque()
        self._is_input_done = False
        self._synthesis: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Hear and speak until everything is said."""
        hearing = asyncio.create_task(self._websocket.receive())
        try:
            while self._synthesis or self._sentences or not self._is_input_done:
                if self._synthesis is None and self._sentences:
                    self._synthesis = asyncio.create_task(self._synthesize(self._sentences.popleft()))
                waiting = {hearing} if self._synthesis is None else {hearing, self._synthesis}
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if self._synthesis is not None and self._synthesis.done():
                    saying, self._synthesis = self._synthesis, None
                    saying.result()
                if hearing.done():
                    await self._on_input(parse_body(SpeechInput, _to_bytes(hearing.result())))
                    hearing = asyncio.create_task(self._websocket.receive())
            await _send_event(self._websocket, "session.done", total_sentences=self._count)
        finally:
            tasks: list[asyncio.Task[Any]] = [hearing] if self._synthesis is None else [hearing, self._synthesis]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _on_input(self, message: SpeechInput) -> None:
        if message.type == "input.cancel":
            await self._cancel()
            return
        *whole, self._partial_sentence = _SENTENCE_END.split(self._partial_sentence + message.text)
        if message.type == "input.done":
            self._is_input_done = True
            whole.append(self._partial_sentence)
        self._sentences.extend(sentence.strip() for sentence in whole if sentence.strip())
        if len(self._partial_sentence) > MAX_INPUT_CHARS or sum(map(len, self._sentences)) > MAX_PENDING_CHARS:
            what = f"a sentence may have {MAX_INPUT_CHARS} characters, and {MAX_PENDING_CHARS} may wait to be said"
            raise ApiError(413, "too_large", what, param="text")

    async def _cancel(self) -> None:
        self._partial_sentence = ""
        self._sentences.clear()
        if self._synthesis is not None:
            saying, self._synthesis = self._synthesis, None
            saying.cancel()
            await asyncio.wait({saying})
            await _send_event(
                self._websocket, "audio.done", sentence_index=self._count - 1, error=False, cancelled=True
            )

    async def _synthesize(self, sentence: str) -> None:
        number, track, size = self._count, self._config.audio_encoder(), 0
        self._count += 1
        with self._websocket.start_requests(
            self._served_model, self._config.to_request(sentence, self._served_model)
        ) as live:
            about = {"format": self._config.response_format, "sample_rate": track.rate}
            await _send_event(self._websocket, "audio.start", sentence_index=number, sentence_text=sentence, **about)
            async for part in audio_chunks(live, track):
                if isinstance(part, bytes):
                    size += len(part)
                    await self._websocket.send(part)
        await _send_event(self._websocket, "audio.done", sentence_index=number, total_bytes=size, error=False)


async def _send_event(websocket: WebSocketSession, kind: str, **content: Any) -> None:
    await websocket.send(msgspec.json.encode({"type": kind, **content}).decode())


def _to_bytes(message: str | bytes) -> bytes:
    return message.encode() if isinstance(message, str) else message

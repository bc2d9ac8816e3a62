"""Realtime: a client and a model talk over one WebSocket, by turns, in speech or in text.

Events have the names of the GA API, and no others. Everything that is said is kept as text and sound in a
conversation of this call, and each answer is a `Chat` built from it: a model needs nothing but to take `Chat`, and
hears the client if it takes `Sound`. One whose route goes on with its client is told only what is new (see `thread`).
Who speaks when is heard by how loud it is; with `turn_detection: null` the client says so. What was not heard of an
answer is forgotten when the client truncates it. Nothing outlives the call.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import msgspec

from mstar.frontend.response_stream import RequestEnded
from mstar.media.vad import SAMPLE_RATE, pcm_to_samples
from mstar.requests import AudioInput, Transcript, TranscriptionRequest
from mstar.server.errors import ApiError
from mstar.server.http_exchange import parse_body
from mstar.server.realtime.config import ResponseConfig, ServerVad, SessionConfig, apply_update
from mstar.server.realtime.continuation import ChatContinuation
from mstar.server.realtime.conversation import Conversation, Item, new_id, parse_item
from mstar.server.realtime.input_audio_buffer import InputAudioBuffer
from mstar.server.realtime.response import RealtimeResponse
from mstar.server.state import ServedModel
from mstar.server.websocket_session import WebSocketSession
from mstar.wire import messages as m

MIN_COMMIT_MS = 100
"""So much sound makes an item at least."""


async def serve_realtime(websocket: WebSocketSession) -> None:
    """The whole of a call at /v1/realtime."""
    served = websocket.resolve_default_model()
    await websocket.accept()
    talk = RealtimeSession(websocket, served)
    try:
        await talk.send("session.created", session=talk.config.content)
        while True:
            await talk.dispatch(await websocket.receive())
    finally:
        talk.close()


class RealtimeSession:
    """One client's conversation with one model."""

    def __init__(self, websocket: WebSocketSession, served_model: ServedModel) -> None:
        self.config = SessionConfig(new_id("sess"), served_model.name)
        self.conversation = Conversation()
        self.continuation = ChatContinuation(websocket, served_model)
        self._websocket = websocket
        self._served_model = served_model
        self._response: RealtimeResponse | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._input_audio = InputAudioBuffer(self.config.turn_detection)
        self._next_item_id = new_id("item")
        """What the item will be called that is being said."""

    def close(self) -> None:
        """Want no more of what is under way."""
        if self._response is not None:
            self._response.cancel("")
        self.continuation.close()
        for task in self._tasks:
            task.cancel()

    async def send(self, kind: str, **fields: Any) -> None:
        """Tell the client something."""
        content = {"type": kind, "event_id": new_id("event"), **fields}
        await self._websocket.send(msgspec.json.encode(content).decode())

    async def dispatch(self, message: str | bytes) -> None:
        """Do what the client says, or tell it why not."""
        event: dict[str, Any] = {}
        try:
            event = _parse_event(message)
            act = _EVENT_HANDLERS.get(str(event.get("type")))
            if act is None:
                raise ApiError(400, "unknown_event", f"there are no events of type {event.get('type')!r}", param="type")
            await act(self, event)
        except ApiError as refusal:
            told = refusal.content["error"] | {"event_id": event.get("event_id")}
            await self.send("error", error=told)

    # ---------------------------------------------------------------- the session
    async def update(self, event: Mapping[str, Any]) -> None:
        """session.update."""
        before, self.config = self.config, apply_update(self.config, event.get("session"))
        if before.turn_detection != self.config.turn_detection:
            self._input_audio.set_turn_detection(self.config.turn_detection)
        await self.send("session.updated", session=self.config.content)

    # ---------------------------------------------------------------- what the client says
    async def append(self, event: Mapping[str, Any]) -> None:
        """input_audio_buffer.append."""
        for heard in self._input_audio.append(_decode_pcm(event.get("audio"))):
            hears = self.config.turn_detection
            assert hears is not None, "somebody listens"
            await (self._on_speech_started if heard.is_start else self._on_speech_stopped)(heard.at_ms, hears)

    async def _on_speech_started(self, at_ms: int, turn_detection: ServerVad) -> None:
        self._input_audio.consume(at_ms - turn_detection.prefix_padding_ms)
        start_ms = self._input_audio.start_ms
        await self.send("input_audio_buffer.speech_started", audio_start_ms=start_ms, item_id=self._next_item_id)
        if turn_detection.interrupt_response:
            await self._interrupt("turn_detected")

    async def _on_speech_stopped(self, at_ms: int, turn_detection: ServerVad) -> None:
        await self.send("input_audio_buffer.speech_stopped", audio_end_ms=at_ms, item_id=self._next_item_id)
        await self._commit(at_ms)
        if turn_detection.create_response and (self._response is None or self._response.is_done):
            await self._start_response(ResponseConfig())

    async def commit(self, _: Mapping[str, Any]) -> None:
        """input_audio_buffer.commit."""
        waiting_ms = self._input_audio.end_ms - self._input_audio.start_ms
        if waiting_ms < MIN_COMMIT_MS:
            what = f"{waiting_ms} ms of sound are there, and {MIN_COMMIT_MS} ms are needed"
            raise ApiError(400, "input_audio_buffer_commit_empty", what)
        await self._commit(self._input_audio.end_ms)
        self._input_audio.set_turn_detection(self.config.turn_detection)

    async def _commit(self, until_ms: int) -> None:
        """Make an item of what was said until a moment."""
        item = Item(self._next_item_id, "user", [_to_audio_input(self._input_audio.consume(until_ms))])
        self._next_item_id = new_id("item")
        before = self.conversation.add(item)
        await self.send("input_audio_buffer.committed", item_id=item.id, previous_item_id=before)
        await self._announce_item(item, before)
        if self.config.transcription_model is not None:
            task = asyncio.create_task(_transcribe(self, self._websocket, item, self.config.transcription_model))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def clear(self, _: Mapping[str, Any]) -> None:
        """input_audio_buffer.clear."""
        self._input_audio.consume(self._input_audio.end_ms)
        self._input_audio.set_turn_detection(self.config.turn_detection)
        await self.send("input_audio_buffer.cleared")

    # ---------------------------------------------------------------- the conversation
    async def _announce_item(self, item: Item, before: str | None) -> None:
        for kind in ("added", "done"):
            await self.send(f"conversation.item.{kind}", previous_item_id=before, item=item.payload)

    async def create(self, event: Mapping[str, Any]) -> None:
        """conversation.item.create."""
        told = event.get("item")
        fields = cast("dict[str, Any]", told) if isinstance(told, dict) else {}
        item = parse_item(fields, lambda audio: _to_audio_input(_decode_pcm(audio)))
        before = self.conversation.add(item, event.get("previous_item_id"))
        await self._announce_item(item, before)

    async def retrieve(self, event: Mapping[str, Any]) -> None:
        """conversation.item.retrieve."""
        await self.send("conversation.item.retrieved", item=self.conversation.find(str(event.get("item_id"))).payload)

    async def delete(self, event: Mapping[str, Any]) -> None:
        """conversation.item.delete."""
        name = str(event.get("item_id"))
        self.conversation.delete(name)
        await self.send("conversation.item.deleted", item_id=name)

    async def truncate(self, event: Mapping[str, Any]) -> None:
        """conversation.item.truncate: the client played an answer only so far."""
        end_ms = event.get("audio_end_ms")
        if type(end_ms) is not int or end_ms < 0:
            raise ApiError(400, "invalid_value", f"audio_end_ms is {end_ms!r}, and 0 or more is needed")
        item = self.conversation.find(str(event.get("item_id")))
        item.truncate(end_ms)
        await self.send("conversation.item.truncated", item_id=item.id, content_index=0, audio_end_ms=end_ms)

    # ---------------------------------------------------------------- answers
    async def respond(self, event: Mapping[str, Any]) -> None:
        """response.create."""
        wish = parse_body(ResponseConfig, msgspec.json.encode(event.get("response") or {}))
        if self._response is not None and not self._response.is_done:
            raise ApiError(400, "conversation_already_has_active_response", "an answer is being given; cancel it first")
        await self._start_response(wish)

    async def _start_response(self, params: ResponseConfig) -> None:
        answering = RealtimeResponse(self, self._websocket, self._served_model, params)
        await answering.start()
        self._response = answering

    async def cancel(self, _: Mapping[str, Any]) -> None:
        """response.cancel."""
        if self._response is None or self._response.is_done:
            raise ApiError(400, "response_cancel_not_active", "no answer is being given")
        await self._interrupt("client_cancelled")

    async def _interrupt(self, reason: str) -> None:
        if self._response is not None:
            self._response.cancel(reason)
            await self._response.wait_done()


async def _transcribe(session: RealtimeSession, websocket: WebSocketSession, item: Item, model: str) -> None:
    """Have what was said written down, for the client to see."""
    kind, where = "conversation.item.input_audio_transcription", {"item_id": item.id, "content_index": 0}
    served, sound = websocket.state.served_models.get(model), item.parts[0]
    assert isinstance(sound, AudioInput), "it was just said"
    try:
        if served is None or TranscriptionRequest not in served.accepted_types:
            raise ApiError(404, "model_not_found", f"no model `{model}` writes down what is said", param="model")
        with websocket.start_requests(served, TranscriptionRequest(sound)) as live:
            async for news in live:
                if isinstance(news, RequestEnded) and isinstance(news.end, m.RequestFinished):
                    item.transcript = cast("Transcript", news.end.result.content).text
    except ApiError as refusal:
        await session.send(f"{kind}.failed", **where, error=refusal.content["error"])
        return
    usage = {"type": "duration", "seconds": len(sound.samples) / sound.rate}
    await session.send(f"{kind}.completed", **where, transcript=item.transcript or "", usage=usage)


_EVENT_HANDLERS: Mapping[str, Callable[[RealtimeSession, Mapping[str, Any]], Awaitable[None]]] = {
    "session.update": RealtimeSession.update,
    "input_audio_buffer.append": RealtimeSession.append,
    "input_audio_buffer.commit": RealtimeSession.commit,
    "input_audio_buffer.clear": RealtimeSession.clear,
    "conversation.item.create": RealtimeSession.create,
    "conversation.item.retrieve": RealtimeSession.retrieve,
    "conversation.item.delete": RealtimeSession.delete,
    "conversation.item.truncate": RealtimeSession.truncate,
    "response.create": RealtimeSession.respond,
    "response.cancel": RealtimeSession.cancel,
}


def _parse_event(message: str | bytes) -> dict[str, Any]:
    try:
        event = msgspec.json.decode(message)
    except (msgspec.DecodeError, RecursionError):
        event = None
    if not isinstance(event, dict):
        raise ApiError(400, "invalid_json", "an event is an object in JSON")
    return cast("dict[str, Any]", event)


def _to_audio_input(pcm: bytes) -> AudioInput:
    return AudioInput(pcm_to_samples(pcm), SAMPLE_RATE)


def _decode_pcm(encoded: Any) -> bytes:
    """Sound as clients send it."""
    try:
        pcm = b64decode(encoded, validate=True)
    except (TypeError, ValueError):
        pcm = b"?"
    if len(pcm) % 2:
        raise ApiError(400, "invalid_value", "audio is 16-bit samples in base64", param="audio")
    return pcm

"""OpenAI Realtime API over a WebSocket (`/v1/realtime`): a voice or text conversation, turn by turn.

Events have the names of OpenAI's GA version; beta names are not accepted. The session keeps the conversation, and each
response is a `ChatRequest` built from it, so any chat model works; `AudioInput` parts carry the user's speech.
Multi-turn routes get only what is new (see `continuation`). Turns are detected by a voice activity detector
(`server_vad`), by a model (`semantic_vad`), or by the client with `turn_detection: null`. Speech of the user interrupts
a response (barge-in).
A transcription session has no responses (see `input_transcription`). Nothing outlives the session, but a session can
outlive its connection (see `event_outbox`), and with a backup its server (see `backup`).
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import msgspec

from mstar.media.vad import SAMPLE_RATE, pcm_to_samples
from mstar.requests import AudioInput
from mstar.server.errors import ApiError
from mstar.server.http_exchange import parse_body
from mstar.server.realtime.audio_format import InputDecoder, check_formats
from mstar.server.realtime.config import ResponseConfig, SemanticVad, ServerVad, SessionConfig, apply_update
from mstar.server.realtime.continuation import ChatContinuation
from mstar.server.realtime.conversation import Conversation, Item, new_id, parse_item
from mstar.server.realtime.event_outbox import EventOutbox
from mstar.server.realtime.input_audio_buffer import InputAudioBuffer
from mstar.server.realtime.input_transcription import InputTranscriber
from mstar.server.realtime.response import RealtimeResponse, ResponseContext
from mstar.server.realtime.response_seeds import ResponseSeeds
from mstar.server.realtime.semantic_turns import TurnContext
from mstar.server.realtime.turn_predictor import TurnPredictor
from mstar.server.state import ServedModel
from mstar.server.unexpected_errors import report_exception
from mstar.server.websocket_session import WebSocketSession

MIN_COMMIT_MS = 100
"""Minimum milliseconds of audio in `input_audio_buffer.commit`."""


class RealtimeSession:
    """Session of one client with one model: handles client events, sends server events."""

    def __init__(self, websocket: WebSocketSession, served_model: ServedModel, config: SessionConfig) -> None:
        self.config = config
        memory = websocket.memory
        self.conversation, self.seeds = Conversation(memory), ResponseSeeds()
        self._continuation = ChatContinuation(websocket, served_model)
        self.outbox = EventOutbox(websocket, config.session_id, lambda: self.config.content)
        self.transcriber = InputTranscriber(websocket, self.send, self.outbox)
        report = functools.partial(report_exception, state=websocket.state, context=websocket.context)
        self._clock: Callable[[], float] = lambda: websocket.connected_time
        self.response_context = ResponseContext(
            report, served_model, self.conversation, self._continuation, self.send, self.seeds, self._clock, self.outbox
        )
        self.response: RealtimeResponse | None = None
        self._decoder = InputDecoder(config.input_format)
        self._turn_predictor = TurnPredictor(websocket, served_model)
        turn_context = TurnContext(
            self._turn_predictor.predict, lambda: _is_assistant_speaking(self.response, self._clock())
        )
        self.input_audio = InputAudioBuffer(self.config.turn_detection, memory, turn_context)
        self.next_item_id = new_id("item")
        """Id of the item that the buffered audio will become; VAD events announce it."""
        self.handled_messages = 0
        """Messages of the client that were handled completely, over all servers."""

    def close(self) -> None:
        """Cancel the response, the open request and running transcriptions, and end the delivery of events."""
        if self.response is not None:
            self.response.cancel("")
        self._continuation.close()
        self.transcriber.close()
        self.outbox.close()

    async def send(self, kind: str, **fields: Any) -> None:
        """Send one event to the client."""
        content = {"type": kind, "event_id": new_id("event"), **fields}
        await self.outbox.send(content["event_id"], msgspec.json.encode(content))

    async def dispatch(self, message: str | bytes) -> None:
        """Handle one client event; an ApiError becomes an `error` event, and the session continues."""
        event: dict[str, Any] = {}
        try:
            event = _parse_event(message)
            handler = _EVENT_HANDLERS.get(str(event.get("type")))
            if handler is None:
                kind = str(event.get("type"))[:64]
                reason = f"type: unknown event {kind!r}. fix: use an event of the OpenAI Realtime API (GA)"
                raise ApiError(400, "unknown_event", reason, param="type")
            await handler(self, event)
        except ApiError as error:
            await self.send("error", error=error.content["error"] | {"event_id": event.get("event_id")})

    # ---------------------------------------------------------------- session
    async def update(self, event: Mapping[str, Any]) -> None:
        """session.update."""
        previous, config = self.config, apply_update(self.config, event.get("session"))
        check_formats(config)
        if isinstance(config.turn_detection, SemanticVad):
            self._turn_predictor.find_model()
        self.config = config
        if previous.input_format != self.config.input_format:
            self._decoder = InputDecoder(self.config.input_format)
        if previous.turn_detection != self.config.turn_detection:
            self.input_audio.set_turn_detection(self.config.turn_detection)
            self.transcriber.clear()
        await self.send("session.updated", session=self.config.content)

    # ---------------------------------------------------------------- input_audio_buffer
    async def append(self, event: Mapping[str, Any]) -> None:
        """input_audio_buffer.append."""
        async for edge in self.input_audio.append(self._decoder.decode(event.get("audio"))):
            turn_detection = self.config.turn_detection
            assert turn_detection is not None, "the buffer detects speech only with turn detection"
            handler = self._on_speech_started if edge.is_start else self._on_speech_stopped
            await handler(edge.at_ms, turn_detection)
        self.transcriber.update(self.config, self.input_audio, self.next_item_id)

    async def _on_speech_started(self, at_ms: int, turn_detection: ServerVad | SemanticVad) -> None:
        self.input_audio.consume(at_ms - turn_detection.prefix_padding_ms)
        start_ms = self.input_audio.start_ms
        await self.send("input_audio_buffer.speech_started", audio_start_ms=start_ms, item_id=self.next_item_id)
        if turn_detection.interrupt_response and self.response is not None:
            now = self._clock()  # the end of the response can take a moment
            await self._interrupt("turn_detected")
            await self.response.cut_unplayed(now)

    async def _on_speech_stopped(self, at_ms: int, turn_detection: ServerVad | SemanticVad) -> None:
        await self.send("input_audio_buffer.speech_stopped", audio_end_ms=at_ms, item_id=self.next_item_id)
        await self._commit(at_ms)
        if self.config.is_transcription:
            return
        if turn_detection.create_response and (self.response is None or self.response.is_done):
            await self._start_response(ResponseConfig())

    async def commit(self, _: Mapping[str, Any]) -> None:
        """input_audio_buffer.commit."""
        self.input_audio.add(self._decoder.flush())
        buffered_ms = self.input_audio.end_ms - self.input_audio.start_ms
        if buffered_ms < MIN_COMMIT_MS:
            message = (
                f"the input audio buffer holds {buffered_ms} ms, a commit needs {MIN_COMMIT_MS} ms. "
                "fix: append more audio"
            )
            raise ApiError(400, "input_audio_buffer_commit_empty", message)
        await self._commit(self.input_audio.end_ms)
        self.input_audio.set_turn_detection(self.config.turn_detection)

    async def _commit(self, until_ms: int) -> None:
        """Turn the audio before a position into a user item."""
        item = Item(self.next_item_id, "user", [_to_audio_input(self.input_audio.consume(until_ms))])
        self.next_item_id = new_id("item")
        previous = self.conversation.add(item)
        await self.send("input_audio_buffer.committed", item_id=item.id, previous_item_id=previous)
        await self._announce_item(item, previous)
        self.transcriber.commit(self.config, item)
        if self.config.is_transcription:  # a session of hours would not fit into the limits of a conversation
            for old in self.conversation.items[:-1]:
                self.conversation.delete(old.id)

    async def clear(self, _: Mapping[str, Any]) -> None:
        """input_audio_buffer.clear."""
        self.input_audio.consume(self.input_audio.end_ms)
        self._decoder.flush()
        self.transcriber.clear()
        self.input_audio.set_turn_detection(self.config.turn_detection)
        await self.send("input_audio_buffer.cleared")

    # ---------------------------------------------------------------- conversation
    async def _announce_item(self, item: Item, previous: str | None) -> None:
        for kind in ("added", "done"):
            await self.send(f"conversation.item.{kind}", previous_item_id=previous, item=item.payload)

    async def create(self, event: Mapping[str, Any]) -> None:
        """conversation.item.create."""
        payload = event.get("item")
        fields = cast("dict[str, Any]", payload) if isinstance(payload, dict) else {}
        decoder = InputDecoder(self.config.input_format)
        item = parse_item(fields, lambda audio: _to_audio_input(decoder.decode(audio) + decoder.flush()))
        previous = self.conversation.add(item, event.get("previous_item_id"))
        await self._announce_item(item, previous)

    async def retrieve(self, event: Mapping[str, Any]) -> None:
        """conversation.item.retrieve."""
        item = self.conversation.find(str(event.get("item_id")))
        await self.send("conversation.item.retrieved", item=item.payload)

    async def delete(self, event: Mapping[str, Any]) -> None:
        """conversation.item.delete."""
        item_id = str(event.get("item_id"))
        self.conversation.delete(item_id)
        await self.send("conversation.item.deleted", item_id=item_id)

    async def truncate(self, event: Mapping[str, Any]) -> None:
        """conversation.item.truncate: the client stopped playback at `audio_end_ms`."""
        end_ms = event.get("audio_end_ms")
        if type(end_ms) is not int or end_ms < 0:
            message = f"audio_end_ms: {str(end_ms)[:64]!r} is not valid. fix: send an integer of 0 or more"
            raise ApiError(400, "invalid_value", message, param="audio_end_ms")
        item = self.conversation.find(str(event.get("item_id")))
        item.truncate(end_ms)
        await self.send("conversation.item.truncated", item_id=item.id, content_index=0, audio_end_ms=end_ms)

    # ---------------------------------------------------------------- response
    async def respond(self, event: Mapping[str, Any]) -> None:
        """response.create."""
        config = parse_body(ResponseConfig, msgspec.json.encode(event.get("response") or {}))
        if self.response is not None and not self.response.is_done:
            message = "a response is in progress. fix: wait for response.done or send response.cancel first"
            raise ApiError(400, "conversation_already_has_active_response", message)
        await self._start_response(config)

    async def _start_response(self, config: ResponseConfig) -> None:
        response = RealtimeResponse(self.response_context, self.config.settings, config)
        await response.start()
        self.response = response

    async def cancel(self, _: Mapping[str, Any]) -> None:
        """response.cancel."""
        if self.response is None or self.response.is_done:
            message = "no response is in progress. fix: cancel only between response.created and response.done"
            raise ApiError(400, "response_cancel_not_active", message)
        await self._interrupt("client_cancelled")

    async def _interrupt(self, reason: str) -> None:
        if self.response is not None:
            self.response.cancel(reason)
            await self.response.wait_done()


def _is_assistant_speaking(response: RealtimeResponse | None, now: float) -> bool:
    """Whether a response is in progress, or a client that plays audio as it arrives still plays it."""
    if response is None or response.cancel_reason:
        return False
    return not response.is_done or now < response.playback_ends_at


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
        raise ApiError(400, "invalid_json", "the message is not a JSON object. fix: send each event as one JSON object")
    return cast("dict[str, Any]", event)


def _to_audio_input(pcm: bytes) -> AudioInput:
    return AudioInput(pcm_to_samples(pcm), SAMPLE_RATE)

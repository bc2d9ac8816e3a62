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

from mstar.asks import Sound, Transcript, Transcription
from mstar.media.ears import RATE, samples_of_pcm
from mstar.server.answering import Answering
from mstar.server.calls import Call
from mstar.server.conversation import Conversation, Item, item_of, new_id
from mstar.server.door import Served
from mstar.server.listening import Listening
from mstar.server.live import Ended
from mstar.server.refusals import Refusal
from mstar.server.session import ResponseWish, ServerVad, Session, changed
from mstar.server.thread import Thread
from mstar.server.visit import validated
from mstar.wire import messages as m

LEAST_MS = 100
"""So much sound makes an item at least."""


async def converse(call: Call) -> None:
    """The whole of a call at /v1/realtime."""
    served = call.find_only()
    await call.accept()
    talk = Talk(call, served)
    try:
        await talk.send("session.created", session=talk.session.content)
        while True:
            await talk.obey(await call.heard())
    finally:
        talk.close()


class Talk:
    """One client's conversation with one model."""

    def __init__(self, call: Call, served: Served) -> None:
        self.session = Session(new_id("sess"), served.name)
        self.conversation = Conversation()
        self.thread = Thread(call, served)
        self._call = call
        self._served = served
        self._answering: Answering | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._listening = Listening(self.session.turn_detection)
        self._next = new_id("item")
        """What the item will be called that is being said."""

    def close(self) -> None:
        """Want no more of what is under way."""
        if self._answering is not None:
            self._answering.stop("")
        self.thread.close()
        for task in self._tasks:
            task.cancel()

    async def send(self, kind: str, **fields: Any) -> None:
        """Tell the client something."""
        content = {"type": kind, "event_id": new_id("event"), **fields}
        await self._call.tell(msgspec.json.encode(content).decode())

    async def obey(self, heard: str | bytes) -> None:
        """Do what the client says, or tell it why not."""
        event: dict[str, Any] = {}
        try:
            event = _event(heard)
            act = _ACTS.get(str(event.get("type")))
            if act is None:
                raise Refusal(400, "unknown_event", f"there are no events of type {event.get('type')!r}", param="type")
            await act(self, event)
        except Refusal as refusal:
            told = refusal.content["error"] | {"event_id": event.get("event_id")}
            await self.send("error", error=told)

    # ---------------------------------------------------------------- the session
    async def update(self, event: Mapping[str, Any]) -> None:
        """session.update."""
        before, self.session = self.session, changed(self.session, event.get("session"))
        if before.turn_detection != self.session.turn_detection:
            self._listening.turn_to(self.session.turn_detection)
        await self.send("session.updated", session=self.session.content)

    # ---------------------------------------------------------------- what the client says
    async def append(self, event: Mapping[str, Any]) -> None:
        """input_audio_buffer.append."""
        for heard in self._listening.append(_pcm(event.get("audio"))):
            hears = self.session.turn_detection
            assert hears is not None, "somebody listens"
            await (self._started if heard.is_start else self._stopped)(heard.at_ms, hears)

    async def _started(self, at_ms: int, hears: ServerVad) -> None:
        self._listening.forget(at_ms - hears.prefix_padding_ms)
        start_ms = self._listening.start_ms
        await self.send("input_audio_buffer.speech_started", audio_start_ms=start_ms, item_id=self._next)
        if hears.interrupt_response:
            await self._interrupt("turn_detected")

    async def _stopped(self, at_ms: int, hears: ServerVad) -> None:
        await self.send("input_audio_buffer.speech_stopped", audio_end_ms=at_ms, item_id=self._next)
        await self._commit(at_ms)
        if hears.create_response and (self._answering is None or self._answering.is_over):
            await self._answer(ResponseWish())

    async def commit(self, _: Mapping[str, Any]) -> None:
        """input_audio_buffer.commit."""
        waiting_ms = self._listening.now_ms - self._listening.start_ms
        if waiting_ms < LEAST_MS:
            what = f"{waiting_ms} ms of sound are there, and {LEAST_MS} ms are needed"
            raise Refusal(400, "input_audio_buffer_commit_empty", what)
        await self._commit(self._listening.now_ms)
        self._listening.turn_to(self.session.turn_detection)

    async def _commit(self, until_ms: int) -> None:
        """Make an item of what was said until a moment."""
        item = Item(self._next, "user", [_sound(self._listening.forget(until_ms))])
        self._next = new_id("item")
        before = self.conversation.add(item)
        await self.send("input_audio_buffer.committed", item_id=item.id, previous_item_id=before)
        await self._tell(item, before)
        if self.session.transcriber is not None:
            task = asyncio.create_task(_transcribe(self, self._call, item, self.session.transcriber))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def clear(self, _: Mapping[str, Any]) -> None:
        """input_audio_buffer.clear."""
        self._listening.forget(self._listening.now_ms)
        self._listening.turn_to(self.session.turn_detection)
        await self.send("input_audio_buffer.cleared")

    # ---------------------------------------------------------------- the conversation
    async def _tell(self, item: Item, before: str | None) -> None:
        for kind in ("added", "done"):
            await self.send(f"conversation.item.{kind}", previous_item_id=before, item=item.content)

    async def create(self, event: Mapping[str, Any]) -> None:
        """conversation.item.create."""
        told = event.get("item")
        fields = cast("dict[str, Any]", told) if isinstance(told, dict) else {}
        item = item_of(fields, lambda audio: _sound(_pcm(audio)))
        before = self.conversation.add(item, event.get("previous_item_id"))
        await self._tell(item, before)

    async def retrieve(self, event: Mapping[str, Any]) -> None:
        """conversation.item.retrieve."""
        await self.send("conversation.item.retrieved", item=self.conversation.find(str(event.get("item_id"))).content)

    async def delete(self, event: Mapping[str, Any]) -> None:
        """conversation.item.delete."""
        name = str(event.get("item_id"))
        self.conversation.delete(name)
        await self.send("conversation.item.deleted", item_id=name)

    async def truncate(self, event: Mapping[str, Any]) -> None:
        """conversation.item.truncate: the client played an answer only so far."""
        end_ms = event.get("audio_end_ms")
        if type(end_ms) is not int or end_ms < 0:
            raise Refusal(400, "invalid_value", f"audio_end_ms is {end_ms!r}, and 0 or more is needed")
        item = self.conversation.find(str(event.get("item_id")))
        item.cut(end_ms)
        await self.send("conversation.item.truncated", item_id=item.id, content_index=0, audio_end_ms=end_ms)

    # ---------------------------------------------------------------- answers
    async def respond(self, event: Mapping[str, Any]) -> None:
        """response.create."""
        wish = validated(ResponseWish, msgspec.json.encode(event.get("response") or {}))
        if self._answering is not None and not self._answering.is_over:
            raise Refusal(400, "conversation_already_has_active_response", "an answer is being given; cancel it first")
        await self._answer(wish)

    async def _answer(self, wish: ResponseWish) -> None:
        answering = Answering(self, self._call, self._served, wish)
        await answering.begin()
        self._answering = answering

    async def cancel(self, _: Mapping[str, Any]) -> None:
        """response.cancel."""
        if self._answering is None or self._answering.is_over:
            raise Refusal(400, "response_cancel_not_active", "no answer is being given")
        await self._interrupt("client_cancelled")

    async def _interrupt(self, reason: str) -> None:
        if self._answering is not None:
            self._answering.stop(reason)
            await self._answering.ended()


async def _transcribe(talk: Talk, call: Call, item: Item, model: str) -> None:
    """Have what was said written down, for the client to see."""
    kind, where = "conversation.item.input_audio_transcription", {"item_id": item.id, "content_index": 0}
    served, sound = call.door.served.get(model), item.parts[0]
    assert isinstance(sound, Sound), "it was just said"
    try:
        if served is None or Transcription not in served.takes:
            raise Refusal(404, "model_not_found", f"no model `{model}` writes down what is said", param="model")
        with call.opened(served, Transcription(sound)) as live:
            async for news in live:
                if isinstance(news, Ended) and isinstance(news.end, m.Finished):
                    item.transcript = cast("Transcript", news.end.result.it).text
    except Refusal as refusal:
        await talk.send(f"{kind}.failed", **where, error=refusal.content["error"])
        return
    usage = {"type": "duration", "seconds": len(sound.samples) / sound.rate}
    await talk.send(f"{kind}.completed", **where, transcript=item.transcript or "", usage=usage)


_ACTS: Mapping[str, Callable[[Talk, Mapping[str, Any]], Awaitable[None]]] = {
    "session.update": Talk.update,
    "input_audio_buffer.append": Talk.append,
    "input_audio_buffer.commit": Talk.commit,
    "input_audio_buffer.clear": Talk.clear,
    "conversation.item.create": Talk.create,
    "conversation.item.retrieve": Talk.retrieve,
    "conversation.item.delete": Talk.delete,
    "conversation.item.truncate": Talk.truncate,
    "response.create": Talk.respond,
    "response.cancel": Talk.cancel,
}


def _event(heard: str | bytes) -> dict[str, Any]:
    try:
        event = msgspec.json.decode(heard)
    except (msgspec.DecodeError, RecursionError):
        event = None
    if not isinstance(event, dict):
        raise Refusal(400, "invalid_json", "an event is an object in JSON")
    return cast("dict[str, Any]", event)


def _sound(pcm: bytes) -> Sound:
    return Sound(samples_of_pcm(pcm), RATE)


def _pcm(coded: Any) -> bytes:
    """Sound as clients send it."""
    try:
        pcm = b64decode(coded, validate=True)
    except (TypeError, ValueError):
        pcm = b"?"
    if len(pcm) % 2:
        raise Refusal(400, "invalid_value", "audio is 16-bit samples in base64", param="audio")
    return pcm

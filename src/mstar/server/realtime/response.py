"""One response of a realtime session (OpenAI `response.*` events).

Builds a `ChatRequest` from the conversation and forwards its text and audio as events until it finishes or is
cancelled. The session decides when a response starts.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import msgspec

from mstar.frontend.response_stream import Deliver, ResponseStream
from mstar.media.audio import AudioStreamEncoder
from mstar.media.vad import SAMPLE_RATE
from mstar.requests import ChatRequest, Finish, ToolCall
from mstar.server.errors import ApiError
from mstar.server.http_exchange import parse_body
from mstar.server.openai.chat import DEFAULT_MAX_TOKENS
from mstar.server.openai.completion import tool_call_id
from mstar.server.openai.detokenizer import IncrementalDetokenizer
from mstar.server.openai.speech import resolve_voice
from mstar.server.realtime.audio_format import OutputEncoder
from mstar.server.realtime.config import ResponseConfig, SessionSettings, to_tools
from mstar.server.realtime.continuation import ChatContinuation
from mstar.server.realtime.conversation import PCM_BYTES_PER_MS, Conversation, Item, new_id, to_messages
from mstar.server.realtime.output_position import Mark, OutputPosition
from mstar.server.realtime.response_seeds import ResponseSeeds
from mstar.server.state import ServedModel

_AUDIO_DELTA = "response.output_audio.delta"


class EventSender(Protocol):
    """Sends one event to the client of the session."""

    async def __call__(self, kind: str, **fields: Any) -> None:
        """Send an event of a type with further fields."""
        ...


@dataclass(frozen=True, slots=True)
class ResponseContext:
    """What a response uses of its session."""

    report_exception: Callable[[Exception], ApiError]
    """Logs an unexpected exception, and returns the error for the client."""
    served_model: ServedModel
    conversation: Conversation
    continuation: ChatContinuation
    send_event: EventSender
    seeds: ResponseSeeds
    clock: Callable[[], float]
    """Time of the client's playback: it stands still while the connection is lost."""
    step: AbstractAsyncContextManager[None]
    """Makes changes and their events one step of the session, for its backup."""


class SavedResponse(msgspec.Struct, frozen=True, kw_only=True):
    """What does not change in a response, so that another server can generate it again."""

    id: str
    item_id: str
    previous_item_id: str | None
    settings: dict[str, Any]
    config: dict[str, Any]
    context_items: list[str]
    """Ids of the items before it."""
    seeds_drawn: int
    """Seeds that the session had drawn before it."""


class ResponseProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a response is."""

    marks: dict[str, Mark] = {}
    is_done: bool = False
    """Whether `response.done` was sent."""
    cancel_reason: str = ""
    is_cut: bool = False
    unplayed_s: float = 0.0
    """Seconds of audio that a client that plays it as it arrives has still to play."""


class RealtimeResponse:
    """A response that is in progress or done."""

    def __init__(self, context: ResponseContext, settings: SessionSettings, config: ResponseConfig) -> None:
        self._context = context
        self._settings = settings
        self._config = config
        self._audio_output = (config.output_modalities or settings.output_modalities) == ["audio"]
        self._text_event = "output_audio_transcript" if self._audio_output else "output_text"
        self._audio_encoder = AudioStreamEncoder("pcm", SAMPLE_RATE)
        self._output_encoder = OutputEncoder(settings.audio.output.format)
        self._detokenizer = IncrementalDetokenizer(context.served_model.model.detokenize)
        self._instructions = settings.instructions if config.instructions is None else config.instructions
        self.cancel_reason = ""
        """Why the response was canceled; empty if it was not."""
        self._finish: Finish | None = None
        self._id = new_id("resp")
        self._item = Item(new_id("item"), "assistant", is_audio=self._audio_output, status="in_progress")
        self._previous_item_id: str | None = None
        self._output_items = [self._item]
        self._context_items: list[str] = []
        self._seeds_drawn = 0
        self._outputs = OutputPosition()
        self._is_done_sent = False
        self._task: asyncio.Task[None] | None = None
        self.playback_ends_at = 0.0
        """Time at which a client that plays the audio as it arrives has played all that was sent."""
        self._is_cut = False

    @property
    def is_done(self) -> bool:
        """Whether `response.done` was sent."""
        return self._task is None or self._task.done()

    async def start(self) -> None:
        """Start generating in a task. Raises ApiError."""
        items = list(self._context.conversation.items)
        self._context_items, self._seeds_drawn = [item.id for item in items], self._context.seeds.count
        chat = self._build_chat_request(items)
        self._previous_item_id = self._context.conversation.add(self._item)
        self._task = asyncio.create_task(self._run(chat, items, is_new=True))
        await asyncio.sleep(0)  # a task that is cancelled before it runs would send no response.done

    # ---------------------------------------------------------------- backup
    def save(self) -> SavedResponse:
        """What another server needs to generate it again."""
        return SavedResponse(
            id=self._id,
            item_id=self._item.id,
            previous_item_id=self._previous_item_id,
            settings=self._settings.model_dump(),
            config=self._config.model_dump(),
            context_items=self._context_items,
            seeds_drawn=self._seeds_drawn,
        )

    @property
    def progress(self) -> ResponseProgress:
        """How far it is."""
        return ResponseProgress(
            marks={} if self._is_done_sent else self._outputs.marks,
            is_done=self._is_done_sent,
            cancel_reason=self.cancel_reason,
            is_cut=self._is_cut,
            unplayed_s=max(0.0, self.playback_ends_at - self._context.clock()),
        )

    @classmethod
    def restore(cls, context: ResponseContext, saved: SavedResponse, progress: ResponseProgress) -> RealtimeResponse:
        """A response of another server, whose item is in the conversation. It is generated again, to send the rest."""
        settings = parse_body(SessionSettings, msgspec.json.encode(saved.settings))
        response = cls(context, settings, parse_body(ResponseConfig, msgspec.json.encode(saved.config)))
        response._id, response._previous_item_id = saved.id, saved.previous_item_id
        response._context_items, response._seeds_drawn = saved.context_items, saved.seeds_drawn
        response._item = item = context.conversation.find(saved.item_id)
        response._output_items = [item]
        response._outputs, response._is_done_sent = OutputPosition(progress.marks), progress.is_done
        response.cancel_reason, response._is_cut = progress.cancel_reason, progress.is_cut
        response.playback_ends_at = context.clock() + progress.unplayed_s
        if not progress.is_done:
            item.status = "in_progress"
            items = [one for one in context.conversation.items if one.id in {*saved.context_items}]
            drawn, context.seeds.count = context.seeds.count, saved.seeds_drawn
            chat = response._build_chat_request(items)
            context.seeds.count = drawn
            response._task = asyncio.create_task(response._run(chat, items, is_new=False))
        return response

    # ---------------------------------------------------------------- end
    def cancel(self, reason: str) -> None:
        """Cancel the response. With an empty reason no event is sent: the client has disconnected."""
        if self._task is not None and not self._task.done():
            self.cancel_reason = self.cancel_reason or reason
            self._task.cancel()

    async def wait_done(self) -> None:
        """Wait until `response.done` was sent."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def cut_unplayed(self, now: float) -> None:
        """Cut the text after the last word that can have been played by `now`, when the user began to speak.

        The client knows better what it played: its own `conversation.item.truncate` replaces this cut. Models without
        word timestamps are not cut.
        """
        item, unplayed_s = self._item, self.playback_ends_at - now
        is_played = unplayed_s <= 0 and item.status == "completed"
        if self._is_cut or item.is_truncated or is_played or not item.words:
            return
        self._is_cut = True
        played_ms = max(0, item.audio_ms - round(1000 * max(0.0, unplayed_s)))
        item.cut_text(played_ms)
        await self._send("conversation.item.truncated", item_id=item.id, content_index=0, audio_end_ms=played_ms)

    # ---------------------------------------------------------------- request
    def _build_chat_request(self, items: Sequence[Item]) -> ChatRequest:
        config, settings = self._config, self._settings
        limit = config.max_output_tokens or settings.max_output_tokens
        max_tokens = DEFAULT_MAX_TOKENS if limit == "inf" else limit
        tools = () if settings.tool_choice == "none" else settings.tools if config.tools is None else config.tools
        return ChatRequest(
            to_messages(items, self._instructions),
            self._context.served_model.sampling(self._context.seeds.next, max_tokens=max_tokens),
            to_tools(list(tools)),
            self._audio_output,
            resolve_voice(settings.audio.output.voice, self._context.served_model),
        )

    # ---------------------------------------------------------------- events
    async def _run(self, chat: ChatRequest, items: Sequence[Item], *, is_new: bool) -> None:
        status, details = "completed", dict[str, Any]()
        try:
            if is_new:
                await self._send_created()
            if self.cancel_reason:  # another server was lost before it had sent the end
                raise asyncio.CancelledError
            await self._forward_outputs(self._context.continuation.request_turn(chat, items, self._instructions))
            if self._finish is not None and self._finish.finish_reason == "length":
                status, details = "incomplete", {"reason": "max_output_tokens"}
        except asyncio.CancelledError:
            if not self.cancel_reason:
                raise
            status, details = "cancelled", {"reason": self.cancel_reason}
        except ApiError as error:
            status, details = "failed", {"error": error.content["error"]}
        except Exception as error:  # noqa: BLE001 - any other exception is reported
            status, details = "failed", {"error": self._context.report_exception(error).content["error"]}
        async with self._context.step:
            self._is_done_sent = True
            await self._send_done(status, details)
        if status == "cancelled":
            await self._context.continuation.interrupt()

    async def _send_created(self) -> None:
        async with self._context.step:
            added = {"previous_item_id": self._previous_item_id, "item": self._item.payload}
            await self._send("response.created", response=self._response_payload("in_progress", {}))
            await self._send("response.output_item.added", output_index=0, item=self._item.payload)
            await self._send("conversation.item.added", **added)
            await self._send_content_event("response.content_part.added", part=_content_part(self._item))

    async def _forward_outputs(self, stream: ResponseStream) -> None:
        async for event in stream.turn():
            async with self._context.step:
                if event.kind == "Text":
                    await self._send_text(self._detokenizer.add(event.value))
                elif event.kind == "WordTimestamps" and self._audio_output:
                    if self._outputs.advance(event.kind, msgspec.msgpack.encode(event.value)):
                        self._item.words += event.value
                elif event.kind == "Audio" and self._audio_output:
                    await self._send_audio(_encode_pcm(self._audio_encoder.feed, event))
        self._finish = stream.result if isinstance(stream.result, Finish) else None
        async with self._context.step:
            await self._send_text(self._detokenizer.finish())
            await self._send_audio(self._audio_encoder.finish())
            audio = self._output_encoder.finish()
            if audio and self._outputs.advance("AudioEnd", audio):
                await self._send_content_event(_AUDIO_DELTA, delta=b64encode(audio).decode())
            self._outputs.check_complete()

    async def _send_text(self, text: str) -> None:
        if text and self._outputs.advance("Text", text.encode()):
            self._item.text += text
            await self._send_content_event(f"response.{self._text_event}.delta", delta=text)

    async def _send_audio(self, pcm: bytes) -> None:
        if not pcm:
            return
        encoded = self._output_encoder.encode(pcm)
        if self._outputs.advance("Audio", pcm):
            now = self._context.clock()
            self.playback_ends_at = max(now, self.playback_ends_at) + len(pcm) / PCM_BYTES_PER_MS / 1000
            self._item.add_audio(pcm)
            if encoded:
                await self._send_content_event(_AUDIO_DELTA, delta=b64encode(encoded).decode())

    async def _send_done(self, status: str, details: dict[str, Any]) -> None:
        item = self._item
        item.status = "completed" if status == "completed" else "incomplete"
        if self._audio_output:
            await self._send_content_event("response.output_audio.done")
        text = {"transcript" if self._audio_output else "text": item.text}
        await self._send_content_event(f"response.{self._text_event}.done", **text)
        await self._send_content_event("response.content_part.done", part=_content_part(self._item))
        await self._send("response.output_item.done", output_index=0, item=item.payload)
        await self._send("conversation.item.done", previous_item_id=self._previous_item_id, item=item.payload)
        for number, call in enumerate(self._finish.tool_calls if self._finish else ()):
            await self._send_tool_call(replace(call, id=call.id or tool_call_id(self._id, number)))
        await self._send("response.done", response=self._response_payload(status, details))

    async def _send_tool_call(self, call: ToolCall) -> None:
        item, index = Item(new_id("item"), "call", tool_call=call), len(self._output_items)
        self._output_items.append(item)
        previous = self._context.conversation.add(item)
        await self._send("response.output_item.added", output_index=index, item=item.payload)
        await self._send("conversation.item.added", previous_item_id=previous, item=item.payload)
        fields = {"item_id": item.id, "output_index": index, "call_id": call.id, "name": call.name}
        await self._send("response.function_call_arguments.done", **fields, arguments=call.arguments)
        await self._send("response.output_item.done", output_index=index, item=item.payload)
        await self._send("conversation.item.done", previous_item_id=previous, item=item.payload)

    # ---------------------------------------------------------------- payloads
    def _response_payload(self, status: str, details: dict[str, Any]) -> dict[str, Any]:
        is_done = status != "in_progress"
        return {
            "id": self._id,
            "object": "realtime.response",
            "status": status,
            "status_details": {"type": status, **details} if details else None,
            "output": [item.payload for item in self._output_items] if is_done else [],
            "output_modalities": ["audio" if self._audio_output else "text"],
            "usage": _usage(self._finish, self._detokenizer.token_count) if is_done else None,
        }

    async def _send_content_event(self, kind: str, **fields: Any) -> None:
        await self._send(kind, item_id=self._item.id, output_index=0, content_index=0, **fields)

    async def _send(self, kind: str, **fields: Any) -> None:
        if kind.startswith("response.") and "response" not in fields:
            fields["response_id"] = self._id
        await self._context.send_event(kind, **fields)


def _content_part(item: Item) -> dict[str, Any]:
    kind, text = ("audio", "transcript") if item.is_audio else ("text", "text")
    return {"type": kind, text: item.text}


def _encode_pcm(feed: Callable[[Any, int], bytes], output: Deliver) -> bytes:
    return feed(output.value, int(dict(output.clock)["rate"]))


def _usage(finish: Finish | None, output_tokens: int) -> dict[str, Any] | None:
    """Token usage, if the model's route returned a `Finish`."""
    if finish is None:
        return None
    input_tokens = sum(finish.prompt_tokens.values())
    return {
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "total_tokens": input_tokens + output_tokens,
        "input_token_details": {f"{kind}_tokens": count for kind, count in finish.prompt_tokens.items()},
    }

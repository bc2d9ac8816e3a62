"""One answer in a realtime call: a `Chat` is asked for, and what comes is told as it comes, until its end or a stop."""

from __future__ import annotations

import asyncio
import logging
import secrets
from base64 import b64encode
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mstar.frontend.response_stream import Deliver, ResponseStream
from mstar.media.audio import AudioStreamEncoder
from mstar.media.vad import SAMPLE_RATE
from mstar.requests import ChatRequest, Finish, Sampling, ToolCall
from mstar.server.errors import ApiError
from mstar.server.http_exchange import INTERNAL_ERROR
from mstar.server.openai.chat import DEFAULT_MAX_TOKENS
from mstar.server.openai.detokenizer import IncrementalDetokenizer
from mstar.server.openai.speech import resolve_voice
from mstar.server.realtime.config import ResponseConfig, to_tools
from mstar.server.realtime.conversation import Item, new_id
from mstar.server.state import ServedModel
from mstar.server.websocket_session import WebSocketSession

if TYPE_CHECKING:
    from mstar.server.realtime.session import RealtimeSession

log = logging.getLogger("mstar.server")


class RealtimeResponse:
    """An answer that is being given."""

    def __init__(
        self, session: RealtimeSession, websocket: WebSocketSession, served: ServedModel, config: ResponseConfig
    ) -> None:
        settings = session.config.settings
        self._session = session
        self._websocket = websocket
        self._served = served
        self._config = config
        self._audio_output = (config.output_modalities or settings.output_modalities) == ["audio"]
        self._audio_encoder = AudioStreamEncoder("pcm", SAMPLE_RATE)
        self._detokenizer = IncrementalDetokenizer(served.model.detokenize)
        self._instructions = settings.instructions if config.instructions is None else config.instructions
        self._cancel_reason = ""
        self._finish: Finish | None = None
        self._id = new_id("resp")
        self._item = Item(new_id("item"), "assistant", is_audio=self._audio_output, status="in_progress")
        self._previous_item_id: str | None = None
        self._output_items = [self._item]
        self._task: asyncio.Task[None] | None = None

    @property
    def is_done(self) -> bool:
        """Whether all of it was told."""
        return self._task is None or self._task.done()

    async def start(self) -> None:
        """Give it, while the client is listened to. Raises Refusal."""
        chat, items = self._build_chat_request(), list(self._session.conversation.items)
        self._previous_item_id = self._session.conversation.add(self._item)
        self._task = asyncio.create_task(self._run(chat, items))
        await asyncio.sleep(0)  # so that it has begun, and a stop is told

    def cancel(self, reason: str) -> None:
        """Stop it. Without a reason, nobody is there to be told."""
        if self._task is not None and not self._task.done():
            self._cancel_reason = self._cancel_reason or reason
            self._task.cancel()

    async def wait_done(self) -> None:
        """Wait until all of it was told."""
        if self._task is not None:
            await asyncio.wait([self._task])

    # ---------------------------------------------------------------- what is asked for
    def _build_chat_request(self) -> ChatRequest:
        wish, settings = self._config, self._session.config.settings
        longest = wish.max_output_tokens or settings.max_output_tokens
        tools = () if settings.tool_choice == "none" else settings.tools if wish.tools is None else wish.tools
        return ChatRequest(
            self._session.conversation.to_messages(self._instructions),
            Sampling(DEFAULT_MAX_TOKENS if longest == "inf" else longest, temperature=1.0, seed=secrets.randbits(62)),
            to_tools(list(tools)),
            self._audio_output,
            resolve_voice(settings.audio.output.voice, self._served),
        )

    # ---------------------------------------------------------------- what is told
    async def _run(self, chat: ChatRequest, items: Sequence[Item]) -> None:
        status, details = "completed", dict[str, Any]()
        try:
            await self._send_created()
            await self._forward_outputs(self._session.continuation.request_turn(chat, items, self._instructions))
            if self._finish is not None and self._finish.finish_reason == "length":
                status, details = "incomplete", {"reason": "max_output_tokens"}
        except asyncio.CancelledError:
            if not self._cancel_reason:
                raise
            status, details = "cancelled", {"reason": self._cancel_reason}
        except ApiError as refusal:
            status, details = "failed", {"error": refusal.content["error"]}
        except Exception:
            log.exception("request %s", self._websocket.context.id)
            status, details = "failed", {"error": INTERNAL_ERROR.content["error"]}
        await self._send_done(status, details)
        if status == "cancelled":
            await self._session.continuation.interrupt()

    async def _send_created(self) -> None:
        await self._send("response.created", response=self._response_payload("in_progress", {}))
        await self._send("response.output_item.added", output_index=0, item=self._item.payload)
        await self._send("conversation.item.added", previous_item_id=self._previous_item_id, item=self._item.payload)
        await self._send_content_event("response.content_part.added", part=self._content_part())

    async def _forward_outputs(self, stream: ResponseStream) -> None:
        async for news in stream.turn():
            if news.kind == "Text":
                await self._send_text(self._detokenizer.add(news.value))
            elif news.kind == "Audio" and self._audio_output:
                await self._send_audio(_encode_pcm(self._audio_encoder.feed, news))
        self._finish = stream.result if isinstance(stream.result, Finish) else None
        await self._send_text(self._detokenizer.finish())
        await self._send_audio(self._audio_encoder.finish())

    async def _send_text(self, text: str) -> None:
        if text:
            self._item.text += text
            await self._send_content_event(f"response.{self._text_event}.delta", delta=text)

    async def _send_audio(self, pcm: bytes) -> None:
        if pcm:
            self._item.add_audio(pcm)
            await self._send_content_event("response.output_audio.delta", delta=b64encode(pcm).decode())

    async def _send_done(self, status: str, details: dict[str, Any]) -> None:
        item = self._item
        item.status = "completed" if status == "completed" else "incomplete"
        if self._audio_output:
            await self._send_content_event("response.output_audio.done")
        whole = {"transcript" if self._audio_output else "text": item.text}
        await self._send_content_event(f"response.{self._text_event}.done", **whole)
        await self._send_content_event("response.content_part.done", part=self._content_part())
        await self._send("response.output_item.done", output_index=0, item=item.payload)
        await self._send("conversation.item.done", previous_item_id=self._previous_item_id, item=item.payload)
        for call in self._finish.tool_calls if self._finish else ():
            await self._send_tool_call(call)
        await self._send("response.done", response=self._response_payload(status, details))

    async def _send_tool_call(self, call: ToolCall) -> None:
        item, index = Item(new_id("item"), "call", tool_call=call), len(self._output_items)
        self._output_items.append(item)
        before = self._session.conversation.add(item)
        await self._send("response.output_item.added", output_index=index, item=item.payload)
        await self._send("conversation.item.added", previous_item_id=before, item=item.payload)
        fields = {"item_id": item.id, "output_index": index, "call_id": call.id, "name": call.name}
        await self._send("response.function_call_arguments.done", **fields, arguments=call.arguments)
        await self._send("response.output_item.done", output_index=index, item=item.payload)
        await self._send("conversation.item.done", previous_item_id=before, item=item.payload)

    # ---------------------------------------------------------------- how it is told
    @property
    def _text_event(self) -> str:
        return "output_audio_transcript" if self._audio_output else "output_text"

    def _content_part(self) -> dict[str, Any]:
        kind, text = ("audio", "transcript") if self._audio_output else ("text", "text")
        return {"type": kind, text: self._item.text}

    def _response_payload(self, status: str, details: dict[str, Any]) -> dict[str, Any]:
        is_over = status != "in_progress"
        return {
            "id": self._id,
            "object": "realtime.response",
            "status": status,
            "status_details": {"type": status, **details} if details else None,
            "output": [item.payload for item in self._output_items] if is_over else [],
            "output_modalities": ["audio" if self._audio_output else "text"],
            "usage": self._usage() if is_over else None,
        }

    def _usage(self) -> dict[str, Any] | None:
        """What was read and written, if the model says."""
        if self._finish is None:
            return None
        read, written = self._finish.prompt_tokens, self._detokenizer.token_count
        total = sum(read.values())
        return {
            "input_tokens": total,
            "output_tokens": written,
            "total_tokens": total + written,
            "input_token_details": {f"{kind}_tokens": count for kind, count in read.items()},
        }

    async def _send_content_event(self, kind: str, **fields: Any) -> None:
        await self._send(kind, item_id=self._item.id, output_index=0, content_index=0, **fields)

    async def _send(self, kind: str, **fields: Any) -> None:
        if kind.startswith("response.") and "response" not in fields:
            fields["response_id"] = self._id
        await self._session.send(kind, **fields)


def _encode_pcm(feed: Any, output: Deliver) -> bytes:
    return feed(output.value, int(dict(output.clock)["rate"]))

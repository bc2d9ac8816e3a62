"""One answer in a realtime call: a `Chat` is asked for, and what comes is told as it comes, until its end or a stop."""

from __future__ import annotations

import asyncio
import logging
import secrets
from base64 import b64encode
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mstar.asks import Chat, Ending, ToolCall
from mstar.media.audio import Track
from mstar.media.ears import RATE
from mstar.nn.sampling import Sampling
from mstar.server.calls import Call
from mstar.server.chat import MAX_TOKENS
from mstar.server.conversation import Item, new_id
from mstar.server.door import Served
from mstar.server.live import Deliver, Live
from mstar.server.refusals import Refusal
from mstar.server.session import ResponseWish, tools_of
from mstar.server.speech import voice_of
from mstar.server.spelling import Spelling
from mstar.server.visit import BROKEN

if TYPE_CHECKING:
    from mstar.server.realtime import Talk

log = logging.getLogger("mstar.server")


class Answering:
    """An answer that is being given."""

    def __init__(self, talk: Talk, call: Call, served: Served, wish: ResponseWish) -> None:
        settings = talk.session.settings
        self._talk = talk
        self._call = call
        self._served = served
        self._wish = wish
        self._speaks = (wish.output_modalities or settings.output_modalities) == ["audio"]
        self._track = Track("pcm", RATE)
        self._spelling = Spelling(served.model.spell)
        self._instructions = settings.instructions if wish.instructions is None else wish.instructions
        self._reason = ""
        self._ending: Ending | None = None
        self._id = new_id("resp")
        self._item = Item(new_id("item"), "assistant", is_spoken=self._speaks, status="in_progress")
        self._before: str | None = None
        self._outputs = [self._item]
        self._task: asyncio.Task[None] | None = None

    @property
    def is_over(self) -> bool:
        """Whether all of it was told."""
        return self._task is None or self._task.done()

    async def begin(self) -> None:
        """Give it, while the client is listened to. Raises Refusal."""
        chat, items = self._chat(), list(self._talk.conversation.items)
        self._before = self._talk.conversation.add(self._item)
        self._task = asyncio.create_task(self._give(chat, items))
        await asyncio.sleep(0)  # so that it has begun, and a stop is told

    def stop(self, reason: str) -> None:
        """Stop it. Without a reason, nobody is there to be told."""
        if self._task is not None and not self._task.done():
            self._reason = self._reason or reason
            self._task.cancel()

    async def ended(self) -> None:
        """Wait until all of it was told."""
        if self._task is not None:
            await asyncio.wait([self._task])

    # ---------------------------------------------------------------- what is asked for
    def _chat(self) -> Chat:
        wish, settings = self._wish, self._talk.session.settings
        longest = wish.max_output_tokens or settings.max_output_tokens
        tools = () if settings.tool_choice == "none" else settings.tools if wish.tools is None else wish.tools
        return Chat(
            self._talk.conversation.turns(self._instructions),
            Sampling(MAX_TOKENS if longest == "inf" else longest, temperature=1.0, seed=secrets.randbits(62)),
            tools_of(list(tools)),
            self._speaks,
            voice_of(settings.audio.output.voice, self._served),
        )

    # ---------------------------------------------------------------- what is told
    async def _give(self, chat: Chat, items: Sequence[Item]) -> None:
        status, details = "completed", dict[str, Any]()
        try:
            await self._open()
            await self._follow(self._talk.thread.ask(chat, items, self._instructions))
            if self._ending is not None and self._ending.reason == "length":
                status, details = "incomplete", {"reason": "max_output_tokens"}
        except asyncio.CancelledError:
            if not self._reason:
                raise
            status, details = "cancelled", {"reason": self._reason}
        except Refusal as refusal:
            status, details = "failed", {"error": refusal.content["error"]}
        except Exception:
            log.exception("request %s", self._call.passage.id)
            status, details = "failed", {"error": BROKEN.content["error"]}
        await self._close(status, details)
        if status == "cancelled":
            await self._talk.thread.hush()

    async def _open(self) -> None:
        await self._send("response.created", response=self._response("in_progress", {}))
        await self._send("response.output_item.added", output_index=0, item=self._item.content)
        await self._send("conversation.item.added", previous_item_id=self._before, item=self._item.content)
        await self._say("response.content_part.added", part=self._part())

    async def _follow(self, live: Live) -> None:
        async for news in live.turn():
            if news.kind == "Text":
                await self._write(self._spelling.add(news.value))
            elif news.kind == "Audio" and self._speaks:
                await self._speak(_pcm(self._track.feed, news))
        self._ending = live.result if isinstance(live.result, Ending) else None
        await self._write(self._spelling.finish())
        await self._speak(self._track.finish())

    async def _write(self, text: str) -> None:
        if text:
            self._item.text += text
            await self._say(f"response.{self._kind}.delta", delta=text)

    async def _speak(self, pcm: bytes) -> None:
        if pcm:
            self._item.add_sound(pcm)
            await self._say("response.output_audio.delta", delta=b64encode(pcm).decode())

    async def _close(self, status: str, details: dict[str, Any]) -> None:
        item = self._item
        item.status = "completed" if status == "completed" else "incomplete"
        if self._speaks:
            await self._say("response.output_audio.done")
        whole = {"transcript" if self._speaks else "text": item.text}
        await self._say(f"response.{self._kind}.done", **whole)
        await self._say("response.content_part.done", part=self._part())
        await self._send("response.output_item.done", output_index=0, item=item.content)
        await self._send("conversation.item.done", previous_item_id=self._before, item=item.content)
        for call in self._ending.calls if self._ending else ():
            await self._call_tool(call)
        await self._send("response.done", response=self._response(status, details))

    async def _call_tool(self, call: ToolCall) -> None:
        item, index = Item(new_id("item"), "call", call=call), len(self._outputs)
        self._outputs.append(item)
        before = self._talk.conversation.add(item)
        await self._send("response.output_item.added", output_index=index, item=item.content)
        await self._send("conversation.item.added", previous_item_id=before, item=item.content)
        fields = {"item_id": item.id, "output_index": index, "call_id": call.id, "name": call.name}
        await self._send("response.function_call_arguments.done", **fields, arguments=call.arguments)
        await self._send("response.output_item.done", output_index=index, item=item.content)
        await self._send("conversation.item.done", previous_item_id=before, item=item.content)

    # ---------------------------------------------------------------- how it is told
    @property
    def _kind(self) -> str:
        return "output_audio_transcript" if self._speaks else "output_text"

    def _part(self) -> dict[str, Any]:
        kind, text = ("audio", "transcript") if self._speaks else ("text", "text")
        return {"type": kind, text: self._item.text}

    def _response(self, status: str, details: dict[str, Any]) -> dict[str, Any]:
        is_over = status != "in_progress"
        return {
            "id": self._id,
            "object": "realtime.response",
            "status": status,
            "status_details": {"type": status, **details} if details else None,
            "output": [item.content for item in self._outputs] if is_over else [],
            "output_modalities": ["audio" if self._speaks else "text"],
            "usage": self._usage() if is_over else None,
        }

    def _usage(self) -> dict[str, Any] | None:
        """What was read and written, if the model says."""
        if self._ending is None:
            return None
        read, written = self._ending.read, self._spelling.tokens
        total = sum(read.values())
        return {
            "input_tokens": total,
            "output_tokens": written,
            "total_tokens": total + written,
            "input_token_details": {f"{kind}_tokens": count for kind, count in read.items()},
        }

    async def _say(self, kind: str, **fields: Any) -> None:
        await self._send(kind, item_id=self._item.id, output_index=0, content_index=0, **fields)

    async def _send(self, kind: str, **fields: Any) -> None:
        if kind.startswith("response.") and "response" not in fields:
            fields["response_id"] = self._id
        await self._talk.send(kind, **fields)


def _pcm(feed: Any, news: Deliver) -> bytes:
    return feed(news.value, int(dict(news.clock)["rate"]))

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

from mstar.server.calls import Call
from mstar.server.door import Served
from mstar.server.refusals import Refusal
from mstar.server.schema import Strict
from mstar.server.speech import LONGEST, Manner, sounds
from mstar.server.visit import validated

PATIENCE_S = 60.0
"""How long a client may take to begin."""
AHEAD = 16 * LONGEST
"""How many characters may wait to be said."""
_END = re.compile(r"(?<=[.!?…])\s+|(?<=[。！？])|\n+")


class Config(Manner):
    """The first thing a client says."""

    type: Literal["session.config"]
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] = "pcm"


class Input(Strict):
    """Anything it says after that."""

    type: Literal["input.text", "input.done", "input.cancel"]
    text: Annotated[str, Field(max_length=AHEAD)] = ""


async def talk(call: Call) -> None:
    """WS /v1/audio/speech/stream."""
    await call.accept()
    try:
        async with asyncio.timeout(PATIENCE_S):
            config = validated(Config, _bytes(await call.heard()))
        await Talk(call, call.find(config.model), config).hold()
    except TimeoutError:
        await _tell(call, "error", **Refusal(408, "too_slow", "no session.config has come").content)
    except Refusal as refusal:
        await _tell(call, "error", **refusal.content)
        raise
    await call.hang_up()


class Talk:
    """What one client has said under way."""

    def __init__(self, call: Call, served: Served, config: Config) -> None:
        config.track()  # a format that cannot be made is told at once
        self._call = call
        self._served = served
        self._config = config
        self._count = 0
        self._rest = ""
        self._sentences: deque[str] = deque()
        self._is_done = False
        self._saying: asyncio.Task[None] | None = None

    async def hold(self) -> None:
        """Hear and speak until everything is said."""
        hearing = asyncio.create_task(self._call.heard())
        try:
            while self._saying or self._sentences or not self._is_done:
                if self._saying is None and self._sentences:
                    self._saying = asyncio.create_task(self._say(self._sentences.popleft()))
                waiting = {hearing} if self._saying is None else {hearing, self._saying}
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if self._saying is not None and self._saying.done():
                    saying, self._saying = self._saying, None
                    saying.result()
                if hearing.done():
                    await self._take(validated(Input, _bytes(hearing.result())))
                    hearing = asyncio.create_task(self._call.heard())
            await _tell(self._call, "session.done", total_sentences=self._count)
        finally:
            tasks: list[asyncio.Task[Any]] = [hearing] if self._saying is None else [hearing, self._saying]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _take(self, heard: Input) -> None:
        if heard.type == "input.cancel":
            await self._cancel()
            return
        *whole, self._rest = _END.split(self._rest + heard.text)
        if heard.type == "input.done":
            self._is_done = True
            whole.append(self._rest)
        self._sentences.extend(sentence.strip() for sentence in whole if sentence.strip())
        if len(self._rest) > LONGEST or sum(map(len, self._sentences)) > AHEAD:
            what = f"a sentence may have {LONGEST} characters, and {AHEAD} may wait to be said"
            raise Refusal(413, "too_large", what, param="text")

    async def _cancel(self) -> None:
        self._rest = ""
        self._sentences.clear()
        if self._saying is not None:
            saying, self._saying = self._saying, None
            saying.cancel()
            await asyncio.wait({saying})
            await _tell(self._call, "audio.done", sentence_index=self._count - 1, error=False, cancelled=True)

    async def _say(self, sentence: str) -> None:
        number, track, size = self._count, self._config.track(), 0
        self._count += 1
        with self._call.opened(self._served, self._config.ask(sentence, self._served)) as live:
            about = {"format": self._config.response_format, "sample_rate": track.rate}
            await _tell(self._call, "audio.start", sentence_index=number, sentence_text=sentence, **about)
            async for part in sounds(live, track):
                if isinstance(part, bytes):
                    size += len(part)
                    await self._call.tell(part)
        await _tell(self._call, "audio.done", sentence_index=number, total_bytes=size, error=False)


async def _tell(call: Call, kind: str, **content: Any) -> None:
    await call.tell(msgspec.json.encode({"type": kind, **content}).decode())


def _bytes(heard: str | bytes) -> bytes:
    return heard.encode() if isinstance(heard, str) else heard

"""Answers of a chat as they grow, and what clients are told of them: words, speech, calls of tools, and what it took.

A stream and a whole answer say the same. What was asked for is read elsewhere.
"""

from __future__ import annotations

import secrets
import time
from base64 import b64encode
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any

import msgspec

from mstar.asks import Chat, Ending, ToolCall
from mstar.media.audio import Track
from mstar.nn.sampling import Scored
from mstar.server.door import Served
from mstar.server.live import Deliver, Ended, Live
from mstar.server.refusals import Refusal
from mstar.server.speech import audio_tokens
from mstar.server.spelling import Spelling, token_bytes
from mstar.server.visit import event

_UNLIKELY = -9999.0
"""How likely clients are told that something is which JSON has no number for."""


class Answer:
    """One of the answers to a request. What it is given it tells as deltas, which clients put together again."""

    def __init__(
        self, served: Served, chat: Chat, *, track: Track | None, is_call: bool, most_calls: int | None
    ) -> None:
        self.spelling = Spelling(served.model.spell, chat.sampling.stop_texts)
        self.ending: Ending | None = None
        self.logprobs: list[dict[str, Any]] | None = None if chat.sampling.logprobs is None else []
        """How likely each token was, if that is wished for."""
        self._logprobs_told = 0
        self._model = served.model
        self._limit = chat.sampling.max_tokens
        self._is_call = is_call
        """It must be a call of a tool, and so is nothing before it is complete."""
        self._most_calls = most_calls
        self._track = track
        self._id = f"audio_{secrets.token_hex(8)}"
        self._text = ""
        self._sound = bytearray()

    def take(self, news: Deliver) -> dict[str, Any]:
        """What an emission adds."""
        if news.kind == "Text":
            if self.logprobs is not None:
                self._note_logprobs(news.value, self.logprobs)
            return self._delta(self.spelling.add(news.value), b"")
        if news.kind == "Audio" and self._track is not None:
            return self._delta("", self._track.feed(news.value, int(dict(news.clock)["rate"])))
        return {}

    def _note_logprobs(self, value: Any, logprobs: list[dict[str, Any]]) -> None:
        if not isinstance(value, Scored):
            raise Refusal(400, "unsupported_parameter", "logprobs: the model does not give these", param="logprobs")
        logprobs.append(_scored(value, self._model))

    def fresh_logprobs(self) -> list[dict[str, Any]]:
        """How likely the tokens were that came since it was last asked."""
        fresh = (self.logprobs or [])[self._logprobs_told :]
        self._logprobs_told += len(fresh)
        return fresh

    def end(self, ending: Ending | None) -> dict[str, Any]:
        """What was held back, now that it has ended."""
        self.ending = ending
        if self._track is not None and not self._track.seconds:
            what = "modalities: the model gave no speech"
            raise Refusal(400, "unsupported_parameter", what, param="modalities")
        last = self._delta(self.spelling.finish(), self._track.finish() if self._track else b"")
        is_cut = self._is_call and self.reason != "tool_calls"
        return {"content": self._text} if is_cut else last

    @property
    def written(self) -> dict[str, int] | None:
        """What was written, in tokens by modality. Of an answer that came as text, the model may say it."""
        if self.spelling.has_strings:
            return dict(self.ending.written) if self.ending and self.ending.written else None
        spoken = {"audio": audio_tokens(self._track.seconds)} if self._track else {}
        return {"text": self.spelling.tokens} | spoken

    def _delta(self, text: str, sound: bytes) -> dict[str, Any]:
        self._text += text
        self._sound += sound
        if self._is_call or not (text or sound):
            return {}
        if self._track is None:
            return {"content": text}
        told = {"transcript": text} if text else {}
        return {"audio": {"id": self._id} | told | ({"data": b64encode(sound).decode()} if sound else {})}

    @property
    def reason(self) -> str:
        """Why it ended."""
        if self.spelling.is_stopped:
            return "stop"
        is_cut = self.spelling.tokens >= self._limit
        told = self.ending.reason if self.ending else "length" if is_cut else "stop"
        return "tool_calls" if self._is_call and told == "stop" else told

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The calls that it asks for."""
        made = self.ending.calls if self.ending else ()
        if self._is_call and not made:
            made = (_call_in(self._text),)
        made = made[: self._most_calls]
        return [
            {"id": one.id, "type": "function", "function": {"name": one.name, "arguments": one.arguments}}
            for one in made
        ]

    def message(self, now: int) -> dict[str, Any]:
        """It as a whole."""
        if self.reason == "tool_calls":
            return {"role": "assistant", "content": None, "tool_calls": self.calls}
        if self._track is None:
            return {"role": "assistant", "content": self._text}
        # Nothing is kept for later, and so it expires at once.
        spoken = {"id": self._id, "data": b64encode(self._sound).decode(), "transcript": self._text, "expires_at": now}
        return {"role": "assistant", "content": None, "audio": spoken}


def _scored(scored: Scored, model: Any) -> dict[str, Any]:
    """How likely a token was, as clients are told."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        letters = token_bytes(model, token)
        text = model.spell([token]) if letters is None else letters.decode(errors="replace")
        return {"token": text, "logprob": max(logprob, _UNLIKELY), "bytes": None if letters is None else [*letters]}

    top = [entry(*one) for one in scored.logprobs.top]
    return entry(scored.token, scored.logprobs.token_logprob) | {"top_logprobs": top}


def _call_in(text: str) -> ToolCall:
    """The call that a text under the grammar of calls stands for."""
    try:
        read = msgspec.json.decode(text)
        name, arguments = read["name"], msgspec.json.encode(read["arguments"]).decode()
    except (msgspec.DecodeError, LookupError, TypeError):
        raise Refusal(500, "model_error", "the model did not call a tool, as it was to") from None
    return ToolCall(f"call_{secrets.token_hex(8)}", name, arguments)


class Completion:
    """The answers to one request."""

    def __init__(self, head: Mapping[str, Any], live: Live, answers: list[Answer]) -> None:
        self._live = live
        self._answers = answers
        self._now = int(time.time())
        self._head = {**head, "created": self._now}
        """What each part of the answer begins with."""
        self._deltas = self._read()
        self._first: list[tuple[int, dict[str, Any], bool]] = []

    async def begun(self) -> None:
        """Read the first of what comes, so that an early refusal can still be a status."""
        self._first.append(await anext(self._deltas))

    async def _read(self) -> AsyncGenerator[tuple[int, dict[str, Any], bool]]:
        """Which answer has what more, and whether that is its end."""
        async for news in self._live:
            number = self._live.number(news)
            answer = self._answers[number]
            if isinstance(news, Ended):
                yield number, answer.end(_ending(news)), True
                continue
            if answer.spelling.is_stopped and news.kind == "Text":  # a model that knows stop texts would have ended
                self._live.drop(news.rid)
                yield number, {}, True
                continue
            yield number, answer.take(news), False

    async def whole(self) -> dict[str, Any]:
        """All of it."""
        async for _ in self._deltas:
            pass
        choices = [
            {
                "index": number,
                "message": one.message(self._now),
                "logprobs": _told(one.logprobs),
                "finish_reason": one.reason,
            }
            for number, one in enumerate(self._answers)
        ]
        return self._head | {"object": "chat.completion", "choices": choices, "usage": self._usage()}

    async def chunks(self, *, has_usage: bool) -> AsyncGenerator[bytes]:
        """It as events, as it is made."""
        for number in range(len(self._answers)):
            yield self._chunk(number, {"role": "assistant", "content": ""})
        for number, delta, is_end in self._first:
            for chunk in self._added(number, delta, is_end=is_end):
                yield chunk
        async for number, delta, is_end in self._deltas:
            for chunk in self._added(number, delta, is_end=is_end):
                yield chunk
        if has_usage:
            yield event(self._head | {"object": "chat.completion.chunk", "choices": [], "usage": self._usage()})
        yield b"data: [DONE]\n\n"

    def _added(self, number: int, delta: dict[str, Any], *, is_end: bool) -> Iterator[bytes]:
        """What an answer has more, as events."""
        answer = self._answers[number]
        logprobs = answer.fresh_logprobs()
        if delta or logprobs:
            yield self._chunk(number, delta or {"content": ""}, logprobs=logprobs)
        if is_end:
            if answer.reason == "tool_calls":
                calls = [{"index": index} | call for index, call in enumerate(answer.calls)]
                yield self._chunk(number, {"tool_calls": calls})
            yield self._chunk(number, {}, reason=answer.reason)

    def _chunk(
        self,
        number: int,
        delta: dict[str, Any],
        *,
        logprobs: list[dict[str, Any]] | None = None,
        reason: str | None = None,
    ) -> bytes:
        choice = {"index": number, "delta": delta, "logprobs": _told(logprobs or None), "finish_reason": reason}
        return event(self._head | {"object": "chat.completion.chunk", "choices": [choice]})

    def _usage(self) -> dict[str, Any] | None:
        """What was read and written, if the model says; None if it does not. What all answers read is read once."""
        ending = next((answer.ending for answer in self._answers if answer.ending is not None), None)
        written = Counter[str]()
        for answer in self._answers:
            if answer.written is None:
                return None
            written.update(answer.written)
        if ending is None:
            return None
        read = sum(ending.read.values())
        return {
            "prompt_tokens": read,
            "completion_tokens": written.total(),
            "total_tokens": read + written.total(),
            "prompt_tokens_details": {f"{kind}_tokens": count for kind, count in ending.read.items()},
            "completion_tokens_details": {f"{kind}_tokens": count for kind, count in written.items()},
        }


def _told(logprobs: list[dict[str, Any]] | None) -> dict[str, Any] | None:
    return None if logprobs is None else {"content": logprobs, "refusal": None}


def _ending(news: Ended) -> Ending | None:
    result = getattr(news.end, "result", None)
    return result.it if result is not None and isinstance(result.it, Ending) else None

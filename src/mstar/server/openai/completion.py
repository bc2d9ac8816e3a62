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

from mstar.frontend.response_stream import Deliver, RequestEnded, ResponseStream
from mstar.media.audio import AudioStreamEncoder
from mstar.requests import ChatRequest, Finish, ScoredToken, ToolCall
from mstar.server.errors import ApiError
from mstar.server.http_exchange import sse_event
from mstar.server.openai.detokenizer import IncrementalDetokenizer, token_to_bytes
from mstar.server.openai.speech import audio_tokens
from mstar.server.state import ServedModel

_MIN_LOGPROB = -9999.0
"""How likely clients are told that something is which JSON has no number for."""


class Choice:
    """One of the answers to a request. What it is given it tells as deltas, which clients put together again."""

    def __init__(
        self,
        served: ServedModel,
        chat: ChatRequest,
        *,
        audio_encoder: AudioStreamEncoder | None,
        is_tool_call: bool,
        max_tool_calls: int | None,
    ) -> None:
        self.detokenizer = IncrementalDetokenizer(served.model.detokenize, chat.sampling.stop_strings)
        self.finish: Finish | None = None
        self.logprobs: list[dict[str, Any]] | None = None if chat.sampling.logprobs is None else []
        """How likely each token was, if that is wished for."""
        self._logprobs_sent = 0
        self._model = served.model
        self._max_tokens = chat.sampling.max_tokens
        self._is_tool_call = is_tool_call
        """It must be a call of a tool, and so is nothing before it is complete."""
        self._max_tool_calls = max_tool_calls
        self._audio_encoder = audio_encoder
        self._audio_id = f"audio_{secrets.token_hex(8)}"
        self._text = ""
        self._audio = bytearray()

    def add_output(self, output: Deliver) -> dict[str, Any]:
        """What an emission adds."""
        if output.kind == "Text":
            if self.logprobs is not None:
                self._append_logprobs(output.value, self.logprobs)
            return self._append_delta(self.detokenizer.add(output.value), b"")
        if output.kind == "Audio" and self._audio_encoder is not None:
            return self._append_delta("", self._audio_encoder.feed(output.value, int(dict(output.clock)["rate"])))
        return {}

    def _append_logprobs(self, value: Any, logprobs: list[dict[str, Any]]) -> None:
        if not isinstance(value, ScoredToken):
            raise ApiError(400, "unsupported_parameter", "logprobs: the model does not give these", param="logprobs")
        logprobs.append(_logprob_entry(value, self._model))

    def pop_new_logprobs(self) -> list[dict[str, Any]]:
        """How likely the tokens were that came since it was last asked."""
        fresh = (self.logprobs or [])[self._logprobs_sent :]
        self._logprobs_sent += len(fresh)
        return fresh

    def finalize(self, finish: Finish | None) -> dict[str, Any]:
        """What was held back, now that it has ended."""
        self.finish = finish
        if self._audio_encoder is not None and not self._audio_encoder.duration_s:
            what = "modalities: the model gave no speech"
            raise ApiError(400, "unsupported_parameter", what, param="modalities")
        last = self._append_delta(
            self.detokenizer.finish(), self._audio_encoder.finish() if self._audio_encoder else b""
        )
        is_cut = self._is_tool_call and self.finish_reason != "tool_calls"
        return {"content": self._text} if is_cut else last

    @property
    def completion_tokens(self) -> dict[str, int] | None:
        """What was written, in tokens by modality. Of an answer that came as text, the model may say it."""
        if self.detokenizer.has_text:
            return dict(self.finish.completion_tokens) if self.finish and self.finish.completion_tokens else None
        spoken = {"audio": audio_tokens(self._audio_encoder.duration_s)} if self._audio_encoder else {}
        return {"text": self.detokenizer.token_count} | spoken

    def _append_delta(self, text: str, audio: bytes) -> dict[str, Any]:
        self._text += text
        self._audio += audio
        if self._is_tool_call or not (text or audio):
            return {}
        if self._audio_encoder is None:
            return {"content": text}
        told = {"transcript": text} if text else {}
        return {"audio": {"id": self._audio_id} | told | ({"data": b64encode(audio).decode()} if audio else {})}

    @property
    def finish_reason(self) -> str:
        """Why it ended."""
        if self.detokenizer.is_stopped:
            return "stop"
        is_cut = self.detokenizer.token_count >= self._max_tokens
        told = self.finish.finish_reason if self.finish else "length" if is_cut else "stop"
        return "tool_calls" if self._is_tool_call and told == "stop" else told

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """The calls that it asks for."""
        made = self.finish.tool_calls if self.finish else ()
        if self._is_tool_call and not made:
            made = (_parse_tool_call(self._text),)
        made = made[: self._max_tool_calls]
        return [
            {"id": one.id, "type": "function", "function": {"name": one.name, "arguments": one.arguments}}
            for one in made
        ]

    def message(self, now: int) -> dict[str, Any]:
        """It as a whole."""
        if self.finish_reason == "tool_calls":
            return {"role": "assistant", "content": None, "tool_calls": self.tool_calls}
        if self._audio_encoder is None:
            return {"role": "assistant", "content": self._text}
        # Nothing is kept for later, and so it expires at once.
        spoken = {
            "id": self._audio_id,
            "data": b64encode(self._audio).decode(),
            "transcript": self._text,
            "expires_at": now,
        }
        return {"role": "assistant", "content": None, "audio": spoken}


def _logprob_entry(scored: ScoredToken, model: Any) -> dict[str, Any]:
    """How likely a token was, as clients are told."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        letters = token_to_bytes(model, token)
        text = model.detokenize([token]) if letters is None else letters.decode(errors="replace")
        return {"token": text, "logprob": max(logprob, _MIN_LOGPROB), "bytes": None if letters is None else [*letters]}

    top = [entry(*one) for one in scored.logprobs.top_logprobs]
    return entry(scored.token, scored.logprobs.token_logprob) | {"top_logprobs": top}


def _parse_tool_call(text: str) -> ToolCall:
    """The call that a text under the grammar of calls stands for."""
    try:
        read = msgspec.json.decode(text)
        name, arguments = read["name"], msgspec.json.encode(read["arguments"]).decode()
    except (msgspec.DecodeError, LookupError, TypeError):
        raise ApiError(500, "model_error", "the model did not call a tool, as it was to") from None
    return ToolCall(f"call_{secrets.token_hex(8)}", name, arguments)


class ChatCompletion:
    """The answers to one request."""

    def __init__(self, common_fields: Mapping[str, Any], stream: ResponseStream, choices: list[Choice]) -> None:
        self._stream = stream
        self._choices = choices
        self._created = int(time.time())
        self._common_fields = {**common_fields, "created": self._created}
        """What each part of the answer begins with."""
        self._deltas = self._read_deltas()
        self._prefetched: list[tuple[int, dict[str, Any], bool]] = []

    async def wait_first(self) -> None:
        """Read the first of what comes, so that an early refusal can still be a status."""
        self._prefetched.append(await anext(self._deltas))

    async def _read_deltas(self) -> AsyncGenerator[tuple[int, dict[str, Any], bool]]:
        """Which answer has what more, and whether that is its end."""
        async for news in self._stream:
            number = self._stream.index_of(news)
            answer = self._choices[number]
            if isinstance(news, RequestEnded):
                yield number, answer.finalize(_finish_from(news)), True
                continue
            if answer.detokenizer.is_stopped and news.kind == "Text":  # a model that knows stop texts would have ended
                self._stream.cancel(news.rid)
                yield number, {}, True
                continue
            yield number, answer.add_output(news), False

    async def collect(self) -> dict[str, Any]:
        """All of it."""
        async for _ in self._deltas:
            pass
        choices = [
            {
                "index": number,
                "message": one.message(self._created),
                "logprobs": _logprobs_field(one.logprobs),
                "finish_reason": one.finish_reason,
            }
            for number, one in enumerate(self._choices)
        ]
        return self._common_fields | {"object": "chat.completion", "choices": choices, "usage": self._usage()}

    async def chunks(self, *, include_usage: bool) -> AsyncGenerator[bytes]:
        """It as events, as it is made."""
        for number in range(len(self._choices)):
            yield self._chunk(number, {"role": "assistant", "content": ""})
        for number, delta, is_end in self._prefetched:
            for chunk in self._delta_chunks(number, delta, is_end=is_end):
                yield chunk
        async for number, delta, is_end in self._deltas:
            for chunk in self._delta_chunks(number, delta, is_end=is_end):
                yield chunk
        if include_usage:
            yield sse_event(
                self._common_fields | {"object": "chat.completion.chunk", "choices": [], "usage": self._usage()}
            )
        yield b"data: [DONE]\n\n"

    def _delta_chunks(self, number: int, delta: dict[str, Any], *, is_end: bool) -> Iterator[bytes]:
        """What an answer has more, as events."""
        answer = self._choices[number]
        logprobs = answer.pop_new_logprobs()
        if delta or logprobs:
            yield self._chunk(number, delta or {"content": ""}, logprobs=logprobs)
        if is_end:
            if answer.finish_reason == "tool_calls":
                calls = [{"index": index} | call for index, call in enumerate(answer.tool_calls)]
                yield self._chunk(number, {"tool_calls": calls})
            yield self._chunk(number, {}, finish_reason=answer.finish_reason)

    def _chunk(
        self,
        number: int,
        delta: dict[str, Any],
        *,
        logprobs: list[dict[str, Any]] | None = None,
        finish_reason: str | None = None,
    ) -> bytes:
        choice = {
            "index": number,
            "delta": delta,
            "logprobs": _logprobs_field(logprobs or None),
            "finish_reason": finish_reason,
        }
        return sse_event(self._common_fields | {"object": "chat.completion.chunk", "choices": [choice]})

    def _usage(self) -> dict[str, Any] | None:
        """What was read and written, if the model says; None if it does not. What all answers read is read once."""
        ending = next((answer.finish for answer in self._choices if answer.finish is not None), None)
        written = Counter[str]()
        for answer in self._choices:
            if answer.completion_tokens is None:
                return None
            written.update(answer.completion_tokens)
        if ending is None:
            return None
        read = sum(ending.prompt_tokens.values())
        return {
            "prompt_tokens": read,
            "completion_tokens": written.total(),
            "total_tokens": read + written.total(),
            "prompt_tokens_details": {f"{kind}_tokens": count for kind, count in ending.prompt_tokens.items()},
            "completion_tokens_details": {f"{kind}_tokens": count for kind, count in written.items()},
        }


def _logprobs_field(logprobs: list[dict[str, Any]] | None) -> dict[str, Any] | None:
    return None if logprobs is None else {"content": logprobs, "refusal": None}


def _finish_from(ended: RequestEnded) -> Finish | None:
    result = getattr(ended.end, "result", None)
    return result.content if result is not None and isinstance(result.content, Finish) else None

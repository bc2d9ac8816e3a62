"""Chat completion responses: choices, deltas, logprobs, tool calls, finish reasons and token usage.

Builds the response of `/v1/chat/completions` from the outputs of a request, either as one JSON object or as
`chat.completion.chunk` events (SSE); both carry the same content. Requests are parsed in `chat`. `CompletionReader`
and `Choice` also serve `/v1/completions`, `/v1/responses` and `/v1/messages`, which have other formats.
"""

from __future__ import annotations

import functools
import hashlib
import io
import secrets
import time
from base64 import b64encode
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from mstar.frontend.response_stream import Deliver, RequestEnded, ResponseStream
from mstar.media.audio import AudioStreamEncoder
from mstar.requests import ChatRequest, Citation, Finish, ScoredToken, ToolCall
from mstar.server.errors import ApiError
from mstar.server.http_exchange import sse_event
from mstar.server.openai.detokenizer import IncrementalDetokenizer, token_to_bytes
from mstar.server.openai.speech import audio_tokens
from mstar.server.openai.tool_calls_text import ToolCallsText
from mstar.server.state import ServedModel
from mstar.server.stream_response import ResponseBody
from mstar.server.tools.server_tools import ServerCall

_MIN_LOGPROB = -9999.0
"""Logprob reported for -inf, which JSON cannot express; the value OpenAI uses."""
_encode_json = msgspec.json.Encoder().encode


class Choice:
    """One choice of a completion. Converts the outputs of one request to deltas."""

    def __init__(
        self,
        served: ServedModel,
        chat: ChatRequest,
        *,
        audio_encoder: AudioStreamEncoder | None,
        is_tool_call: bool,
        max_tool_calls: int | None,
        call_seed: str = "",
    ) -> None:
        self.detokenizer = IncrementalDetokenizer(served.model.detokenize, chat.sampling.stop_strings)
        self.finish: Finish | None = None
        self.logprobs: list[dict[str, Any]] | None = None if chat.sampling.logprobs is None else []
        """Logprob entry of each token; None unless the request set `logprobs`."""
        self._logprobs_sent = 0
        self._earlier_text = ""
        """Text of the rounds before, if the server called tools for the model."""
        self._model = served.model
        self._max_tokens = chat.sampling.max_tokens
        self._is_tool_call = is_tool_call
        """The output is a forced tool call, parsed once it is complete: no text deltas are sent."""
        self._max_tool_calls = max_tool_calls
        self._call_seed = call_seed
        """Unique for each choice of each request, and equal if the client repeats the request."""
        tool_call_start = served.optional_method("tool_call_start") if chat.tools and not is_tool_call else None
        self._tool_calls_text = ToolCallsText(tool_call_start()) if tool_call_start is not None else None
        self._audio_encoder = audio_encoder
        self._audio_id = f"audio_{secrets.token_hex(8)}" if audio_encoder is not None else ""
        self._text = io.StringIO()  # a string would be copied for each token
        self._audio = bytearray()

    def continue_from(self, earlier: Choice) -> None:
        """Continue the choice of the round before, after the server has called its tools."""
        self._earlier_text = earlier._earlier_text + earlier.content
        self.logprobs, self._logprobs_sent = earlier.logprobs, earlier._logprobs_sent

    def add_output(self, output: Deliver) -> dict[str, Any]:
        """Delta for one output; empty if the client gets nothing for it."""
        if output.kind == "Text":
            if self.logprobs is not None:
                self._append_logprobs(output.value, self.logprobs)
            return self._append_delta(self.detokenizer.add(output.value), b"")
        if output.kind == "Audio" and self._audio_encoder is not None:
            return self._append_delta("", self._audio_encoder.feed(output.value, int(dict(output.clock)["rate"])))
        return {}

    def _append_logprobs(self, value: Any, logprobs: list[dict[str, Any]]) -> None:
        if not isinstance(value, ScoredToken):
            message = "logprobs: the model does not provide logprobs. fix: set logprobs to false"
            raise ApiError(400, "unsupported_parameter", message, param="logprobs")
        logprobs.append(_logprob_entry(value, self._model))

    def pop_new_logprobs(self) -> list[dict[str, Any]]:
        """Logprob entries added since the last call."""
        if not self.logprobs:
            return []
        entries = self.logprobs[self._logprobs_sent :]
        self._logprobs_sent += len(entries)
        return entries

    def finalize(self, finish: Finish | None) -> dict[str, Any]:
        """Last delta: the text and audio that were held back until the end. Raises ApiError."""
        self.finish = finish
        if self._audio_encoder is not None and not self._audio_encoder.duration_s:
            message = 'modalities: the model produced no audio. fix: set modalities to ["text"] or use a speech model'
            raise ApiError(400, "unsupported_parameter", message, param="modalities")
        held_back = self.detokenizer.finish(finish.stop_string if finish else "")
        last = self._append_delta(held_back, self._audio_encoder.finish() if self._audio_encoder else b"")
        if self._tool_calls_text is not None and self.finish_reason != "tool_calls":
            held_back = self._tool_calls_text.finish()
            self._text.write(held_back)
            last = {"content": last.get("content", "") + held_back} if held_back else last
        is_truncated_call = self._is_tool_call and self.finish_reason != "tool_calls"
        return {"content": self.text} if is_truncated_call else last

    @property
    def text(self) -> str:
        """The text so far, up to a stop string."""
        return self._text.getvalue()

    @property
    def content(self) -> str:
        """The text that is no forced tool call."""
        return "" if self._is_tool_call else self.text

    @property
    def stop_string(self) -> str:
        """The stop string that ended the text; empty if none did."""
        return self.detokenizer.stop_string or (self.finish.stop_string if self.finish else "")

    @property
    def completion_tokens(self) -> dict[str, int] | None:
        """Completion tokens by modality. None if the model emitted strings and did not report a count."""
        if self.detokenizer.has_text:
            return dict(self.finish.completion_tokens) if self.finish and self.finish.completion_tokens else None
        audio = {"audio": audio_tokens(self._audio_encoder.duration_s)} if self._audio_encoder else {}
        return {"text": self.detokenizer.token_count} | audio

    def _append_delta(self, text: str, audio: bytes) -> dict[str, Any]:
        if self._tool_calls_text is not None:
            text = self._tool_calls_text.add(text)
        if not (text or audio):
            return {}
        self._text.write(text)
        self._audio += audio
        if self._is_tool_call:
            return {}
        if self._audio_encoder is None:
            return {"content": text}
        transcript = {"transcript": text} if text else {}
        data = {"data": b64encode(audio).decode()} if audio else {}
        return {"audio": {"id": self._audio_id} | transcript | data}

    @property
    def finish_reason(self) -> str:
        """OpenAI `finish_reason`: stop, length or tool_calls, or another reason that the model's route returned."""
        if self.detokenizer.is_stopped:
            return "stop"
        is_truncated = self.detokenizer.token_count >= self._max_tokens
        reason = self.finish.finish_reason if self.finish else "length" if is_truncated else "stop"
        return "tool_calls" if self._is_tool_call and reason == "stop" else reason

    def calls(self) -> tuple[ToolCall, ...]:
        """Tool calls with their ids. Raises ApiError if a forced call cannot be parsed."""
        calls = self.finish.tool_calls if self.finish else ()
        if self._is_tool_call and not calls:
            calls = (_parse_tool_call(self.text),)
        return tuple(
            replace(call, id=call.id or tool_call_id(self._call_seed, number))
            for number, call in enumerate(calls[: self._max_tool_calls])
        )

    def keep_calls(self, calls: tuple[ToolCall, ...]) -> None:
        """Keep only these calls for the client: the others are calls of tools of the server."""
        reason = "tool_calls" if calls else "stop"
        self.finish = replace(self.finish or Finish(), finish_reason=reason, tool_calls=calls)

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """Tool calls in OpenAI's shape. Raises ApiError if a forced call cannot be parsed."""
        return [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in self.calls()
        ]

    @property
    def annotations(self) -> dict[str, Any]:
        """The field `annotations` of a message with the sources of its text (`url_citation`); empty without sources."""
        citations = self.finish.citations if self.finish else ()
        return {"annotations": [_annotation(citation) for citation in citations]} if citations else {}

    def message(self, now: int) -> dict[str, Any]:
        """Complete message, for a response that is not streamed."""
        if self.finish_reason == "tool_calls":
            content = self._earlier_text + self.content or None
            return {"role": "assistant", "content": content, "tool_calls": self.tool_calls}
        if self._audio_encoder is None:
            return {"role": "assistant", "content": self._earlier_text + self.text} | self.annotations
        # The server does not store the audio for later turns, so it expires immediately.
        audio = {
            "id": self._audio_id,
            "data": b64encode(self._audio).decode(),
            "transcript": self.text,
            "expires_at": now,
        }
        return {"role": "assistant", "content": None, "audio": audio}


def _annotation(citation: Citation) -> dict[str, Any]:
    """A citation in OpenAI's shape, and the cited passage with its position in the names of Anthropic's citations."""
    source = {"url": citation.url, "title": citation.title}
    passage = {
        "cited_text": citation.cited_text,
        "start_char_index": citation.cited_start,
        "end_char_index": citation.cited_start + len(citation.cited_text),
    }
    positions = {"start_index": citation.start, "end_index": citation.end}
    return {"type": "url_citation", "url_citation": positions | source | passage}


def _logprob_entry(scored: ScoredToken, model: Any) -> dict[str, Any]:
    """Entry of `logprobs.content` for one token."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        data = token_to_bytes(model, token)
        text = model.detokenize([token]) if data is None else data.decode(errors="replace")
        return {"token": text, "logprob": max(logprob, _MIN_LOGPROB), "bytes": None if data is None else [*data]}

    top = [entry(token, logprob) for token, logprob in scored.logprobs.top_logprobs]
    return entry(scored.token, scored.logprobs.token_logprob) | {"top_logprobs": top}


def tool_call_id(seed: str, number: int) -> str:
    """Id of a tool call in OpenAI's form, computed from the choice or response that it belongs to and its number."""
    return f"call_{hashlib.blake2b(f'{seed}/{number}'.encode(), digest_size=12).hexdigest()}"


def _parse_tool_call(text: str) -> ToolCall:
    """Parse a tool call that was generated under the tool-call grammar."""
    try:
        call = msgspec.json.decode(text)
        name, arguments = call["name"], msgspec.json.encode(call["arguments"]).decode()
    except (msgspec.DecodeError, LookupError, TypeError):
        message = "the model produced no tool call although tool_choice requires one. fix: retry or set it to auto"
        raise ApiError(500, "model_error", message) from None
    return ToolCall("", name, arguments)


class Delta(msgspec.Struct, frozen=True):  # cheaper to create than a NamedTuple: there is one per token
    """What one output adds to a choice."""

    choice: int
    """Index of the choice."""
    content: dict[str, Any]
    """Delta in the form of a chat chunk; empty if the client gets nothing for the output."""
    logprobs: list[dict[str, Any]]
    """Logprob entries of its tokens; empty unless the request set `logprobs`."""
    is_end: bool = False
    """Whether the choice is finished."""
    server_call: ServerCall | None = None
    """A call of a tool by the server that begins or has ended, instead of an output."""


class CompletionReader:
    """Reads the outputs of the requests of one completion, one request per choice, as deltas."""

    def __init__(self, stream: ResponseStream, choices: Sequence[Choice], choices_per_prompt: int) -> None:
        self.choices = choices
        """By prompt, then by seed. Those of the last round, if the server calls tools for the model."""
        self._choices_per_prompt = choices_per_prompt
        self._stream = stream
        self._prefetched: list[Delta] = []
        self._error: Exception | None = None
        """Error of an output that arrived together with others, which are read first."""

    async def wait_first(self) -> None:
        """Wait for the first delta, so that an early error still sets the HTTP status."""
        self._prefetched = await self.read_ready()

    def close(self) -> None:
        """Cancel the requests that have not ended."""
        self._stream.close()

    async def read(self) -> AsyncGenerator[Delta]:
        """Yield all deltas."""
        while deltas := await self.read_ready():
            for delta in deltas:
                yield delta

    async def read_ready(self) -> list[Delta]:
        """Deltas of all outputs that have arrived; waits for one if there is none. Empty at the end."""
        deltas, self._prefetched = self._prefetched, []
        if deltas:
            return deltas
        if self._error is not None:
            raise self._error
        while not deltas and await self._stream.wait_ready():
            while (event := self._stream.poll()) is not None:
                try:
                    deltas.append(self._to_delta(event))
                except Exception as error:
                    if not deltas:
                        raise
                    self._error = error
                    break
        return deltas

    def take_output(self) -> Delta | None:
        """Delta of an output that has arrived, without waiting. None for anything else, which `read_ready` reads."""
        event = self._stream.poll(outputs_only=True)
        return None if event is None else self._to_delta(event)

    def on_outputs(self, take_outputs: Callable[[], None]) -> None:
        """Call this for outputs that arrive while `read_ready` waits: it can take them with `take_output`."""
        self._stream.on_outputs = take_outputs

    def _to_delta(self, event: Deliver | RequestEnded) -> Delta:
        index = self._stream.index_of(event)
        choice = self.choices[index]
        if isinstance(event, RequestEnded):
            return Delta(index, choice.finalize(_finish_from(event)), choice.pop_new_logprobs(), is_end=True)
        if choice.detokenizer.is_stopped and event.kind == "Text":  # the model does not stop at stop strings itself
            self._stream.cancel(event.rid)
            return Delta(index, {}, choice.pop_new_logprobs(), is_end=True)
        return Delta(index, choice.add_output(event), choice.pop_new_logprobs() if choice.logprobs else [])

    def usage(self) -> dict[str, Any] | None:
        """Token usage, or None if the model does not report it. A prompt counts once for all its choices."""
        prompt_tokens, completion_tokens = dict[str, int](), dict[str, int]()
        for first in range(0, len(self.choices), self._choices_per_prompt):
            choices = self.choices[first : first + self._choices_per_prompt]
            finish = next((choice.finish for choice in choices if choice.finish is not None), None)
            if finish is None:
                return None
            _add_counts(prompt_tokens, finish.prompt_tokens)
        for choice in self.choices:
            if (counts := choice.completion_tokens) is None:
                return None
            _add_counts(completion_tokens, counts)
        prompt_total, completion_total = sum(prompt_tokens.values()), sum(completion_tokens.values())
        return {
            "prompt_tokens": prompt_total,
            "completion_tokens": completion_total,
            "total_tokens": prompt_total + completion_total,
            "prompt_tokens_details": {f"{kind}_tokens": count for kind, count in prompt_tokens.items()},
            "completion_tokens_details": {f"{kind}_tokens": count for kind, count in completion_tokens.items()},
        }


class ChatCompletion:
    """All choices of one chat completion, as one object or as a stream of chunks."""

    def __init__(self, common_fields: Mapping[str, Any], reader: CompletionReader) -> None:
        self._reader = reader
        self._created = int(time.time())
        self._common_fields = {**common_fields, "created": self._created}
        """Fields of the response object and of every chunk."""

    async def collect(self) -> dict[str, Any]:
        """Wait for all choices and return the `chat.completion` object."""
        while await self._reader.read_ready():
            pass
        choices = [
            {
                "index": index,
                "message": choice.message(self._created),
                "logprobs": _logprobs_field(choice.logprobs),
                "finish_reason": choice.finish_reason,
            }
            for index, choice in enumerate(self._reader.choices)
        ]
        return self._common_fields | {"object": "chat.completion", "choices": choices, "usage": self._reader.usage()}

    async def chunks(self, *, include_usage: bool) -> AsyncGenerator[bytes]:
        """Yield `chat.completion.chunk` events, those that are ready in one piece, then `[DONE]`."""
        indexes = range(len(self._reader.choices))
        events = [self._chunk(index, {"role": "assistant", "content": ""}) for index in indexes]
        while deltas := await self._reader.read_ready():
            try:
                for delta in deltas:
                    self._append_chunks(events, delta)
            except Exception:
                yield b"".join(events)  # those before the error
                raise
            if events:
                yield b"".join(events)
                events = []
        if include_usage:
            events.append(self._event([], {"usage": self._reader.usage()}))
        events.append(b"data: [DONE]\n\n")
        yield b"".join(events)

    def attach(self, body: ResponseBody) -> None:
        """Write chunks to this body while `chunks` waits for the next outputs."""
        self._reader.on_outputs(functools.partial(self._write_ready, body))

    def _write_ready(self, body: ResponseBody) -> None:
        """Write the chunks of the outputs that have arrived, in one piece, if the connection has room for them."""
        if not body.has_room:
            return
        events = list[bytes]()
        try:
            while (delta := self._reader.take_output()) is not None:
                self._append_chunks(events, delta)
        finally:  # those before an error
            if events:
                body.write_now(b"".join(events))

    def _append_chunks(self, events: list[bytes], delta: Delta) -> None:
        index, content, logprobs = delta.choice, delta.content, delta.logprobs
        if logprobs or (content and "content" not in content):
            events.append(self._chunk(index, content or {"content": ""}, logprobs=logprobs))
        elif content:
            before, after = self._text_frames[index]
            events += (before, _encode_json(content["content"]), after)
        if delta.is_end:
            choice = self._reader.choices[index]
            if choice.finish_reason == "tool_calls":
                calls = [{"index": number} | call for number, call in enumerate(choice.tool_calls)]
                events.append(self._chunk(index, {"tool_calls": calls}))
            elif annotations := choice.annotations:
                events.append(self._chunk(index, annotations))
            events.append(self._chunk(index, {}, finish_reason=choice.finish_reason))

    @functools.cached_property
    def _text_frames(self) -> list[tuple[bytes, bytes]]:
        """What is before and after the text in a chunk with text only, by choice. The text alone differs by token."""
        text = b'"content":'  # no string contains this: its quotes would be escaped
        indexes = range(len(self._reader.choices))
        chunks = [self._chunk(index, {"content": ""}).partition(text + b'""') for index in indexes]
        return [(before + text, after) for before, _, after in chunks]

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        *,
        logprobs: list[dict[str, Any]] | None = None,
        finish_reason: str | None = None,
    ) -> bytes:
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": _logprobs_field(logprobs or None),
            "finish_reason": finish_reason,
        }
        return self._event([choice], {})

    def _event(self, choices: list[dict[str, Any]], more: dict[str, Any]) -> bytes:
        return sse_event(self._common_fields | {"object": "chat.completion.chunk", "choices": choices} | more)


def _logprobs_field(logprobs: list[dict[str, Any]] | None) -> dict[str, Any] | None:
    return None if logprobs is None else {"content": logprobs, "refusal": None}


def _add_counts(totals: dict[str, int], counts: Mapping[str, int]) -> None:
    for name, count in counts.items():
        totals[name] = totals.get(name, 0) + count


def _finish_from(ended: RequestEnded) -> Finish | None:
    result = getattr(ended.end, "result", None)
    return result.content if result is not None and isinstance(result.content, Finish) else None

"""Text capture: prompts and responses of the last requests of each tenant, for the studio. Off unless the operator
sets `--capture-text`.

The text stays in the memory of the front end: it is in no log, file or exported span. The tenant that sent a request
and operators get it with the trace of the request. Tokens are kept as ids, and become text when the trace is queried.
"""

from __future__ import annotations

import dataclasses
from array import array
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, cast

from mstar.requests import ChatRequest, Finish, Message, Transcript
from mstar.server.openai.detokenizer import to_token_ids

MAX_CAPTURED_REQUESTS = 64
"""Maximum number of requests of one tenant with captured text; the oldest lose theirs."""
MAX_TEXT_BYTES = 32 * 1024
"""Maximum size of a captured prompt or response; the rest is dropped. A token id has 8 bytes."""
_UNDECODABLE = "(the model cannot decode its tokens)"


class BoundedText:
    """Text and token ids in their order, up to `MAX_TEXT_BYTES`."""

    def __init__(self) -> None:
        self.is_cut = False
        """Whether something was dropped."""
        self._parts: list[str | array[int]] = []
        self._bytes_left = MAX_TEXT_BYTES

    def add_text(self, text: str) -> None:
        """Append text."""
        data = text.encode(errors="replace")
        kept = data[: self._bytes_left].decode(errors="ignore")
        self._consume(len(data))
        if kept:
            self._parts.append(kept)

    def add_tokens(self, tokens: Sequence[int]) -> None:
        """Append token ids."""
        kept = tokens[: self._bytes_left // 8]
        self._consume(8 * len(tokens))
        if not self._parts or isinstance(self._parts[-1], str):
            self._parts.append(array("q"))
        cast("array[int]", self._parts[-1]).extend(kept)

    def _consume(self, size: int) -> None:
        self.is_cut |= size > self._bytes_left
        self._bytes_left = max(0, self._bytes_left - size)

    def render(self, detokenize: Callable[[Sequence[int]], str]) -> str:
        """All of it as text."""
        try:
            return "".join(part if isinstance(part, str) else detokenize([*part]) for part in self._parts)
        except Exception:  # noqa: BLE001 - the author's `detokenize` failed; its message can contain the text
            return _UNDECODABLE


class CapturedText:
    """Prompt and response of one client request."""

    def __init__(self) -> None:
        self.prompt, self.response = BoundedText(), BoundedText()

    def add_request(self, request: Any) -> None:
        """Append what a client sent."""
        if isinstance(request, ChatRequest):
            for message in request.messages:
                self.prompt.add_text(f"{_message_text(message)}\n")
            if not request.messages and request.prompt_tokens is not None:
                self.prompt.add_tokens(to_token_ids(request.prompt_tokens))
            return
        for name, text in _text_fields(request):
            self.prompt.add_text(f"{name}: {text}\n")

    def add_output(self, kind: str, value: Any) -> None:
        """Append an emission, if it is text."""
        if kind != "Text":
            return
        if isinstance(value, str):
            self.response.add_text(value)
        else:
            self.response.add_tokens(to_token_ids(value))

    def add_result(self, result: Any) -> None:
        """Append the text of a result that no emission has."""
        if isinstance(result, Transcript):
            self.response.add_text(result.text)
        elif isinstance(result, Finish):
            for call in result.tool_calls:
                self.response.add_text(f"\n{call.name}({call.arguments})")

    def content(self, detokenize: Callable[[Sequence[int]], str]) -> dict[str, Any]:
        """The text as the trace of its request returns it."""
        return {
            name: {"text": text.render(detokenize), "is_cut": text.is_cut}
            for name, text in (("prompt", self.prompt), ("response", self.response))
        }


class CapturingRecord(Protocol):
    """The record of a client request, as far as text is captured for it."""

    captured: CapturedText | None


class TextCapture:
    """The requests whose text is captured, by tenant, oldest first."""

    def __init__(self) -> None:
        self._records: defaultdict[str, deque[CapturingRecord]] = defaultdict(deque)

    def begin(self, record: CapturingRecord, tenant: str, requests: Sequence[Any]) -> None:
        """Capture the text of requests that a client request starts."""
        if record.captured is None:
            record.captured = CapturedText()
            records = self._records[tenant]
            records.append(record)
            if len(records) > MAX_CAPTURED_REQUESTS:
                records.popleft().captured = None
        for request in requests:
            record.captured.add_request(request)


def _message_text(message: Message) -> str:
    parts = [part if isinstance(part, str) else f"[{type(part).__name__}]" for part in message.parts]
    calls = [f"{call.name}({call.arguments})" for call in message.tool_calls]
    return f"{message.role}: {''.join([*parts, *calls])}"


def _text_fields(request: Any) -> Iterator[tuple[str, str]]:
    """Names and texts of the fields of a request that are text, or sequences of it."""
    if dataclasses.is_dataclass(request):
        fields = {field.name: getattr(request, field.name) for field in dataclasses.fields(request)}
    else:
        fields = cast("Mapping[str, Any]", request) if isinstance(request, Mapping) else {"request": request}
    for name, value in fields.items():
        texts = cast("Sequence[Any]", value) if isinstance(value, list | tuple) else [value]
        yield from ((name, text) for text in texts if isinstance(text, str) and text)

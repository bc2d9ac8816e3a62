"""Conversation state of a realtime session: items as clients see them, messages as models read them.

`conversation.item.truncate` removes the text that the user did not hear, so that the model does not refer to it in the
next response. This module sends no events.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from mstar.requests import AudioInput, ContentPart, Message, ToolCall, WordTimestamp
from mstar.server.errors import ApiError
from mstar.server.inputs.memory_budget import Reservation

MAX_ITEMS = 1024
"""Maximum items of a conversation."""
MAX_CONVERSATION_BYTES = 128 << 20
"""Maximum bytes of text and audio of a conversation."""
PCM_BYTES_PER_MS = 48
"""Bytes per millisecond of 16-bit mono PCM at 24 kHz."""


def new_id(kind: str) -> str:
    """Unique id such as `item_1f…`."""
    return f"{kind}_{secrets.token_hex(12)}"


@dataclass(eq=False, slots=True)
class Item:
    """One conversation item: a message, a function call, or its output."""

    id: str
    role: str
    """system, user, assistant or tool; a function call of the assistant has the role `call`."""
    parts: list[ContentPart] = field(default_factory=list[ContentPart])
    """Content of a user or system message."""
    is_audio: bool = False
    """Whether the assistant message is audio, and `text` its transcript."""
    text: str = ""
    """Text of an assistant message, or the output of a function."""
    tool_call: ToolCall | None = None
    audio_bytes_sent: int = 0
    """Bytes of assistant audio sent to the client."""
    text_alignment: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """(audio bytes, text characters) sent so far, after each audio chunk."""
    words: list[WordTimestamp] = field(default_factory=list[WordTimestamp])
    """When the words of the assistant's text are spoken, if the model reports it."""
    generated_text: str = ""
    """The assistant's text before it was cut at a word; empty if it was not."""
    is_truncated: bool = False
    """Whether the client has reported how much it played."""
    status: str = "completed"
    transcript: str | None = None
    """Transcript of the user's audio, once it is ready."""

    @property
    def size_bytes(self) -> int:
        """Approximate size, counted against MAX_CONVERSATION_BYTES."""
        sizes = (len(part.samples) * 4 if isinstance(part, AudioInput) else len(str(part)) for part in self.parts)
        return sum(sizes) + len(self.text) + (len(self.tool_call.arguments) if self.tool_call else 0)

    def add_audio(self, pcm: bytes) -> None:
        """Record that a chunk of assistant audio was sent."""
        self.audio_bytes_sent += len(pcm)
        self.text_alignment.append((self.audio_bytes_sent, len(self.text)))

    @property
    def audio_ms(self) -> int:
        """Duration of the assistant audio that was sent."""
        return self.audio_bytes_sent // PCM_BYTES_PER_MS

    def truncate(self, end_ms: int) -> None:
        """Remove the part of an assistant's audio and text after `end_ms`. Raises ApiError.

        With word timestamps, the words whose last sound had ended by then are kept, with the punctuation of the last
        one. Of a model without them, the kept share of the text equals the played share of the audio, rounded down to a
        whole word, and is at most the text that existed when that audio was sent.
        """
        if self.role != "assistant" or not self.is_audio or self.status == "in_progress":
            message = f"item_id: {self.id!r} is not a finished assistant audio message. fix: truncate only such items"
            raise ApiError(400, "invalid_truncation", message, param="item_id")
        end, is_complete = end_ms * PCM_BYTES_PER_MS, self.status == "completed"
        if end > self.audio_bytes_sent:
            message = f"audio_end_ms: {end_ms} ms is after the end of the audio. fix: send at most {self.audio_ms}"
            raise ApiError(400, "invalid_truncation", message, param="audio_end_ms")
        if end == self.audio_bytes_sent and (is_complete or not self.words):
            return
        if self.words:
            self.cut_text(end_ms)
        else:
            self._cut_text_proportionally(end)
        self.audio_bytes_sent, self.status, self.is_truncated = end, "incomplete", True

    def cut_text(self, end_ms: int) -> None:
        """Keep the words that had been spoken completely at `end_ms`. A later cut can bring words back."""
        spoken = [word for word in self.words if round(word.end * 1000) <= end_ms]
        self.generated_text = self.generated_text or self.text
        self.text, self.status = self.generated_text[: spoken[-1].text_end] if spoken else "", "incomplete"

    def _cut_text_proportionally(self, end: int) -> None:
        sent_chars = next((chars for audio_bytes, chars in self.text_alignment if audio_bytes >= end), 0)
        cut = min(len(self.text) * end // self.audio_bytes_sent, sent_chars)
        played = self.text[:cut]
        if self.text[cut : cut + 1].strip():  # inside a word
            played = played[: played.rfind(" ") + 1]
        self.text = played.rstrip()
        earlier = [(audio_bytes, chars) for audio_bytes, chars in self.text_alignment if audio_bytes < end]
        self.text_alignment = [*earlier, (end, len(self.text))]

    @property
    def payload(self) -> dict[str, Any]:
        """The OpenAI `item` object. Audio is not sent back."""
        head = {"id": self.id, "object": "realtime.item", "status": self.status}
        if self.role == "tool":
            return head | {
                "type": "function_call_output",
                "call_id": self.tool_call and self.tool_call.id,
                "output": self.text,
            }
        if self.tool_call is not None:
            call = {"call_id": self.tool_call.id, "name": self.tool_call.name, "arguments": self.tool_call.arguments}
            return head | {"type": "function_call", **call}
        return head | {"type": "message", "role": self.role, "content": self._content_parts()}

    def _content_parts(self) -> list[dict[str, Any]]:
        if self.role == "assistant":
            if self.is_audio:
                return [{"type": "output_audio", "transcript": self.text}]
            return [{"type": "output_text", "text": self.text}]
        texts = [{"type": "input_text", "text": part} for part in self.parts if isinstance(part, str)]
        audio = [
            {"type": "input_audio", "transcript": self.transcript}
            for part in self.parts
            if isinstance(part, AudioInput)
        ]
        return [*texts, *audio]

    @property
    def message(self) -> Message | None:
        """The item as a chat message; None for an assistant message without text."""
        if self.role == "tool":
            return Message("tool", (self.text,), tool_call_id=self.tool_call.id if self.tool_call else "")
        if self.tool_call is not None:
            return Message("assistant", (), (self.tool_call,))
        if self.role == "assistant":
            return Message("assistant", (self.text,)) if self.text else None
        return Message(self.role, tuple(self.parts))


class Conversation:
    """Items of one session, in order. Items that the client adds count against the memory budget of the server."""

    def __init__(self, memory: Reservation) -> None:
        self.items: list[Item] = []
        self._memory = memory
        self._reserved: dict[str, int] = {}
        """Bytes that each item has reserved, by its id."""

    def add(self, item: Item, after: str | None = None) -> str | None:
        """Insert an item at the end, after the item `after`, or first (`root`). Raises ApiError.

        Returns the id of the previous item, None if there is none.
        """
        total_bytes = sum(existing.size_bytes for existing in self.items) + item.size_bytes
        if len(self.items) >= MAX_ITEMS or total_bytes > MAX_CONVERSATION_BYTES:
            message = (
                f"the conversation has {len(self.items)} items and {total_bytes} bytes with the new one, the limit is "
                f"{MAX_ITEMS} items and {MAX_CONVERSATION_BYTES} bytes. fix: delete items"
            )
            raise ApiError(400, "conversation_full", message)
        if any(existing.id == item.id for existing in self.items):
            message = f"item.id: {item.id!r} already exists. fix: use another id or omit it"
            raise ApiError(400, "invalid_value", message, param="item.id")
        index = len(self.items) if after is None else 0 if after == "root" else self._index_of(after) + 1
        self._memory.add(item.size_bytes, "item")
        self._reserved[item.id] = item.size_bytes
        self.items.insert(index, item)
        return self.items[index - 1].id if index else None

    def find(self, item_id: str) -> Item:
        """Raises ApiError if there is no such item."""
        return self.items[self._index_of(item_id)]

    def delete(self, item_id: str) -> None:
        """Raises ApiError if there is no such item."""
        del self.items[self._index_of(item_id)]
        self._memory.remove(self._reserved.pop(item_id, 0))

    def _index_of(self, item_id: str) -> int:
        for index, item in enumerate(self.items):
            if item.id == item_id:
                return index
        message = (
            f"item_id: the conversation has no item {str(item_id)[:64]!r}. fix: use an id of conversation.item.added"
        )
        raise ApiError(400, "item_not_found", message, param="item_id")


def to_messages(items: Iterable[Item], instructions: str) -> tuple[Message, ...]:
    """Items as chat messages, with the instructions as system message."""
    system = [Message("system", (instructions,))] if instructions else []
    return (*system, *(message for item in items if (message := item.message) is not None))


def parse_item(payload: Mapping[str, Any], decode_audio: Callable[[str], AudioInput]) -> Item:
    """Parse the item of `conversation.item.create`; `decode_audio` decodes base64 PCM. Raises ApiError."""
    item_id = str(payload.get("id") or new_id("item"))
    match payload.get("type"):
        case "function_call_output":
            call = ToolCall(str(payload.get("call_id", "")), "", "")
            return Item(item_id, "tool", text=str(payload.get("output", "")), tool_call=call)
        case "function_call":
            fields = [str(payload.get(key, "")) for key in ("call_id", "name", "arguments")]
            return Item(item_id, "call", tool_call=ToolCall(*fields))
        case "message":
            return _parse_message(item_id, payload, decode_audio)
        case other:
            message = (
                f"item.type: unknown type {str(other)[:64]!r}. fix: use message, function_call or function_call_output"
            )
            raise ApiError(400, "invalid_value", message, param="item.type")


def _parse_message(item_id: str, payload: Mapping[str, Any], decode_audio: Callable[[str], AudioInput]) -> Item:
    role, content = payload.get("role"), payload.get("content")
    if role not in ("system", "user", "assistant") or not isinstance(content, list):
        message = "item: invalid message. fix: set role to system, user or assistant, and content to a list of parts"
        raise ApiError(400, "invalid_value", message, param="item.role")
    item = Item(item_id, role)
    for part in cast("list[Any]", content):
        match part:
            case {"type": "input_text" | "output_text", "text": str(text)}:
                item.parts.append(text)
            case {"type": "input_audio", "audio": str(audio)} if role == "user":
                item.parts.append(decode_audio(audio))
            case _:
                message = "item.content: unsupported part. fix: send input_text, output_text, or a user's input_audio"
                raise ApiError(400, "unsupported_media", message, param="item.content")
    if role == "assistant":
        item.text, item.parts = "".join(part for part in item.parts if isinstance(part, str)), []
    return item

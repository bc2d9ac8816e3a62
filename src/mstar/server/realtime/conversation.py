"""A conversation: what was said in a call, as items for clients and as turns for models.

What an assistant said counts as far as it was heard: when a client says that its speech was cut off, the rest of the
text is forgotten, and so the next answer is not given to something that nobody heard. Nothing is sent here.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from mstar.requests import AudioInput, ContentPart, Message, ToolCall
from mstar.server.errors import ApiError

MAX_ITEMS = 1024
"""So many items a conversation may have."""
MAX_CONVERSATION_BYTES = 128 << 20
"""So many bytes a conversation may have."""
PCM_BYTES_PER_MS = 48
"""Bytes of a millisecond of sound."""


def new_id(kind: str) -> str:
    """A name that nothing else has."""
    return f"{kind}_{secrets.token_hex(12)}"


@dataclass(eq=False, slots=True)
class Item:
    """Something that was said, called or answered."""

    id: str
    role: str
    """system, user, assistant or tool; an assistant's call has the role `call`."""
    parts: list[ContentPart] = field(default_factory=list[ContentPart])
    """What a user or the system said."""
    is_audio: bool = False
    """Whether an assistant's text is what its speech says."""
    text: str = ""
    """What an assistant said, or a tool answered."""
    tool_call: ToolCall | None = None
    audio_bytes_sent: int = 0
    """How much of an assistant's speech was sent."""
    text_alignment: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """After each piece of speech: how much of it there was, and how much text."""
    status: str = "completed"
    transcript: str | None = None
    """What a user's speech says, once that is known."""

    @property
    def size_bytes(self) -> int:
        """About how many bytes it has."""
        sizes = (len(part.samples) * 4 if isinstance(part, AudioInput) else len(str(part)) for part in self.parts)
        return sum(sizes) + len(self.text) + (len(self.tool_call.arguments) if self.tool_call else 0)

    def add_audio(self, pcm: bytes) -> None:
        """A piece of an assistant's speech was sent."""
        self.audio_bytes_sent += len(pcm)
        self.text_alignment.append((self.audio_bytes_sent, len(self.text)))

    def truncate(self, end_ms: int) -> None:
        """Forget what was said after a moment of the speech.

        The text that was heard is taken to be the same share of the text as of the speech, up to the last whole word,
        and never more than had been written when that speech was sent.
        """
        end = end_ms * PCM_BYTES_PER_MS
        if self.role != "assistant" or not self.is_audio or self.status == "in_progress":
            raise ApiError(400, "invalid_truncation", f"{self.id} is no speech that was said", param="item_id")
        if end > self.audio_bytes_sent:
            what = f"{self.id} lasts {self.audio_bytes_sent // PCM_BYTES_PER_MS} ms, and was not heard for {end_ms} ms"
            raise ApiError(400, "invalid_truncation", what, param="audio_end_ms")
        if end == self.audio_bytes_sent:
            return
        written = next((text for sound, text in self.text_alignment if sound >= end), 0)
        share = min(len(self.text) * end // self.audio_bytes_sent, written)
        heard = self.text[:share]
        if self.text[share : share + 1].strip():  # in the midst of a word
            heard = heard[: heard.rfind(" ") + 1]
        self.text, self.audio_bytes_sent, self.status = heard.rstrip(), end, "incomplete"
        self.text_alignment = [(sound, text) for sound, text in self.text_alignment if sound < end] + [
            (end, len(self.text))
        ]

    @property
    def payload(self) -> dict[str, Any]:
        """It as clients see it. Sound is not sent back."""
        head = {"id": self.id, "object": "realtime.item", "status": self.status}
        if self.role == "tool":
            return head | {
                "type": "function_call_output",
                "call_id": self.tool_call and self.tool_call.id,
                "output": self.text,
            }
        if self.tool_call is not None:
            called = {"call_id": self.tool_call.id, "name": self.tool_call.name, "arguments": self.tool_call.arguments}
            return head | {"type": "function_call", **called}
        return head | {"type": "message", "role": self.role, "content": self._content_parts()}

    def _content_parts(self) -> list[dict[str, Any]]:
        if self.role == "assistant":
            said = {"type": "output_audio", "transcript": self.text} if self.is_audio else None
            return [said or {"type": "output_text", "text": self.text}]
        shown = [{"type": "input_text", "text": part} for part in self.parts if isinstance(part, str)]
        spoken = [
            {"type": "input_audio", "transcript": self.transcript} for p in self.parts if isinstance(p, AudioInput)
        ]
        return [*shown, *spoken]

    @property
    def message(self) -> Message | None:
        """It as a model reads it, if there is anything to read."""
        if self.role == "tool":
            return Message("tool", (self.text,), tool_call_id=self.tool_call.id if self.tool_call else "")
        if self.tool_call is not None:
            return Message("assistant", (), (self.tool_call,))
        if self.role == "assistant":
            return Message("assistant", (self.text,)) if self.text else None
        return Message(self.role, tuple(self.parts))


class Conversation:
    """The items of one call, in order."""

    def __init__(self) -> None:
        self.items: list[Item] = []

    def add(self, item: Item, after: str | None = None) -> str | None:
        """Put an item at the end, or after another; the id of the one before it. Raises Refusal."""
        if (
            len(self.items) >= MAX_ITEMS
            or sum(one.size_bytes for one in self.items) + item.size_bytes > MAX_CONVERSATION_BYTES
        ):
            what = f"a conversation has at most {MAX_ITEMS} items and {MAX_CONVERSATION_BYTES} bytes; delete some"
            raise ApiError(400, "conversation_full", what)
        if any(one.id == item.id for one in self.items):
            raise ApiError(400, "invalid_value", f"there is already an item {item.id!r}", param="item.id")
        at = len(self.items) if after is None else 0 if after == "root" else self._index_of(after) + 1
        self.items.insert(at, item)
        return self.items[at - 1].id if at else None

    def find(self, name: str) -> Item:
        """An item. Raises Refusal."""
        return self.items[self._index_of(name)]

    def delete(self, name: str) -> None:
        """Forget an item. Raises Refusal."""
        del self.items[self._index_of(name)]

    def _index_of(self, name: str) -> int:
        for at, item in enumerate(self.items):
            if item.id == name:
                return at
        raise ApiError(400, "item_not_found", f"there is no item {name!r}", param="item_id")

    def to_messages(self, instructions: str) -> tuple[Message, ...]:
        """All of it, for a model."""
        first = [Message("system", (instructions,))] if instructions else []
        return (*first, *(turn for item in self.items if (turn := item.message) is not None))


def parse_item(payload: Mapping[str, Any], decode_audio: Callable[[str], AudioInput]) -> Item:
    """An item as a client describes it; `sound` reads its speech. Raises Refusal."""
    name = str(payload.get("id") or new_id("item"))
    match payload.get("type"):
        case "function_call_output":
            call = ToolCall(str(payload.get("call_id", "")), "", "")
            return Item(name, "tool", text=str(payload.get("output", "")), tool_call=call)
        case "function_call":
            fields = [str(payload.get(key, "")) for key in ("call_id", "name", "arguments")]
            return Item(name, "call", tool_call=ToolCall(*fields))
        case "message":
            return _parse_message(name, payload, decode_audio)
        case other:
            raise ApiError(400, "invalid_value", f"there are no items of type {other!r}", param="item.type")


def _parse_message(name: str, payload: Mapping[str, Any], decode_audio: Callable[[str], AudioInput]) -> Item:
    role, contents = payload.get("role"), payload.get("content")
    if role not in ("system", "user", "assistant") or not isinstance(contents, list):
        what = "a message has a role (system, user or assistant) and a list of contents"
        raise ApiError(400, "invalid_value", what, param="item.role")
    item = Item(name, role)
    for content in cast("list[Any]", contents):
        match content:
            case {"type": "input_text" | "output_text", "text": str(text)}:
                item.parts.append(text)
            case {"type": "input_audio", "audio": str(audio)} if role == "user":
                item.parts.append(decode_audio(audio))
            case _:
                what = "a content that is no text and no sound of a user is not read"
                raise ApiError(400, "unsupported_media", what, param="item.content")
    if role == "assistant":
        item.text, item.parts = "".join(part for part in item.parts if isinstance(part, str)), []
    return item

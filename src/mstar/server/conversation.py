"""A conversation: what was said in a call, as items for clients and as turns for models.

What an assistant said counts as far as it was heard: when a client says that its speech was cut off, the rest of the
text is forgotten, and so the next answer is not given to something that nobody heard. Nothing is sent here.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from mstar.asks import Part, Sound, ToolCall, Turn
from mstar.server.refusals import Refusal

ITEMS = 1024
"""So many items a conversation may have."""
LARGEST = 128 << 20
"""So many bytes a conversation may have."""
PCM_MS = 48
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
    parts: list[Part] = field(default_factory=list[Part])
    """What a user or the system said."""
    is_spoken: bool = False
    """Whether an assistant's text is what its speech says."""
    text: str = ""
    """What an assistant said, or a tool answered."""
    call: ToolCall | None = None
    sound_bytes: int = 0
    """How much of an assistant's speech was sent."""
    marks: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """After each piece of speech: how much of it there was, and how much text."""
    status: str = "completed"
    transcript: str | None = None
    """What a user's speech says, once that is known."""

    @property
    def size(self) -> int:
        """About how many bytes it has."""
        sizes = (len(part.samples) * 4 if isinstance(part, Sound) else len(str(part)) for part in self.parts)
        return sum(sizes) + len(self.text) + (len(self.call.arguments) if self.call else 0)

    def add_sound(self, pcm: bytes) -> None:
        """A piece of an assistant's speech was sent."""
        self.sound_bytes += len(pcm)
        self.marks.append((self.sound_bytes, len(self.text)))

    def cut(self, end_ms: int) -> None:
        """Forget what was said after a moment of the speech.

        The text that was heard is taken to be the same share of the text as of the speech, up to the last whole word,
        and never more than had been written when that speech was sent.
        """
        end = end_ms * PCM_MS
        if self.role != "assistant" or not self.is_spoken or self.status == "in_progress":
            raise Refusal(400, "invalid_truncation", f"{self.id} is no speech that was said", param="item_id")
        if end > self.sound_bytes:
            what = f"{self.id} lasts {self.sound_bytes // PCM_MS} ms, and was not heard for {end_ms} ms"
            raise Refusal(400, "invalid_truncation", what, param="audio_end_ms")
        if end == self.sound_bytes:
            return
        written = next((text for sound, text in self.marks if sound >= end), 0)
        share = min(len(self.text) * end // self.sound_bytes, written)
        heard = self.text[:share]
        if self.text[share : share + 1].strip():  # in the midst of a word
            heard = heard[: heard.rfind(" ") + 1]
        self.text, self.sound_bytes, self.status = heard.rstrip(), end, "incomplete"
        self.marks = [(sound, text) for sound, text in self.marks if sound < end] + [(end, len(self.text))]

    @property
    def content(self) -> dict[str, Any]:
        """It as clients see it. Sound is not sent back."""
        head = {"id": self.id, "object": "realtime.item", "status": self.status}
        if self.role == "tool":
            return head | {"type": "function_call_output", "call_id": self.call and self.call.id, "output": self.text}
        if self.call is not None:
            called = {"call_id": self.call.id, "name": self.call.name, "arguments": self.call.arguments}
            return head | {"type": "function_call", **called}
        return head | {"type": "message", "role": self.role, "content": self._contents()}

    def _contents(self) -> list[dict[str, Any]]:
        if self.role == "assistant":
            said = {"type": "output_audio", "transcript": self.text} if self.is_spoken else None
            return [said or {"type": "output_text", "text": self.text}]
        shown = [{"type": "input_text", "text": part} for part in self.parts if isinstance(part, str)]
        spoken = [{"type": "input_audio", "transcript": self.transcript} for p in self.parts if isinstance(p, Sound)]
        return [*shown, *spoken]

    @property
    def turn(self) -> Turn | None:
        """It as a model reads it, if there is anything to read."""
        if self.role == "tool":
            return Turn("tool", (self.text,), answers=self.call.id if self.call else "")
        if self.call is not None:
            return Turn("assistant", (), (self.call,))
        if self.role == "assistant":
            return Turn("assistant", (self.text,)) if self.text else None
        return Turn(self.role, tuple(self.parts))


class Conversation:
    """The items of one call, in order."""

    def __init__(self) -> None:
        self.items: list[Item] = []

    def add(self, item: Item, after: str | None = None) -> str | None:
        """Put an item at the end, or after another; the id of the one before it. Raises Refusal."""
        if len(self.items) >= ITEMS or sum(one.size for one in self.items) + item.size > LARGEST:
            what = f"a conversation has at most {ITEMS} items and {LARGEST} bytes; delete some"
            raise Refusal(400, "conversation_full", what)
        if any(one.id == item.id for one in self.items):
            raise Refusal(400, "invalid_value", f"there is already an item {item.id!r}", param="item.id")
        at = len(self.items) if after is None else 0 if after == "root" else self._at(after) + 1
        self.items.insert(at, item)
        return self.items[at - 1].id if at else None

    def find(self, name: str) -> Item:
        """An item. Raises Refusal."""
        return self.items[self._at(name)]

    def delete(self, name: str) -> None:
        """Forget an item. Raises Refusal."""
        del self.items[self._at(name)]

    def _at(self, name: str) -> int:
        for at, item in enumerate(self.items):
            if item.id == name:
                return at
        raise Refusal(400, "item_not_found", f"there is no item {name!r}", param="item_id")

    def turns(self, instructions: str) -> tuple[Turn, ...]:
        """All of it, for a model."""
        first = [Turn("system", (instructions,))] if instructions else []
        return (*first, *(turn for item in self.items if (turn := item.turn) is not None))


def item_of(told: Mapping[str, Any], sound: Callable[[str], Sound]) -> Item:
    """An item as a client describes it; `sound` reads its speech. Raises Refusal."""
    name = str(told.get("id") or new_id("item"))
    match told.get("type"):
        case "function_call_output":
            call = ToolCall(str(told.get("call_id", "")), "", "")
            return Item(name, "tool", text=str(told.get("output", "")), call=call)
        case "function_call":
            fields = [str(told.get(key, "")) for key in ("call_id", "name", "arguments")]
            return Item(name, "call", call=ToolCall(*fields))
        case "message":
            return _message(name, told, sound)
        case other:
            raise Refusal(400, "invalid_value", f"there are no items of type {other!r}", param="item.type")


def _message(name: str, told: Mapping[str, Any], sound: Callable[[str], Sound]) -> Item:
    role, contents = told.get("role"), told.get("content")
    if role not in ("system", "user", "assistant") or not isinstance(contents, list):
        what = "a message has a role (system, user or assistant) and a list of contents"
        raise Refusal(400, "invalid_value", what, param="item.role")
    item = Item(name, role)
    for content in cast("list[Any]", contents):
        match content:
            case {"type": "input_text" | "output_text", "text": str(text)}:
                item.parts.append(text)
            case {"type": "input_audio", "audio": str(audio)} if role == "user":
                item.parts.append(sound(audio))
            case _:
                what = "a content that is no text and no sound of a user is not read"
                raise Refusal(400, "unsupported_media", what, param="item.content")
    if role == "assistant":
        item.text, item.parts = "".join(part for part in item.parts if isinstance(part, str)), []
    return item

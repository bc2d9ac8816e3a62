"""State of a realtime session in the parts of its copy: encoded when they change, and restored at another server.

| part | content |
|---|---|
| `settings` | model and settings |
| `items` | ids of the items of the conversation, in order |
| `item/ID` | one item |
| `response` | what does not change in the last response |
| `position` | the rest: how far the client's messages, the input audio, the seeds and the last response are |

A response in progress is generated again by its seed (see `output_position`). KV caches are not copied: the model reads
the conversation again, as after an import. A resampler of G.711 input starts anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from mstar.server.http_exchange import parse_body
from mstar.server.realtime.backup.session_copy import Event, SessionCopy, SessionUpdate
from mstar.server.realtime.config import SessionConfig, SessionSettings, TranscriptionSettings
from mstar.server.realtime.conversation import Item
from mstar.server.realtime.input_audio_buffer import InputAudioState
from mstar.server.realtime.response import RealtimeResponse, ResponseProgress, SavedResponse
from mstar.server.realtime.saved_session import SavedItem, restore_item, save_item
from mstar.server.realtime.session import RealtimeSession

Part = TypeVar("Part")

_ITEM_PREFIX = "item/"


class SavedSettings(msgspec.Struct, frozen=True):
    """Model and settings of a session."""

    model: str
    is_transcription: bool
    settings: dict[str, Any]


class SavedPosition(msgspec.Struct, frozen=True, kw_only=True):
    """What changes most often."""

    handled_messages: int
    next_item_id: str
    seed: int
    seeds_drawn: int
    untranscribed: list[str]
    """Ids of the items whose transcript is in progress."""
    input_audio: InputAudioState
    response: ResponseProgress | None


class StateEncoder:
    """Makes the updates of one session."""

    def __init__(self, session: RealtimeSession) -> None:
        self._session = session
        self._config: SessionConfig | None = None
        self._response: RealtimeResponse | None = None
        self._item_ids: list[str] = []
        self._items: dict[str, tuple[Any, ...]] = {}
        """What can change in each item, as of its last update."""

    def make_update(self, copy: SessionCopy, events: Sequence[Event]) -> SessionUpdate:
        """The next update of a copy."""
        parts: dict[str, bytes] = {}
        session = self._session
        if session.config is not self._config:
            self._config = config = session.config
            saved = SavedSettings(config.model, config.is_transcription, config.fields)
            parts["settings"] = msgspec.msgpack.encode(saved)
        if session.response is not None and session.response is not self._response:
            self._response = session.response
            parts["response"] = msgspec.msgpack.encode(session.response.save())
        removed = self._encode_items(parts)
        parts["position"] = msgspec.msgpack.encode(_position(session))
        audio_start, audio = session.input_audio.bytes_after(copy.audio_end)
        return SessionUpdate(
            key=copy.key,
            epoch=copy.epoch,
            number=copy.number + 1,
            resume_timeout_s=copy.resume_timeout_s,
            is_whole=copy.number < 0,
            parts=parts,
            removed_parts=removed,
            events=[*events],
            audio_start=audio_start,
            audio=audio,
        )

    def _encode_items(self, parts: dict[str, bytes]) -> list[str]:
        """Add the items that have changed. Returns the parts of those that were deleted."""
        items = {item.id: item for item in self._session.conversation.items}
        if [*items] != self._item_ids:
            self._item_ids = [*items]
            parts["items"] = msgspec.msgpack.encode(self._item_ids)
        for item in items.values():
            content = _changeable(item)
            if self._items.get(item.id) != content:
                self._items[item.id] = content
                parts[f"{_ITEM_PREFIX}{item.id}"] = msgspec.msgpack.encode(_save_item(item))
        deleted = [item_id for item_id in self._items if item_id not in items]
        for item_id in deleted:
            del self._items[item_id]
        return [f"{_ITEM_PREFIX}{item_id}" for item_id in deleted]


def restore_config(copy: SessionCopy) -> SessionConfig:
    """The settings of a copy."""
    saved = _decode(copy, "settings", SavedSettings)
    kind = TranscriptionSettings if saved.is_transcription else SessionSettings
    return SessionConfig(copy.key[1], saved.model, parse_body(kind, msgspec.json.encode(saved.settings)))


def handled_messages(copy: SessionCopy) -> int:
    """Number of messages of the client that the copy reflects: the client sends the later ones again."""
    return _decode(copy, "position", SavedPosition).handled_messages


def restore_state(session: RealtimeSession, copy: SessionCopy) -> None:
    """Continue the state of a copy in a new session. Raises ApiError without memory for it."""
    position = _decode(copy, "position", SavedPosition)
    session.handled_messages, session.next_item_id = position.handled_messages, position.next_item_id
    session.seeds.seed, session.seeds.count = position.seed, position.seeds_drawn
    for item_id in _decode(copy, "items", list[str]) if "items" in copy.parts else ():
        session.conversation.add(restore_item(_decode(copy, f"{_ITEM_PREFIX}{item_id}", SavedItem)))
    session.input_audio.restore(position.input_audio, copy.audio_start, bytes(copy.audio))
    if position.response is not None:
        saved = _decode(copy, "response", SavedResponse)
        session.response = RealtimeResponse.restore(session.response_context, saved, position.response)
    for item_id in position.untranscribed:
        session.transcriber.commit(session.config, session.conversation.find(item_id))


def _decode(copy: SessionCopy, name: str, kind: type[Part]) -> Part:
    return msgspec.msgpack.decode(copy.parts[name], type=kind)


def _position(session: RealtimeSession) -> SavedPosition:
    return SavedPosition(
        handled_messages=session.handled_messages,
        next_item_id=session.next_item_id,
        seed=session.seeds.seed,
        seeds_drawn=session.seeds.count,
        untranscribed=[*session.transcriber.unfinished],
        input_audio=session.input_audio.state,
        response=session.response and session.response.progress,
    )


def _changeable(item: Item) -> tuple[Any, ...]:
    spoken = item.audio_bytes_sent, len(item.words), item.is_truncated
    return item.status, item.text, item.generated_text, item.transcript, *spoken


def _save_item(item: Item) -> SavedItem:
    saved = save_item(item)
    # The item of a response in progress gets that status when its response is restored.
    return msgspec.structs.replace(saved, status="incomplete") if item.status == "in_progress" else saved

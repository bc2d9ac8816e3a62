"""A realtime session as part of a session file: its settings, the items of its conversation, and its seeds.

Audio is 16-bit PCM, which is what clients send: the samples of an imported item are the same. Audio that is not
committed yet, and events, are not saved.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from mstar.media.vad import SAMPLE_RATE, pcm_to_samples, samples_to_pcm
from mstar.requests import AudioInput, ContentPart, ToolCall, WordTimestamp
from mstar.server.errors import ApiError
from mstar.server.http_exchange import parse_body
from mstar.server.realtime.config import SessionConfig, SessionSettings
from mstar.server.realtime.conversation import MAX_ITEMS, Conversation, Item
from mstar.server.realtime.response_seeds import ResponseSeeds

Count = Annotated[int, Meta(ge=0, lt=1 << 62)]


class SavedAudio(msgspec.Struct, frozen=True):
    """Audio of the user."""

    pcm: bytes


class SavedItem(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of `Item`."""

    id: Annotated[str, Meta(min_length=1, max_length=256)]
    role: Literal["system", "user", "assistant", "tool", "call"]
    status: Literal["completed", "incomplete"]
    parts: list[str | SavedAudio]
    text: str
    generated_text: str
    transcript: str | None
    tool_call: ToolCall | None
    is_audio: bool
    is_truncated: bool
    audio_bytes_sent: Count
    text_alignment: list[tuple[Count, Count]]
    words: list[WordTimestamp]


class SavedSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session without its connection."""

    settings: dict[str, Any]
    seed: Count
    responses: Count
    """Seeds drawn so far, one for each response that is not greedy."""
    items: Annotated[list[SavedItem], Meta(max_length=MAX_ITEMS)]


def save_session(config: SessionConfig, conversation: Conversation, seeds: ResponseSeeds) -> SavedSession:
    """Save a session in which no response is in progress. Raises ApiError for a transcription session."""
    settings, items = config.settings.model_dump(), [save_item(item) for item in conversation.items]
    return SavedSession(settings=settings, seed=seeds.seed, responses=seeds.count, items=items)


def parse_saved_session(content: dict[str, Any]) -> SavedSession:
    """Parse and validate. Raises ApiError."""
    try:
        saved = msgspec.convert(content, SavedSession)
    except msgspec.ValidationError as error:
        raise ApiError(
            400, "invalid_session_file", f"session: {error}. fix: export it again", param="session"
        ) from None
    restore_config(saved, "", "")
    return saved


def restore_config(saved: SavedSession, session_id: str, model: str) -> SessionConfig:
    """The settings of a session. Raises ApiError."""
    return SessionConfig(session_id, model, parse_body(SessionSettings, msgspec.json.encode(saved.settings)))


def restore_session(saved: SavedSession, conversation: Conversation, seeds: ResponseSeeds) -> None:
    """Continue a session in a new one. Raises ApiError."""
    seeds.seed, seeds.count = saved.seed, saved.responses
    for item in saved.items:
        conversation.add(restore_item(item))


def save_item(item: Item) -> SavedItem:
    """Save an item."""
    fields = {name: getattr(item, name) for name in SavedItem.__struct_fields__ if name != "parts"}
    return SavedItem(parts=[_save_part(part) for part in item.parts], **fields)


def _save_part(part: ContentPart) -> str | SavedAudio:
    if isinstance(part, str):
        return part
    assert isinstance(part, AudioInput), "items have text and audio"
    assert part.rate == SAMPLE_RATE, "the rate of realtime audio"
    return SavedAudio(samples_to_pcm(part.samples))


def restore_item(saved: SavedItem) -> Item:
    """Restore an item."""
    fields = {name: getattr(saved, name) for name in SavedItem.__struct_fields__ if name != "parts"}
    return Item(parts=[_restore_part(part) for part in saved.parts], **fields)


def _restore_part(part: str | SavedAudio) -> ContentPart:
    return part if isinstance(part, str) else AudioInput(pcm_to_samples(part.pcm[: len(part.pcm) & ~1]), SAMPLE_RATE)

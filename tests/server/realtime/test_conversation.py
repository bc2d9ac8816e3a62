"""Conversation of a realtime session: size limits."""

import pytest

from mstar.requests import ToolCall
from mstar.server.errors import ApiError
from mstar.server.inputs.memory_budget import MemoryBudget, Reservation
from mstar.server.realtime import conversation as conversation_module
from mstar.server.realtime.conversation import Conversation, Item


@pytest.mark.parametrize(
    "item",
    [
        Item("a", "user", parts=["x" * 60]),
        Item("a", "assistant", text="x" * 60),
        Item("a", "call", tool_call=ToolCall("id", "name", "x" * 60)),
    ],
    ids=["content", "text", "arguments"],
)
def test_all_content_counts_against_the_limit(monkeypatch, item):
    monkeypatch.setattr(conversation_module, "MAX_CONVERSATION_BYTES", 100)
    conversation = Conversation(Reservation(MemoryBudget(1 << 30), ""))
    conversation.add(item)
    conversation.add(Item("b", "assistant", text="x" * 40))
    with pytest.raises(ApiError, match="101 bytes with the new one, the limit is 1024 items and 100 bytes"):
        conversation.add(Item("c", "assistant", text="x"))
    assert [item.id for item in conversation.items] == ["a", "b"]

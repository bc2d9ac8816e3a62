"""Holds the text of tool calls back from a streamed response.

A model with the hook `tool_call_start` writes tool calls as text, and its route returns them parsed in `Finish`. The
client gets the text before the first call as content, and the calls as `tool_calls`.
"""

from __future__ import annotations

from mstar.server.openai.detokenizer import overlap


class ToolCallsText:
    """Splits streamed text where the first tool call starts. An empty `start` holds nothing back."""

    def __init__(self, start: str) -> None:
        self._start = start
        self._held_back = ""

    def add(self, text: str) -> str:
        """Add text; return the part that is no tool call for sure."""
        if not self._start:
            return text
        text = self._held_back + text
        at = text.find(self._start)
        end = len(text) - overlap(text, self._start) if at < 0 else at
        self._held_back = text[end:]
        return text[:end]

    def finish(self) -> str:
        """Return the text held back, of a response without tool calls."""
        text, self._held_back = self._held_back, ""
        return text

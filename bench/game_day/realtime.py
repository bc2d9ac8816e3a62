"""Realtime client of the game day: one turn of a conversation with the toy model over a WebSocket."""

from __future__ import annotations

import json
from typing import Any

from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from bench.game_day.observations import CUT, DECLARED, WHOLE, WRONG
from bench.models.game_day import count_text

STEPS, WAIT_S = 30, 0.01


async def hold_turn(port: int, api_key: str, number: int) -> tuple[str, str, str]:
    """Ask for the numbers of `number`. Returns the end of the turn, its error code and its text."""
    text = ""
    content = [{"type": "input_text", "text": f"count {number} {STEPS} {WAIT_S}"}]
    messages: list[dict[str, Any]] = [
        {"type": "session.update", "session": {"type": "realtime", "output_modalities": ["text"]}},
        {"type": "conversation.item.create", "item": {"type": "message", "role": "user", "content": content}},
        {"type": "response.create"},
    ]
    url, headers = f"ws://127.0.0.1:{port}/v1/realtime?model=toy", {"Authorization": f"Bearer {api_key}"}
    try:
        async with connect(url, additional_headers=headers, open_timeout=None, ping_interval=None) as call:
            for message in messages:
                await call.send(json.dumps(message))
            async for line in call:
                event: dict[str, Any] = json.loads(line)
                text += event["delta"] if event["type"] == "response.output_text.delta" else ""
                if event["type"] == "error":
                    return DECLARED, event["error"]["code"], text
                if event["type"] == "response.done":
                    return end_of_turn(event["response"], text, count_text(number, STEPS))
    except (OSError, WebSocketException):
        pass
    return CUT, "", text


def end_of_turn(response: dict[str, Any], text: str, expected: str) -> tuple[str, str, str]:
    """The end of a turn by its `response.done` event."""
    if response["status"] == "completed":
        return WHOLE if text == expected else WRONG, "", text
    error = (response.get("status_details") or {}).get("error") or {}
    return DECLARED if expected.startswith(text) else WRONG, error.get("code") or response["status"], text

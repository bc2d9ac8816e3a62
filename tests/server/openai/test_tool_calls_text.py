"""Tool calls that a model writes as text: the client gets them parsed, and only the text before them as content."""

import json

import pytest

from mstar.requests import ChatRequest, Finish, ToolCall
from mstar.server.openai.tool_calls_text import ToolCallsText
from tests.server.model_server import serve_models
from tests.server.toy_models import Parrot

TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


class ToolParrot(Parrot):
    """Echoes a message, and parses the tool call in it."""

    async def route(self, request: ChatRequest) -> Finish:
        finish = await super().route(request)
        _, start, call = request.messages[-1].parts[0].partition("<call>")
        if not start or not request.tools or not call.startswith("{"):
            return finish
        return Finish("tool_calls", finish.prompt_tokens, (ToolCall("", "weather", call),) * 2)

    def tool_call_start(self):
        return "<call>"


@pytest.fixture(scope="module")
def client():
    with serve_models({"bird": ToolParrot()}) as server, server.client() as opened:
        yield opened


def chat(client, text, **fields):
    body = {"model": "bird", "messages": [{"role": "user", "content": text}], "max_tokens": 100, "temperature": 0}
    return client.post("/v1/chat/completions", json=body | fields)


def streamed(client, text, **fields):
    """The content, the tool calls and the finish reason of a stream."""
    lines = chat(client, text, stream=True, **fields).text.splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    deltas = [event["choices"][0]["delta"] for event in events]
    calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
    reason = events[-1]["choices"][0]["finish_reason"]
    return "".join(delta.get("content") or "" for delta in deltas), calls, reason


def test_a_tool_call_is_no_content(client):
    choice = chat(client, 'Yes. <call>{"city": "x"}', tools=TOOLS).json()["choices"][0]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", "Yes. ")
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "x"}'}
    content, calls, reason = streamed(client, 'Yes. <call>{"city": "x"}', tools=TOOLS)
    assert (content, reason) == ("Yes. ", "tool_calls")
    assert [call["function"]["name"] for call in calls] == ["weather"] * 2


def test_every_tool_call_has_an_id_of_its_own_that_a_repeated_request_gets_again(client):
    def ids(request_id):
        client.headers["X-Request-Id"] = request_id
        choices = chat(client, "<call>{}", n=2, tools=TOOLS).json()["choices"]
        return [call["id"] for choice in choices for call in choice["message"]["tool_calls"]]

    first, second = ids("one"), ids("two")
    assert len({*first, *second}) == 8
    assert all(call_id.startswith("call_") for call_id in first)
    assert ids("one") == first
    del client.headers["X-Request-Id"]


@pytest.mark.parametrize("text", ["a <call>broken", "a < b <cal", "plain"])
def test_text_that_is_no_call_is_content(client, text):
    assert chat(client, text, tools=TOOLS).json()["choices"][0]["message"]["content"] == text
    assert streamed(client, text, tools=TOOLS) == (text, [], "stop")


def test_without_tools_nothing_is_held_back(client):
    assert streamed(client, "a <call>{}") == ("a <call>{}", [], "stop")


def test_text_is_released_as_soon_as_it_is_no_call():
    held = ToolCallsText("<call>")
    assert [held.add(text) for text in ("ab<c", "at", "<call", ">{", "}")] == ["ab", "<cat", "", "", ""]
    assert held.finish() == "<call>{}"
    assert ToolCallsText("").add("<call>") == "<call>"

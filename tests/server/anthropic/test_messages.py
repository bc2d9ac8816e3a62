"""Tests of /v1/messages: blocks, tools, stop reasons, events and errors. `tests/clients` uses the official SDK."""

from __future__ import annotations

import base64
import io
import json

import pytest
from PIL import Image

from mstar.server.access.api_keys import ApiKeys
from tests.server.toy_models import BOOM
from tests.server.toy_server import run_toy_server

LOOK = {"name": "look", "description": "Look.", "input_schema": {"type": "object", "properties": {}}}
CALL = '{"name": "look", "arguments": {"at": 1}}'


def body(text, **params):
    return {"model": "parrot", "max_tokens": 100, "messages": [{"role": "user", "content": text}]} | params


def send(server, text, **params):
    with server.client() as client:
        return client.post("/v1/messages", json=body(text, **params))


def events_of(server, text, **params):
    """The events of a streamed message, each with the name of its SSE event."""
    events = []
    for block in send(server, text, stream=True, **params).text.strip().split("\n\n"):
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def test_a_message_has_text_and_usage(server):
    response = send(server, "Grüße", system="be short", metadata={"user_id": "u"}, cache_control={"type": "ephemeral"})
    message = response.json()
    assert message.pop("id") == f"msg_{response.headers['x-request-id']}"
    assert message == {
        "type": "message",
        "role": "assistant",
        "model": "parrot",
        "content": [{"type": "text", "text": "Grüße", "citations": None}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 13,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 7,
        },
    }
    assert [message.role for message in server.parrot.seen[-1].messages] == ["system", "user"]


def test_a_streamed_message_has_its_events_in_order(server):
    events = events_of(server, "aé")
    assert [event["type"] for event in events] == [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert (events[0]["message"]["content"], events[0]["message"]["stop_reason"]) == ([], None)
    assert events[2]["content_block"]["text"] == ""
    assert [event["delta"]["text"] for event in events[3:5]] == ["a", "é"]
    assert events[6]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert (events[6]["usage"]["input_tokens"], events[6]["usage"]["output_tokens"]) == (2, 3)


@pytest.mark.parametrize(
    ("params", "text", "reason", "sequence"),
    [
        ({"max_tokens": 3}, "abc", "max_tokens", None),
        ({"stop_sequences": ["x", "de"]}, "abc", "stop_sequence", "de"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_the_stop_reason_tells_why_a_message_ended(server, params, text, reason, sequence, stream):
    if stream:
        events = events_of(server, "abcdef", **params)
        end = next(event["delta"] for event in events if event["type"] == "message_delta")
        written = "".join(event["delta"]["text"] for event in events if event["type"] == "content_block_delta")
    else:
        end = send(server, "abcdef", **params).json()
        written = end["content"][0]["text"]
    assert (written, end["stop_reason"], end["stop_sequence"]) == (text, reason, sequence)


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "look"}])
def test_a_forced_tool_is_called(server, choice):
    message = send(server, CALL, tools=[LOOK], tool_choice=choice).json()
    (block,) = message["content"]
    assert (block["type"], block["name"], block["input"]) == ("tool_use", "look", {"at": 1})
    assert message["stop_reason"] == "tool_use"
    assert "look" in server.parrot.seen[-1].sampling.grammar.text


def test_a_streamed_tool_call_has_its_input_as_json(server):
    events = events_of(server, CALL, tools=[LOOK], tool_choice={"type": "any"})
    start, delta = events[2:4]
    assert (start["content_block"]["name"], start["content_block"]["input"]) == ("look", {})
    assert json.loads(delta["delta"]["partial_json"]) == {"at": 1}


def test_blocks_become_messages(server):
    image = io.BytesIO()
    Image.new("RGB", (3, 2), (255, 0, 9)).save(image, "PNG")
    no = [{"type": "text", "text": "no"}]
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(image.getvalue()).decode()}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": 1}},
                {"type": "tool_use", "id": "c2", "name": "look", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "found"},
                {"type": "tool_result", "tool_use_id": "c2", "content": no, "is_error": True},
                {"type": "image", "source": source},
                {"type": "text", "text": "b"},
            ],
        },
    ]
    options = {"temperature": 0.5, "top_p": 0.25, "top_k": 7, "tools": [LOOK], "tool_choice": {"type": "none"}}
    message = send(server, "", messages=messages, system=[{"type": "text", "text": "s"}], **options).json()
    assert message["content"][0]["text"] == "<ImageInput>b"
    chat = server.parrot.seen[-1]
    assert [one.role for one in chat.messages] == ["system", "user", "assistant", "tool", "tool", "user"]
    assert [(call.id, call.arguments) for call in chat.messages[2].tool_calls] == [("c1", '{"at":1}'), ("c2", "{}")]
    assert [one.parts for one in chat.messages[3:5]] == [("found",), ("Error: ", "no")]
    assert chat.messages[5].parts[0].pixels.shape == (2, 3, 3)
    sampling = chat.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, chat.tools) == (0.5, 0.25, 7, ())


def test_a_format_becomes_a_grammar(server):
    schema = {"type": "object", "required": ["city"]}
    send(server, "{}", output_config={"format": {"type": "json_schema", "schema": schema}})
    assert json.loads(server.parrot.seen[-1].sampling.grammar.text)["required"] == ["city"]


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking"),
        ({"output_config": {"effort": "high"}}, "output_config.effort"),
        ({"container": "c"}, "container"),
        ({"mcp_servers": [{"type": "url", "url": "http://x", "name": "x"}]}, "mcp_servers"),
        ({"speed": "fast"}, "speed"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"temperature": 1.5}, "temperature"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0]"),
        ({"tools": [LOOK | {"defer_loading": True}]}, "tools[0].defer_loading"),
        ({"tools": [{"type": "mcp_toolset", "mcp_server_name": "x"}]}, "tools[0]: no MCP server is configured"),
        ({"tools": [LOOK], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [LOOK], "tool_choice": {"type": "tool", "name": "grip"}}, "tool_choice"),
        ({"tool_choice": {"type": "any"}}, "tools"),
        ({"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}, "messages"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "1", "name": "a", "input": {}}]}]},
            "messages[0].content[0]",
        ),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"$ref": "#"}}}},
            "output_config.format.schema",
        ),
    ],
)
def test_what_is_not_supported_is_an_error(server, params, field):
    seen = len(server.parrot.seen)
    response = send(server, "x", **params)
    error = response.json()
    assert (response.status_code, error["type"], error["error"]["type"]) == (400, "error", "invalid_request_error")
    assert error["error"]["message"].startswith(field), error
    assert len(server.parrot.seen) == seen


def test_errors_have_the_form_of_the_api(server):
    error = send(server, "x", model="unknown")
    assert (error.status_code, error.json()["error"]["type"]) == (404, "not_found_error")
    with server.client() as client:
        error = client.post("/v1/messages", content=b"{", headers={"Content-Type": "application/json"})
        assert (error.status_code, error.json()["error"]["type"]) == (400, "invalid_request_error")
    error = send(server, BOOM)
    assert (error.status_code, error.json()["error"]["type"]) == (500, "api_error")
    events = events_of(server, f"ab{BOOM}")
    assert [event["type"] for event in events[-2:]] == ["content_block_delta", "error"]
    assert events[-1]["error"]["type"] == "api_error"


def test_a_key_is_accepted_as_x_api_key():
    with run_toy_server(keys=ApiKeys(["k"])) as server, server.client() as client:
        rejected = client.post("/v1/messages", json=body("x"), headers={"x-api-key": "wrong"})
        assert (rejected.status_code, rejected.json()["error"]["type"]) == (401, "authentication_error")
        assert client.post("/v1/messages", json=body("x"), headers={"X-Api-Key": "k"}).status_code == 200
        both = {"x-api-key": "k", "Authorization": "Bearer wrong"}
        assert client.post("/v1/messages", json=body("x"), headers=both).status_code == 401

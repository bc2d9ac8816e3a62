"""The tool loop over all three APIs, with a real MCP server and a model that calls tools by a script."""

import asyncio
import json

import pytest
from openai import APIStatusError, BadRequestError

from mstar.server.tools.mcp_server import RETRY_AFTER_S
from tests.server.tools.records import TOOL, TOOLSET


def call(text, name="record", **more):
    return [name, {"text": text} | more]


TWO_ROUNDS = [["First. ", call("a")], [call("b"), call("c")], "done: {results}"]
RESULT = "done: recorded a,recorded b,recorded c"


def chat(openai, script, **params):
    messages = [{"role": "user", "content": json.dumps(script)}]
    return openai.chat.completions.create(**{"model": "scripted", "messages": messages, "tools": [TOOL]} | params)


def respond(openai, script, **params):
    return openai.responses.create(**{"model": "scripted", "input": json.dumps(script), "tools": [TOOL]} | params)


def send(served, script, **params):
    """A message of Anthropic's API."""
    body = {"model": "scripted", "max_tokens": 400, "tools": [TOOLSET]}
    with served.client() as client:
        messages = [{"role": "user", "content": json.dumps(script)}]
        return client.post("/v1/messages", json=body | {"messages": messages} | params)


# ---------------------------------------------------------------- /v1/chat/completions
@pytest.mark.parametrize("stream", [False, True])
def test_chat_answers_after_two_rounds_of_calls(served, openai, stream):
    options = {"stream_options": {"include_usage": True}} if stream else {}
    result = chat(openai, TWO_ROUNDS, stream=stream, **options)
    if stream:
        *chunks, last = result
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        reason, usage = chunks[-1].choices[0].finish_reason, last.usage
        assert not any(chunk.choices[0].delta.tool_calls for chunk in chunks)
    else:
        (choice,) = result.choices
        text, reason, usage = choice.message.content, choice.finish_reason, result.usage
        assert choice.message.tool_calls is None
    assert (text, reason) == ("First. " + RESULT, "stop")
    assert served.records.lines == ["a", "b", "c"]
    assert usage.completion_tokens == len("First. <call>" + "<call>" + RESULT)
    first, second, third = served.models["scripted"].seen[-3:]
    assert [tool.name for tool in first.tools] == ["record", "wait", "die"]
    assert [message.role for message in third.messages] == [
        *("user", "assistant", "tool", "assistant", "tool", "tool"),
    ]
    ids = [call.id for message in third.messages for call in message.tool_calls]
    assert [message.tool_call_id for message in third.messages if message.role == "tool"] == ids
    assert len({*ids}) == 3
    assert second.messages[1].parts == ("First. ",)


def test_a_forced_call_forces_the_first_round_only(served, openai):
    messages = [{"role": "user", "content": '{"name": "record", "arguments": {"text": "x"}}'}]
    choice = {"type": "function", "function": {"name": "record"}}
    options = {"model": "parrot", "messages": messages, "tools": [TOOL], "tool_choice": choice}
    answer = openai.chat.completions.create(**options).choices[0]
    assert (answer.message.content, answer.finish_reason) == ("recorded x", "stop")  # it repeats the last message
    assert served.records.lines == ["x"]
    first, second = served.models["parrot"].seen[-2:]
    assert "record" in first.sampling.grammar.text
    assert second.sampling.grammar is None


def test_max_tokens_are_those_of_all_rounds(served, openai):
    answer = chat(openai, TWO_ROUNDS, max_tokens=30).choices[0]
    assert (answer.message.content, answer.finish_reason) == ("First. " + RESULT[:11], "length")
    assert served.records.lines == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({"n": 2}, "unsupported_parameter"),
        ({"tools": [TOOL, {"type": "function", "function": {"name": "look"}}]}, "unsupported_parameter"),
        ({"tools": [TOOL | {"server_label": "record"}]}, "mcp_server_not_found"),
        ({"tools": [TOOL | {"allowed_tools": ["erase"]}]}, "tool_not_allowed"),
        ({"tools": [TOOL | {"require_approval": "always"}]}, "invalid_value"),
        ({"tools": [{"type": "mcp", "server_label": "records"}]}, "invalid_value"),
        ({"tools": [TOOL | {"server_url": "http://127.0.0.1:1/mcp"}]}, "invalid_value"),
        ({"tools": [TOOL, TOOL]}, "invalid_value"),
    ],
)
def test_what_is_not_supported_or_not_allowed_is_rejected(served, openai, params, code):
    seen = len(served.models["scripted"].seen)
    with pytest.raises(BadRequestError) as error:
        chat(openai, ["x"], **params)
    assert error.value.code == code
    assert len(served.models["scripted"].seen) == seen


def test_a_server_that_cannot_start_is_unavailable(openai):
    with pytest.raises(APIStatusError, match="the MCP server `broken` cannot be reached") as error:
        chat(openai, ["x"], tools=[TOOL | {"server_label": "broken"}])
    assert (error.value.status_code, error.value.code) == (503, "mcp_unavailable")
    assert error.value.response.headers["retry-after"] == str(round(RETRY_AFTER_S))


# ---------------------------------------------------------------- failed calls
def test_a_tool_that_is_not_allowed_is_not_called(served, openai):
    served.records.clear()
    answer = chat(openai, [[["erase", {}]], "{tools}: {results}"]).choices[0].message.content
    assert answer == "record,wait,die: Error: there is no tool erase"
    narrow = TOOL | {"allowed_tools": ["record"]}
    answer = chat(openai, [[call("a", "wait", seconds=0)], "{tools}: {results}"], tools=[narrow])
    assert answer.choices[0].message.content == "record: Error: there is no tool wait"
    assert served.records.lines == []


def test_a_call_that_takes_too_long_is_not_repeated(served, openai):
    state, patient = served.state, served.state.mcp_servers
    state.mcp_servers = served.records.servers(call_timeout_s=0.5)
    try:
        script = [[call("late", "wait", seconds=60)], [call("next")], "{results}"]
        answer = chat(openai, script).choices[0].message.content
    finally:
        asyncio.run_coroutine_threadsafe(state.mcp_servers.close(), state.bridge.loop).result(30)
        state.mcp_servers = patient
    assert answer == "Error: the tool wait did not answer within 0.5 s,recorded next"
    assert served.records.lines == ["late", "next"]


def test_a_server_that_dies_is_started_for_the_next_request(served, openai):
    answer = chat(openai, [[call("last", "die")], "{results}"]).choices[0].message.content
    assert answer.startswith("Error: the call of the tool die failed")
    assert served.records.lines == ["last"]
    assert chat(openai, [[call("a")], "{results}"]).choices[0].message.content == "recorded a"
    assert served.records.lines == ["last", "a"]


@pytest.mark.parametrize("arguments", ['"text"', {"test": "a"}])
def test_wrong_arguments_are_an_error_for_the_model(served, openai, arguments):
    answer = chat(openai, [[["record", arguments]], "{results}"]).choices[0].message.content
    assert answer.startswith("Error: ")
    assert served.records.lines == []


def test_after_the_maximum_of_rounds_the_model_answers_without_tools(served, openai):
    most = served.state.limits.max_tool_rounds
    script = [*[[call(str(number))] for number in range(most)], "tools: {tools}"]
    assert chat(openai, script).choices[0].message.content == "tools: "
    assert served.records.lines == [str(number) for number in range(most)]
    endless = chat(openai, [[call("again")]] * (most + 2)).choices[0]
    assert (endless.finish_reason, endless.message.tool_calls) == ("stop", None)
    assert len(served.records.lines) == 2 * most


def test_a_client_does_not_retry_after_a_call(served, openai):
    with pytest.raises(APIStatusError) as error:
        chat(openai, [[call("a")]])  # the script has no second round: the model fails
    assert error.value.status_code == 500
    assert error.value.response.headers["x-should-retry"] == "false"
    assert served.records.lines == ["a"]


# ---------------------------------------------------------------- /v1/responses
@pytest.mark.parametrize("stream", [False, True])
def test_a_response_has_the_calls_as_items(served, openai, stream):
    result = respond(openai, TWO_ROUNDS, stream=stream)
    response = [*result][-1].response if stream else result
    kinds = ["mcp_list_tools", "message", "mcp_call", "mcp_call", "mcp_call", "message"]
    assert [item.type for item in response.output] == kinds
    assert [tool.name for tool in response.output[0].tools] == ["record", "wait", "die"]
    assert [(item.name, item.server_label, item.output, item.status) for item in response.output[2:5]] == [
        ("record", "records", f"recorded {text}", "completed") for text in "abc"
    ]
    assert response.output_text == "First. " + RESULT
    assert served.records.lines == ["a", "b", "c"]


def test_the_events_of_a_call_are_in_order(served, openai):
    events = [*respond(openai, [[call("a")], "x"], stream=True)]
    assert [event.sequence_number for event in events] == [*range(len(events))]
    assert [event.type.removeprefix("response.") for event in events] == [
        *("created", "in_progress"),
        *("output_item.added", "mcp_list_tools.in_progress", "mcp_list_tools.completed", "output_item.done"),
        *("output_item.added", "mcp_call.in_progress", "mcp_call_arguments.delta", "mcp_call_arguments.done"),
        *("mcp_call.completed", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done", "completed"),
    ]
    indexes = [event.output_index for event in events if hasattr(event, "output_index")]
    assert indexes == sorted(indexes)
    assert {*indexes} == {0, 1, 2}


def test_a_failed_call_is_a_failed_item(served, openai):
    events = [*respond(openai, [[["erase", {}]], "x"], stream=True)]
    assert "response.mcp_call.failed" in [event.type for event in events]
    item = events[-1].response.output[1]
    assert (item.status, item.output, item.error.type) == ("failed", None, "mcp_tool_execution_error")


@pytest.mark.parametrize("is_stored", [False, True])
def test_a_conversation_continues_with_the_calls(served, openai, is_stored):
    first = respond(openai, [[call("a")], "x"])
    script = json.dumps(["second"])
    if is_stored:
        respond(openai, ["second"], previous_response_id=first.id)
    else:
        items = [item.model_dump() for item in first.output]
        respond(openai, None, input=[{"role": "user", "content": "[]"}, *items, {"role": "user", "content": script}])
    messages = served.models["scripted"].seen[-1].messages
    assert [message.role for message in messages] == ["user", "assistant", "tool", "assistant", "user"]
    assert messages[1].tool_calls[0].name == "record"
    assert messages[2].parts == ("recorded a",)


def test_calls_of_a_function_end_the_loop(served, openai):
    look = {"type": "function", "name": "look", "parameters": {}, "strict": False}
    response = respond(openai, [[call("a"), ["look", {}]], "never"], tools=[TOOL, look])
    assert [item.type for item in response.output] == ["mcp_list_tools", "mcp_call", "function_call"]
    assert served.records.lines == ["a"]


def test_a_background_response_calls_tools(served, openai):
    response = respond(openai, TWO_ROUNDS, background=True)
    while response.status in ("queued", "in_progress"):
        response = openai.responses.retrieve(response.id)
    assert response.output_text == "First. " + RESULT
    assert served.records.lines == ["a", "b", "c"]


def test_a_named_tool_of_a_server_is_forced(served, openai):
    choice = {"type": "mcp", "server_label": "records", "name": "record"}
    text = '{"name": "record", "arguments": {"text": "x"}}'
    response = respond(openai, None, model="parrot", input=text, tool_choice=choice)
    assert [item.type for item in response.output] == ["mcp_list_tools", "mcp_call", "message"]
    assert served.records.lines == ["x"]
    with pytest.raises(BadRequestError, match="tool_choice: the MCP server 'broken' has no tool 'record' here"):
        respond(openai, None, model="parrot", input=text, tool_choice=choice | {"server_label": "broken"})
    assert served.records.lines == ["x"]


# ---------------------------------------------------------------- /v1/messages
def test_a_message_has_the_calls_as_blocks(served):
    message = send(served, TWO_ROUNDS).json()
    kinds = ["text", *["mcp_tool_use", "mcp_tool_result"] * 3, "text"]
    assert [block["type"] for block in message["content"]] == kinds
    use, result = message["content"][1:3]
    assert (use["name"], use["server_name"], use["input"]) == ("record", "records", {"text": "a"})
    assert (result["tool_use_id"], result["is_error"]) == (use["id"], False)
    assert result["content"][0]["text"] == "recorded a"
    assert (message["content"][-1]["text"], message["stop_reason"]) == (RESULT, "end_turn")
    assert served.records.lines == ["a", "b", "c"]


def test_blocks_of_calls_continue_a_conversation(served):
    message = send(served, [[call("a")], "x"]).json()
    turns = [
        {"role": "user", "content": "[]"},
        {"role": "assistant", "content": message["content"]},
        {"role": "user", "content": json.dumps(["y"])},
    ]
    assert send(served, None, messages=turns).json()["content"][0]["text"] == "y"
    messages = served.models["scripted"].seen[-1].messages
    assert [one.role for one in messages] == ["user", "assistant", "tool", "assistant", "user"]
    assert (messages[1].tool_calls[0].name, messages[2].parts) == ("record", ("recorded a",))


def test_a_toolset_enables_tools_by_name(served):
    toolset = TOOLSET | {"default_config": {"enabled": False}, "configs": {"record": {"enabled": True}}}
    assert send(served, ["{tools}"], tools=[toolset]).json()["content"][0]["text"] == "record"
    toolset = TOOLSET | {"configs": {"die": {"enabled": False}}}
    assert send(served, ["{tools}"], tools=[toolset]).json()["content"][0]["text"] == "record,wait"
    toolset = TOOLSET | {"configs": {"dye": {"enabled": False}}}
    assert send(served, ["{tools}"], tools=[toolset]).status_code == 400


def test_tools_of_the_client_and_of_the_server_are_combined(served):
    look = {"name": "look", "input_schema": {"type": "object"}}
    message = send(served, [[call("a"), ["look", {"at": 1}]], "never"], tools=[TOOLSET, look]).json()
    assert [block["type"] for block in message["content"]] == ["mcp_tool_use", "mcp_tool_result", "tool_use"]
    assert (message["content"][2]["input"], message["stop_reason"]) == ({"at": 1}, "tool_use")

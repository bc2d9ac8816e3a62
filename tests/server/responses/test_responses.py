"""Tests of /v1/responses with the OpenAI SDK: input items, tools, structured output, events, stored responses."""

from __future__ import annotations

import base64
import gc
import io
import json
import time

import pytest
from openai import BadRequestError, InternalServerError, NotFoundError, OpenAI
from PIL import Image
from pydantic import BaseModel

from mstar.server.http_exchange import HttpExchange
from mstar.server.responses import store as response_store
from tests.server.model_server import serve_models
from tests.server.openai.test_completion import PlainTextModel, ScoringModel
from tests.server.toy_models import BOOM

TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}, "strict": False}
CALL = '{"name": "look", "arguments": {"at": 1}}'


@pytest.fixture(scope="module")
def scoring():
    with (
        serve_models({"oracle": ScoringModel(), "teller": PlainTextModel()}) as served,
        OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def respond(openai, content, **params):
    return openai.responses.create(**{"model": "parrot", "input": content} | params)


def events_of(server, **body):
    """The events of a streamed response, each with the name of its SSE event."""
    with server.client() as client:
        text = client.post("/v1/responses", json={"model": "parrot", "stream": True} | body).text
    events = []
    for block in text.strip().split("\n\n"):
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    return events


# ---------------------------------------------------------------- output
def test_a_response_has_text_and_usage(openai):
    response = respond(openai, "Grüße", instructions="be short", metadata={"a": "b"}, max_output_tokens=50)
    assert (response.object, response.status, response.output_text) == ("response", "completed", "Grüße")
    assert (response.usage.input_tokens, response.usage.output_tokens, response.usage.total_tokens) == (13, 7, 20)
    assert (response.instructions, response.metadata, response.max_output_tokens) == ("be short", {"a": "b"}, 50)
    assert response.output[0].content[0].annotations == []
    assert response.id.startswith("resp_")
    assert response.completed_at >= response.created_at


def test_usage_is_null_if_the_model_does_not_count_tokens(scoring):
    assert respond(scoring, "a|b", model="teller").usage is None


@pytest.mark.parametrize("stream", [False, True])
def test_a_truncated_response_is_incomplete(server, openai, stream):
    if stream:
        last = events_of(server, input="abcdef", max_output_tokens=3)[-1]
        assert last["type"] == "response.incomplete"
        content = last["response"]
    else:
        content = respond(openai, "abcdef", max_output_tokens=3).model_dump()
    assert (content["status"], content["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert content["output"][0]["content"][0]["text"] == "abc"
    assert content["output"][0]["status"] == "incomplete"


def test_a_streamed_response_has_its_events_in_order(server):
    events = events_of(server, input="aé")
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event["delta"] for event in events if "delta" in event] == ["a", "é"]
    assert (events[0]["response"]["status"], events[0]["response"]["output"]) == ("in_progress", [])
    assert (events[2]["item"]["status"], events[2]["item"]["content"]) == ("in_progress", [])
    assert (events[3]["part"]["text"], events[6]["text"], events[7]["part"]["text"]) == ("", "aé", "aé")
    assert events[8]["item"] == events[9]["response"]["output"][0]
    assert {event["item_id"] for event in events if "item_id" in event} == {events[8]["item"]["id"]}
    assert {event["response"]["id"] for event in events if "response" in event} == {events[0]["response"]["id"]}


def test_a_streamed_tool_call_has_its_events_in_order(server):
    events = events_of(server, input=CALL, tools=[TOOL], tool_choice="required")
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert (events[2]["item"]["name"], events[2]["item"]["arguments"]) == ("look", "")
    assert (events[3]["delta"], events[4]["arguments"]) == ('{"at":1}', '{"at":1}')
    assert events[6]["response"]["output"] == [events[5]["item"]]


def test_the_stream_of_the_sdk_accumulates_the_response(openai):
    with openai.responses.stream(model="parrot", input="hello") as stream:
        texts = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
        response = stream.get_final_response()
    assert texts == ["h", "he", "hel", "hell", "hello"]
    assert response.output_text == "hello"


def test_an_empty_response_has_an_empty_message(scoring):
    response = respond(scoring, [{"role": "user", "content": ""}], model="oracle")
    assert (response.status, response.output_text, len(response.output)) == ("completed", "", 1)


@pytest.mark.parametrize("stream", [False, True])
def test_several_tool_calls_are_several_items(scoring, stream):
    params = {"model": "oracle", "tools": [TOOL], "stream": stream}
    result = respond(scoring, "x", **params)
    response = [*result][-1].response if stream else result
    assert [(item.type, item.call_id, item.arguments) for item in response.output] == [
        ("function_call", "c0", "0"),
        ("function_call", "c1", "1"),
    ]
    one = respond(scoring, "x", parallel_tool_calls=False, **params)
    assert len(([*one][-1].response if stream else one).output) == 1


def test_logprobs_are_included_on_request(scoring):
    params = {"model": "oracle", "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    entries = respond(scoring, "ab", **params).output[0].content[0].logprobs
    assert [(entry.token, entry.logprob) for entry in entries] == [("a", 0), ("b", -0.25)]
    assert [top.token for top in entries[0].top_logprobs] == ["a", "b"]
    deltas = [event for event in respond(scoring, "ab", stream=True, **params) if event.type.endswith("text.delta")]
    assert [entry.token for event in deltas for entry in event.logprobs] == ["a", "b"]
    with pytest.raises(BadRequestError, match="include: the model does not provide logprobs"):
        respond(scoring, "a", **params | {"model": "teller"})


# ---------------------------------------------------------------- input
def test_items_become_messages(server, openai):
    items = [
        {"role": "developer", "content": "be short"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "I look.", "annotations": []}]},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "found"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "lost"}]},
        {"role": "user", "content": "b"},
    ]
    assert respond(openai, items, instructions="first", temperature=0.5, top_p=0.25).output_text == "b"
    chat = server.parrot.seen[-1]
    roles = ["system", "system", "user", "assistant", "tool", "tool", "user"]
    assert [message.role for message in chat.messages] == roles
    assert chat.messages[0].parts == ("first",)
    assert [call.id for call in chat.messages[3].tool_calls] == ["c1", "c2"]
    assert [(message.tool_call_id, message.parts) for message in chat.messages[4:6]] == [
        ("c1", ("found",)),
        ("c2", ("lost",)),
    ]
    assert (chat.sampling.temperature, chat.sampling.top_p) == (0.5, 0.25)


def test_images_are_decoded(server, openai):
    image = io.BytesIO()
    Image.new("RGB", (3, 2), (255, 0, 9)).save(image, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(image.getvalue()).decode()}"
    content = [
        {"type": "input_text", "text": "see "},
        {"type": "input_image", "image_url": url, "detail": "auto"},
        {"type": "input_file", "file_data": url, "filename": "a.png"},
    ]
    assert respond(openai, [{"role": "user", "content": content}]).output_text == "see <ImageInput><ImageInput>"
    assert server.parrot.seen[-1].messages[0].parts[1].pixels.shape == (2, 3, 3)


class Place(BaseModel):
    city: str


def test_a_text_format_becomes_a_grammar(server, openai):
    parsed = openai.responses.parse(model="parrot", input='{"city": "Paris"}', text_format=Place)
    assert parsed.output_parsed == Place(city="Paris")
    assert json.loads(server.parrot.seen[-1].sampling.grammar.text)["required"] == ["city"]
    respond(openai, "{}", text={"format": {"type": "json_object"}})
    assert json.loads(server.parrot.seen[-1].sampling.grammar.text) == {"type": "object"}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "look"}])
def test_a_required_tool_is_called(server, openai, choice):
    response = respond(openai, CALL, tools=[TOOL], tool_choice=choice)
    (call,) = response.output
    assert (call.type, call.name, call.arguments, call.status) == ("function_call", "look", '{"at":1}', "completed")
    assert "look" in server.parrot.seen[-1].sampling.grammar.text
    assert response.tools[0].name == "look"


@pytest.mark.parametrize(
    ("params", "code", "param"),
    [
        ({"conversation": "conv_1"}, "unsupported_parameter", "conversation"),
        ({"max_tool_calls": 1}, "unsupported_parameter", "max_tool_calls"),
        ({"prompt": {"id": "pmpt_1"}}, "unsupported_parameter", "prompt"),
        ({"truncation": "auto"}, "unsupported_parameter", "truncation"),
        ({"background": True, "stream": True}, "unsupported_parameter", "stream"),
        ({"background": True, "store": False}, "unsupported_parameter", "store"),
        ({"tools": [{"type": "web_search"}]}, "unsupported_parameter", "tools[0]"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "grip"}}, "invalid_value", "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "invalid_value", "text.format"),
        ({"previous_response_id": "resp_1"}, "previous_response_not_found", "previous_response_id"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "unsupported_parameter", "input[0]"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "invalid_value", "input[0]"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "file_1"}]}]},
            "unsupported_media",
            "input[0].content[0]",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://127.0.0.1/x.png"}]}]},
            "url_not_allowed",
            "image_url",
        ),
    ],
)
def test_an_unsupported_request_reaches_no_model(server, params, code, param):
    seen = len(server.parrot.seen)
    with server.client() as client:
        response = client.post("/v1/responses", json={"model": "parrot", "input": "x"} | params)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, code, param), error
    assert "fix: " in error["message"]
    assert len(server.parrot.seen) == seen


def test_errors_of_the_chat_path_name_the_fields_of_this_api(scoring):
    part = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
    with pytest.raises(BadRequestError, match="- input: the model `oracle` does not accept images") as error:
        respond(scoring, [{"role": "user", "content": [part]}], model="oracle")
    assert error.value.param == "input"


def test_a_failure_during_a_stream_is_a_failed_response(server, openai):
    events = events_of(server, input=f"ab{BOOM}")
    assert events[-1]["type"] == "response.failed"
    failed = events[-1]["response"]
    assert (failed["status"], failed["error"]["code"]) == ("failed", "model_error")
    assert "secret" not in json.dumps(events)
    with pytest.raises(NotFoundError):
        openai.responses.retrieve(failed["id"])
    with pytest.raises(InternalServerError):
        respond(openai, f"ab{BOOM}")
    with pytest.raises(InternalServerError):  # before the first output
        respond(openai, BOOM, stream=True)


def test_a_disconnect_cancels_the_response(server, openai):
    stream = respond(openai, "slow " + "x" * 2000, stream=True)
    next(iter(stream))
    stream.close()
    assert server.wait_until_idle()


# ---------------------------------------------------------------- stored responses
def test_a_response_continues_the_previous_one(server, openai):
    first = respond(openai, "one", instructions="not carried over")
    second = respond(openai, "two", previous_response_id=first.id)
    respond(openai, "three", previous_response_id=second.id)
    messages = server.parrot.seen[-1].messages
    assert [(message.role, message.parts) for message in messages] == [
        ("user", ("one",)),
        ("assistant", ("one",)),
        ("user", ("two",)),
        ("assistant", ("two",)),
        ("user", ("three",)),
    ]
    assert second.previous_response_id == first.id


def test_a_tool_call_continues_with_its_output(server, openai):
    first = respond(openai, CALL, tools=[TOOL], tool_choice="required")
    output = {"type": "function_call_output", "call_id": first.output[0].call_id, "output": "found"}
    respond(openai, [output], previous_response_id=first.id)
    _, call, result = server.parrot.seen[-1].messages
    assert (call.role, call.tool_calls[0].name) == ("assistant", "look")
    assert (result.role, result.tool_call_id, result.parts) == ("tool", call.tool_calls[0].id, ("found",))


def test_a_stored_response_is_retrieved_and_deleted(openai):
    created = respond(openai, "keep", store=True)
    assert openai.responses.retrieve(created.id) == created
    openai.responses.delete(created.id)
    with pytest.raises(NotFoundError, match="no response has the id"):
        openai.responses.retrieve(created.id)
    with pytest.raises(NotFoundError):
        openai.responses.delete(created.id)
    with pytest.raises(BadRequestError, match="previous_response_id: no response has the id"):
        respond(openai, "x", previous_response_id=created.id)


def test_a_streamed_response_is_stored_before_its_last_event(openai):
    for event in respond(openai, "keep", stream=True):
        if event.type == "response.completed":
            assert openai.responses.retrieve(event.response.id).output_text == "keep"


def test_a_response_is_not_stored_if_store_is_false(openai):
    with pytest.raises(NotFoundError):
        openai.responses.retrieve(respond(openai, "x", store=False).id)


def test_input_items_are_listed_in_pages(openai):
    first = respond(openai, [{"role": "user", "content": text} for text in "abc"])
    second = respond(openai, "d", previous_response_id=first.id)

    def texts(**params):
        return [item.content[0].text for item in openai.responses.input_items.list(second.id, **params)]

    assert texts(order="asc") == ["a", "b", "c", "c", "d"]  # the second c is the first response
    assert texts() == ["d", "c", "c", "b", "a"]
    assert texts(limit=2) == ["d", "c", "c", "b", "a"]  # the SDK follows the pages
    page = openai.responses.input_items.list(second.id, limit=2, order="asc")
    assert (page.has_more, [item.content[0].text for item in page.data]) == (True, ["a", "b"])
    for params in ({"limit": 0}, {"limit": 101}, {"order": "up"}, {"after": "msg_1"}):
        with pytest.raises(BadRequestError):
            texts(**params)


def test_a_stored_response_is_not_streamed_again(openai):
    created = respond(openai, "x")
    with pytest.raises(BadRequestError, match="stream"):
        openai.responses.retrieve(created.id, stream=True)


# ---------------------------------------------------------------- background responses
def wait_for_end(openai, response):
    deadline = time.monotonic() + 10
    while response.status in ("queued", "in_progress") and time.monotonic() < deadline:
        time.sleep(0.01)
        response = openai.responses.retrieve(response.id)
    return response


def test_a_background_response_is_polled(openai):
    created = respond(openai, "hello", background=True)
    assert (created.status, created.background, created.output) == ("queued", True, [])
    done = wait_for_end(openai, created)
    assert (done.status, done.output_text) == ("completed", "hello")
    assert openai.responses.cancel(done.id).status == "completed"


def test_a_background_response_is_cancelled(server, openai):
    created = respond(openai, "slow " + "x" * 1000, background=True)
    with pytest.raises(BadRequestError, match="previous_response_id: the response is "):
        respond(openai, "x", previous_response_id=created.id)
    assert openai.responses.cancel(created.id).status == "cancelled"
    assert openai.responses.cancel(created.id).status == "cancelled"
    assert openai.responses.retrieve(created.id).status == "cancelled"
    assert server.wait_until_idle()


def test_deleting_a_background_response_cancels_it(server, openai):
    created = respond(openai, "slow " + "x" * 1000, background=True)
    openai.responses.delete(created.id)
    assert server.wait_until_idle()


def test_only_background_responses_are_cancelled(openai):
    with pytest.raises(BadRequestError, match="not a background response"):
        openai.responses.cancel(respond(openai, "x").id)


def test_a_background_response_that_fails_has_an_error(openai):
    failed = wait_for_end(openai, respond(openai, f"a{BOOM}", background=True))
    assert (failed.status, failed.error.code) == ("failed", "model_error")
    assert "secret" not in failed.model_dump_json()


def test_a_stored_response_expires(openai, monkeypatch):
    monkeypatch.setattr(response_store, "RESPONSE_TTL_S", 0.2)
    created = respond(openai, "x")
    time.sleep(0.5)
    with pytest.raises(NotFoundError):
        openai.responses.retrieve(created.id)


def test_a_response_that_is_too_large_is_not_stored(openai, monkeypatch):
    monkeypatch.setattr(response_store, "MAX_TENANT_BYTES", 20_000)
    large = respond(openai, [{"role": "user", "content": "y" * 30_000}, {"role": "user", "content": "x"}])
    assert (large.output_text, large.store) == ("x", False)
    with pytest.raises(NotFoundError):
        openai.responses.retrieve(large.id)


def test_a_stored_response_does_not_keep_its_request(server, openai):
    stored = [respond(openai, "x" * 1000), wait_for_end(openai, respond(openai, "x", background=True))]
    stored.append(wait_for_end(openai, respond(openai, f"a{BOOM}", background=True)))
    with openai.responses.stream(model="parrot", input="x") as stream:
        stored.append(stream.get_final_response())
    assert server.wait_until_idle()
    gc.collect()
    assert not [one for one in gc.get_objects() if type(one) is HttpExchange]
    assert [openai.responses.retrieve(response.id).id for response in stored] == [response.id for response in stored]


def test_a_conversation_has_a_limited_number_of_messages(openai, monkeypatch):
    monkeypatch.setattr("mstar.server.responses.responses.MAX_MESSAGES", 3)
    first = respond(openai, "a")
    second = respond(openai, "b", previous_response_id=first.id)
    with pytest.raises(BadRequestError, match="input: 5 messages with the previous ones, the limit is 3"):
        respond(openai, "c", previous_response_id=second.id)

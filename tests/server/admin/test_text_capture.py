"""Captured prompts and responses: opt-in, bounded, for their tenant and operators only, and in no log."""

import json

import numpy as np
import pytest

from mstar.requests import AudioInput, ChatRequest, Finish, Message, SpeechRequest, ToolCall, Transcript
from mstar.server.access.api_keys import ApiKeys
from mstar.server.admin import text_capture
from mstar.server.admin.text_capture import BoundedText, CapturedText
from tests.server.telemetry.test_logs import captured_logs
from tests.server.toy_server import chat_body, run_toy_server

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def server():
    with run_toy_server() as running:
        running.state.captures_text = True
        yield running


def ask(client, name, text, path=CHAT, **more):
    body = chat_body(text, **more) if path == CHAT else {"model": "vectors", "input": text}
    client.post(path, json=body, headers={"X-Request-Id": name}).raise_for_status()


def captured(client, name):
    return client.get(f"/v1/requests/{name}/trace").json()["captured"]


def decode(tokens):
    return bytes(tokens).decode(errors="replace")


def test_nothing_is_captured_by_default():
    with run_toy_server() as server, server.client() as client:
        ask(client, "one", "private")
        trace = client.get("/v1/requests/one/trace")
        assert trace.json()["captured"] is None
        assert "private" not in trace.text


@pytest.mark.parametrize("stream", [False, True])
def test_a_trace_has_the_prompt_and_the_response(server, stream):
    with server.client() as client:
        ask(client, f"chat-{stream}", "Grüße", stream=stream)
        text = captured(client, f"chat-{stream}")
    assert text == {
        "prompt": {"text": "user: Grüße\n", "is_cut": False},
        "response": {"text": "Grüße", "is_cut": False},
    }


def test_text_is_in_the_trace_of_its_request_only(server, capsys):
    with captured_logs("json", capsys) as read, server.client() as client:
        ask(client, "canary", "canary-text")
        listed = client.get("/v1/requests").text
        chrome = client.get("/v1/requests/canary/trace?format=chrome").text
        assert "canary-text" in client.get("/v1/requests/canary/trace").text
        lines = read()
    assert any('"canary"' in line for line in lines)
    assert "canary-text" not in listed + chrome + "".join(lines)


def test_other_tenants_do_not_get_it():
    keys = ApiKeys(["a", "b"], operator_keys=["o"])
    with run_toy_server(keys=keys) as server:
        server.state.captures_text = True
        alice, bob, operator = (server.client(key) for key in "abo")
        with alice, bob, operator:
            ask(alice, "hers", "private")
            assert bob.get("/v1/requests/hers/trace").status_code == 404
            assert "private" not in bob.get("/v1/requests").text
            assert captured(alice, "hers") == captured(operator, "hers")
            assert captured(alice, "hers")["response"]["text"] == "private"


def test_the_oldest_requests_of_a_tenant_lose_their_text(monkeypatch):
    monkeypatch.setattr(text_capture, "MAX_CAPTURED_REQUESTS", 2)
    with run_toy_server(keys=ApiKeys(["a", "b"])) as server:
        server.state.captures_text = True
        alice, bob = (server.client(key) for key in "ab")
        with alice, bob:
            ask(bob, "his", "x")
            for name in ("one", "two", "three"):
                ask(alice, name, name)
            assert [captured(alice, name) is None for name in ("one", "two", "three")] == [True, False, False]
            assert captured(bob, "his") is not None


def test_text_and_tokens_are_cut_at_the_limit(monkeypatch):
    monkeypatch.setattr(text_capture, "MAX_TEXT_BYTES", 20)
    text = BoundedText()
    text.add_text("aä")
    text.add_tokens([98, 99])
    assert (text.render(decode), text.is_cut) == ("aäbc", False)
    text.add_tokens([100])
    text.add_text("e")
    assert (text.render(decode), text.is_cut) == ("aäbc", True)
    whole = BoundedText()
    whole.add_text("x" * 18 + "äää")
    assert (whole.render(decode), whole.is_cut) == ("x" * 18 + "ä", True)


def test_each_kind_of_request_and_result_has_its_text():
    text = CapturedText()
    question = Message("user", ("what is ", AudioInput(np.zeros(1, np.float32), 8000), "?"))
    text.add_request(ChatRequest((question, Message("assistant", (), (ToolCall("1", "look", '{"a": 1}'),)))))
    text.add_request(SpeechRequest("say this", voice="heart"))
    text.add_request({"words": ["one", "two"], "count": 2})
    text.add_output("Audio", np.zeros(3))
    text.add_output("Text", "it is ")
    text.add_output("Text", np.array([97], np.int64))
    text.add_result(Finish(tool_calls=(ToolCall("2", "add", "[]"),)))
    text.add_result(Transcript(" heard", (), "en", 1.0))
    content = text.content(decode)
    lines = ["user: what is [AudioInput]?", 'assistant: look({"a": 1})', "text: say this", "voice: heart", "words: one"]
    assert content["prompt"]["text"].splitlines() == [*lines, "words: two"]
    assert content["response"]["text"] == "it is a\nadd([]) heard"


def test_tokens_that_the_model_cannot_decode_are_reported_without_its_message():
    def fail(_tokens):
        raise ValueError("secret")

    text = BoundedText()
    text.add_tokens([1])
    assert json.dumps(text.render(fail)) == '"(the model cannot decode its tokens)"'

"""A conversation is exported from one server and continued at another: the next 100 tokens are equal. Real weights."""

import json

import httpx2
import pytest

from mstar.cli import main
from mstar.client import Client
from tests.cli.test_serve import start_server, wait_ready

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
MODEL = "smollm2"
TOKENS = 100
QUESTION = "Write a long story about a dragon, a knight and that city."
SETTINGS = {"type": "realtime", "output_modalities": ["text"], "audio": {"input": {"turn_detection": None}}}
SAMPLINGS = [{"temperature": 0}, {"temperature": 1.0, "top_p": 0.95, "seed": 7}]


@pytest.fixture(scope="module")
def servers():
    """URLs of two servers, each with its own processes."""
    keys = ("--api-key", "mine", "--api-key", "theirs")
    with start_server(MODEL, *keys) as (first, first_url), start_server(MODEL, *keys) as (second, second_url):
        wait_ready(first)
        wait_ready(second)
        yield first_url, second_url


def http(url, key="mine"):
    return httpx2.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=120)


def respond(client, text, **fields):
    response = client.post("/v1/responses", json={"model": MODEL, "input": text} | fields)
    assert response.status_code == 200, response.text
    return response.json()


def next_tokens(url, previous, sampling):
    """Tokens of a following response, and their logprobs."""
    fields = {"include": ["message.output_text.logprobs"], "max_output_tokens": TOKENS, **sampling}
    with http(url) as client:
        content = respond(client, QUESTION, previous_response_id=previous, **fields)
    scored = content["output"][0]["content"][0]["logprobs"]
    return [one["token"] for one in scored], [one["logprob"] for one in scored]


def move(source, target, session_id, folder, capsys):
    """Export and import with the command line; the new id."""
    path = folder / "session.json"
    assert main(["session", "export", session_id, "--url", source, "--key", "mine", "-o", str(path)]) == 0
    assert main(["session", "import", str(path), "--url", target, "--key", "mine"]) == 0
    return capsys.readouterr().out.split(" as ")[1].partition(",")[0]


@pytest.mark.nightly
def test_a_stored_conversation_continues_with_the_same_tokens(servers, tmp_path, capsys):
    first, second = servers
    with http(first) as client:
        opening = respond(client, "What is the capital of France?", temperature=0, max_output_tokens=12)
        turn = respond(
            client, "And of Italy?", temperature=1, seed=3, max_output_tokens=12, previous_response_id=opening["id"]
        )
    undisturbed = [next_tokens(first, turn["id"], sampling) for sampling in SAMPLINGS]
    moved = move(first, second, turn["id"], tmp_path, capsys)
    continued = [next_tokens(second, moved, sampling) for sampling in SAMPLINGS]
    assert [len(tokens) for tokens, _ in undisturbed] == [TOKENS] * len(SAMPLINGS)
    for (tokens, logprobs), (expected_tokens, expected_logprobs) in zip(continued, undisturbed, strict=True):
        assert tokens == expected_tokens
        # The first server read the conversation in turns, into its prefix cache; the second one in one prefill.
        assert logprobs == pytest.approx(expected_logprobs, abs=1e-3)
    assert undisturbed[0][0] != undisturbed[1][0]
    with http(second) as client:
        path = f"/v1/responses/{moved}/input_items?order=asc"
        texts = [item["content"][0]["text"] for item in client.get(path).json()["data"]]
        assert texts == ["What is the capital of France?", opening["output"][0]["content"][0]["text"], "And of Italy?"]
        assert (
            client.get(f"/v1/responses/{moved}").json()["output"][0]["content"][0]["text"]
            == (turn["output"][0]["content"][0]["text"])
        )


def say(call, text):
    """One turn; the text of the response."""
    part = {"type": "input_text", "text": text}
    call.send({"type": "conversation.item.create", "item": {"type": "message", "role": "user", "content": [part]}})
    call.send({"type": "response.create", "response": {"max_output_tokens": TOKENS}})
    for event in call:
        assert event["type"] != "error", event
        if event["type"] == "response.done":
            assert event["response"]["usage"]["output_tokens"] <= TOKENS
            return event["response"]["output"][0]["content"][0]["text"], event["response"]["usage"]


@pytest.mark.nightly
def test_a_realtime_conversation_continues_with_the_same_tokens(servers, tmp_path, capsys):
    first, second = servers
    with Client(first, "mine") as client, client.realtime(MODEL) as call:
        session_id = call.recv()["session"]["id"]
        call.send({"type": "session.update", "session": SETTINGS | {"instructions": "You are a poet."}})
        first_answer = say(call, "What is the capital of France?")
        moved = move(first, second, session_id, tmp_path, capsys)
        undisturbed = say(call, QUESTION)
    with Client(second, "mine") as client, client.realtime(session_id=moved) as call:
        created = call.recv()
        assert created["session"]["id"] == moved
        assert created["session"]["instructions"] == "You are a poet."
        assert say(call, QUESTION) == undisturbed
    assert undisturbed[1]["output_tokens"] == TOKENS
    content = json.loads((tmp_path / "session.json").read_text())
    assert [item["text"] or item["parts"][0] for item in content["session"]["items"]] == [
        "What is the capital of France?",
        first_answer[0],
    ]


@pytest.mark.nightly
def test_the_file_is_private_and_foreign_keys_cannot_export(servers, tmp_path, capsys):
    first, _ = servers
    with http(first) as client:
        response = respond(client, "A secret.", max_output_tokens=2)["id"]
    path = tmp_path / "session.json"
    command = ["session", "export", response, "--url", first, "-o", str(path), "--key"]
    assert main([*command, "theirs"]) == 1
    assert "404 not_found" in capsys.readouterr().err
    assert not path.exists()
    assert main([*command, "mine"]) == 0
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text(path.read_text()[:-20])
    assert main(["session", "import", str(path), "--url", first, "--key", "mine"]) == 1
    assert "cut off" in capsys.readouterr().err

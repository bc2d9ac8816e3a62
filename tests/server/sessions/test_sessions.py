"""Session files over HTTP: who can export, what a file contains, and which files are refused."""

import json

import msgspec
import numpy as np
import pytest

from mstar.requests import AudioInput, Sampling, ToolCall, WordTimestamp
from mstar.server.errors import ApiError
from mstar.server.realtime.config import SessionConfig, SessionSettings
from mstar.server.realtime.conversation import Conversation, Item
from mstar.server.realtime.imported_sessions import MAX_IMPORTED
from mstar.server.realtime.response_seeds import ResponseSeeds
from mstar.server.realtime.saved_session import parse_saved_session, restore_session, save_session
from mstar.server.sessions import session_file
from mstar.server.sessions.session_file import ModelIdentity, SessionFile, decode_session, encode_session
from tests.integration.isolation.two_keys import (
    create_item,
    create_response,
    open_realtime,
    open_socket,
    receive_until,
    respond,
    send_event,
    serve_two_keys,
)
from tests.server.toy_models import Parrot


class GreedyParrot(Parrot):
    def default_sampling(self):
        return Sampling(temperature=0.0)


@pytest.fixture(scope="module")
def server():
    with serve_two_keys({"every": Parrot()}) as started:
        yield started


@pytest.fixture(scope="module")
def other_server():
    with serve_two_keys({"every": Parrot()}) as started:
        yield started


@pytest.fixture
def alice(server):
    with server.client("key-of-alice") as client:
        yield client


@pytest.fixture
def bob(server):
    with server.client("key-of-bob") as client:
        yield client


@pytest.fixture
def file(alice):
    """Content of a file with a response of alice."""
    response = create_response(alice, "a secret")
    return alice.get(response.replace("responses", "sessions")).json()


def import_file(client, content):
    encoded = content if isinstance(content, bytes) else json.dumps(content).encode()
    return client.post("/v1/sessions", content=encoded, headers={"Content-Type": "application/json"})


def with_checksum(content):
    """The content after a change, with a new checksum."""
    del content["checksum"]
    return content | {"checksum": session_file._compute_checksum(content)}


# ---------------------------------------------------------------- responses
def test_a_response_is_continued_at_another_server(alice, other_server, file):
    with other_server.client("key-of-bob") as client:
        imported = import_file(client, json.dumps(file, indent=4).encode())
        assert imported.status_code == 201
        created = imported.json()
        assert created == {"id": created["id"], "object": "session", "kind": "response", "model": "every"}
        body = {"model": "every", "input": "next", "previous_response_id": created["id"]}
        following = client.post("/v1/responses", json=body).json()["id"]
        items = client.get(f"/v1/responses/{following}/input_items?order=asc").json()["data"]
        assert [item["content"][0]["text"] for item in items] == ["a secret", "a secret", "next"]
        assert [item["id"] for item in items[:1]] == [item["id"] for item in file["session"]["input"]]


def test_a_running_response_is_not_exported(alice):
    response = create_response(alice, "slow" + "x" * 400, background=True)
    refused = alice.get(response.replace("responses", "sessions"))
    alice.delete(response)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "session_busy")


def test_only_its_owner_exports_a_session(server, alice, bob):
    response = create_response(alice, "a secret").replace("responses", "sessions")
    with open_realtime(server, "alice") as (_, session_id):
        for path in (response, f"/v1/sessions/{session_id}"):
            assert alice.get(path).status_code == 200
            refused, unknown = bob.get(path), bob.get(path[:-4] + "0000")
            assert refused.status_code == unknown.status_code == 404
            assert refused.text.replace(path[13:], "") == unknown.text.replace(path[13:-4] + "0000", "")
    assert alice.get(f"/v1/sessions/{session_id}").status_code == 404, "it has ended"


def test_an_imported_session_belongs_to_the_key_that_imported_it(server, alice, bob, file):
    response = f"/v1/responses/{import_file(alice, file).json()['id']}"
    assert alice.get(response).status_code == 200
    assert bob.get(response).status_code == 404


# ---------------------------------------------------------------- realtime
def ask_for_seed(socket):
    """Seed of a response: the model echoes the last message with it."""
    create_item(socket, "{seed}")
    return respond(socket)


def test_a_realtime_session_is_continued_with_its_seeds(server, other_server, alice):
    with open_realtime(server, "alice") as (socket, session_id):
        first = ask_for_seed(socket)
        file = alice.get(f"/v1/sessions/{session_id}").json()
        undisturbed = [ask_for_seed(socket), ask_for_seed(socket)]
    assert len({first, *undisturbed}) == 3, "each response has its own seed"
    with other_server.client("key-of-bob") as client:
        imported = import_file(client, file).json()
        assert imported["kind"] == "realtime"
        refused = import_file(client, with_checksum(file | {"model": {"name": "missing-model", "version": ""}}))
        assert refused.status_code == 404
    path = f"/v1/realtime?session_id={imported['id']}"
    with open_socket(other_server, "bob", path) as socket:
        (created,) = receive_until(socket, "session.created")
        assert created["session"]["id"] == imported["id"]
        assert created["session"]["output_modalities"] == ["text"]
        send_event(socket, "conversation.item.retrieve", item_id=file["session"]["items"][0]["id"])
        item = receive_until(socket, "conversation.item.retrieved")[-1]["item"]
        assert item["content"] == [{"type": "input_text", "text": "{seed}"}]
        assert [ask_for_seed(socket), ask_for_seed(socket)] == undisturbed
    assert other_server.wait_until_idle()
    assert not other_server.state.memory_budget.held_bytes


def test_greedy_responses_of_a_session_draw_no_seeds():
    with serve_two_keys({"every": GreedyParrot()}) as started, open_realtime(started, "alice") as (socket, _):
        assert [ask_for_seed(socket), ask_for_seed(socket)] == ["0", "0"], "their speech sounds equal"


def test_a_session_with_a_running_response_is_not_exported(server, alice):
    with open_realtime(server, "alice") as (socket, session_id):
        create_item(socket, "slow" + "x" * 100)
        send_event(socket, "response.create")
        receive_until(socket, "response.created")
        refused = alice.get(f"/v1/sessions/{session_id}")
        send_event(socket, "response.cancel")
        receive_until(socket, "response.done")
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "session_busy")
        assert alice.get(f"/v1/sessions/{session_id}").status_code == 200


def test_sessions_that_wait_for_clients_are_limited_by_key(server, alice, bob):
    with open_realtime(server, "bob") as (_, session_id):
        file = bob.get(f"/v1/sessions/{session_id}").json()
    statuses = [import_file(bob, file).status_code for _ in range(MAX_IMPORTED + 1)]
    assert statuses == [201] * MAX_IMPORTED + [429]
    assert import_file(alice, file).status_code == 201
    assert server.state.memory_budget.held_bytes > 0


def test_every_field_of_an_item_survives():
    samples = np.arange(-32768, 32767, 7, np.int32).astype(np.float32) / np.float32(32768)
    items = [
        Item("a", "user", ["look", AudioInput(samples, 24_000)], transcript="listen"),
        Item(
            "b",
            "assistant",
            is_audio=True,
            text="one",
            generated_text="one two",
            audio_bytes_sent=960,
            text_alignment=[(480, 2), (960, 3)],
            words=[WordTimestamp("one", 0.0, 0.1, 0, 3)],
            is_truncated=True,
            status="incomplete",
        ),
        Item("c", "call", tool_call=ToolCall("call_1", "weather", '{"x":1}')),
        Item("d", "tool", text="sunny", tool_call=ToolCall("call_1", "", "")),
    ]
    conversation, restored = Conversation(_Memory()), Conversation(_Memory())
    for item in items:
        conversation.add(item)
    seeds, next_seeds = ResponseSeeds(), ResponseSeeds()
    saved = save_session(SessionConfig("s", "m", SessionSettings()), conversation, seeds)
    restore_session(parse_saved_session(msgspec.to_builtins(saved)), restored, next_seeds)
    assert [seeds.next(), seeds.next()] == [next_seeds.next(), next_seeds.next()]
    for before, after in zip(items, restored.items, strict=True):
        assert after.payload == before.payload
        for name in Item.__slots__:
            if name != "parts":
                assert getattr(after, name) == getattr(before, name), name
    assert restored.items[0].parts[0] == "look"
    assert np.array_equal(restored.items[0].parts[1].samples, samples)


class _Memory:
    def add(self, size, param=None):
        pass


# ---------------------------------------------------------------- files
def change_item(content):
    content["session"]["input"][0]["content"][0]["text"] = "another"
    return content


def drop_items(content):
    del content["session"]["output"]
    return with_checksum(content)


def change_model(content):
    return with_checksum(content | {"model": content["model"] | {"version": "0" * 64}})


@pytest.mark.parametrize(
    ("change", "status", "code", "problem"),
    [
        (lambda content: json.dumps(content).encode()[:-30], 400, "invalid_session_file", "cut off"),
        (lambda _: b"[]", 400, "invalid_session_file", "its format is not"),
        (lambda _: b"[" * 100_000, 400, "invalid_session_file", "cut off"),
        (change_item, 400, "invalid_session_file", "altered or damaged"),
        (lambda content: content | {"format_version": 2}, 400, "invalid_session_file", "reads version 1"),
        (lambda content: with_checksum(content | {"kind": "world"}), 400, "invalid_session_file", "kind"),
        (drop_items, 400, "invalid_value", "output"),
        (change_model, 409, "model_mismatch", "its walks or weights differ"),
    ],
    ids=["truncated", "no file", "nested", "altered", "newer", "unknown kind", "incomplete", "other weights"],
)
def test_a_file_that_is_not_valid_is_refused(alice, file, change, status, code, problem):
    refused = import_file(alice, change(file))
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (status, code)
    assert problem in error["message"]


def test_a_file_that_is_too_large_is_not_made(monkeypatch):
    monkeypatch.setattr(session_file, "MAX_SESSION_BYTES", 1000)
    file = SessionFile(
        kind="response", model=ModelIdentity("m", "v"), server_version="1", created_at=1, session={"text": "x" * 500}
    )
    assert decode_session(encode_session(file)) == file
    with pytest.raises(ApiError, match="a file has at most 1000"):
        encode_session(SessionFile(**{**msgspec.structs.asdict(file), "session": {"text": "x" * 2000}}))

"""The tenant of an API key reaches the engine, from every endpoint and over every transport."""

import base64
import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from websockets.exceptions import InvalidStatus

from mstar.server.robotics import openpi
from tests.integration.isolation.two_keys import (
    KEYS,
    MSGPACK,
    OBSERVATION,
    chat,
    chat_body,
    create_item,
    create_response,
    create_video,
    create_world,
    finish_response,
    finish_video,
    open_realtime,
    open_socket,
    packed,
    receive_until,
    respond,
    send_event,
    step_world,
)
from tests.server.openai.test_images import png
from tests.server.openai.test_transcriptions import audio_file


def post(client, path, **options):
    response = client.post(path, **options)
    assert response.status_code == 200, response.text


def stream_chat(client, _server, _tenant):
    with client.stream("POST", "/v1/chat/completions", json=chat_body("hello", stream=True)) as response:
        assert [*response.iter_lines()][-2] == "data: [DONE]"


def transcribe(path):
    def send(client, _server, _tenant):
        post(client, path, files={"file": ("a.wav", audio_file(), "audio/wav"), "model": (None, "every")})

    return send


def edit_image(client, _server, _tenant):
    image = png(np.zeros((16, 16, 3), np.uint8))
    form = {"prompt": (None, "a"), "model": (None, "every"), "image": ("a.png", image, "image/png")}
    post(client, "/v1/images/edits", files=form)


def run_in_background(client, _server, _tenant):
    response = create_response(client, background=True)
    assert finish_response(client, response) == "completed"


def send_message_with_key(_client, server, tenant):
    with server.client(**{"x-api-key": KEYS[tenant]}) as client:
        post(client, "/v1/messages", json=chat_body("hello", max_tokens=50))


def render_video(client, _server, _tenant):
    video = create_video(client)
    assert finish_video(client, video) == "completed"
    client.delete(video)


def step_forked_world(client, _server, _tenant):
    world = create_world(client)
    step_world(client, world)
    status, forked = packed(client, "POST", f"{world}/fork")
    assert status == 201
    step_world(client, f"/v1/worlds/{forked['id']}")
    for path in (world, f"/v1/worlds/{forked['id']}"):
        packed(client, "DELETE", path)


def use_world(client, _server, _tenant):
    world = create_world(client)
    step_world(client, world)
    packed(client, "DELETE", world)


def use_openpi(_client, server, tenant):
    with open_socket(server, tenant, "/?model=every") as socket:
        socket.recv(10)
        socket.send(openpi.pack(OBSERVATION))
        assert openpi.unpack(socket.recv(10))["rate"] == 50


def use_realtime(_client, server, tenant):
    with open_realtime(server, tenant) as (socket, _):
        create_item(socket, "hello")
        assert respond(socket) == "hello"


def use_realtime_from_a_browser(_client, server, tenant):
    key = base64.urlsafe_b64encode(KEYS[tenant].encode()).decode().rstrip("=")
    with open_realtime(server, "", subprotocols=["mstar", f"mstar-key.{key}"]) as (socket, _):
        create_item(socket, "hello")
        assert respond(socket) == "hello"


def stream_speech(_client, server, tenant):
    with open_socket(server, tenant, "/v1/audio/speech/stream") as socket:
        send_event(socket, "session.config", model="every")
        send_event(socket, "input.text", text="Hi.")
        send_event(socket, "input.done")
        receive_until(socket, "session.done")


ACTION_BODY = openpi.pack({"model": "every", "observation": OBSERVATION})
SPEECH_BODY = {"model": "every", "input": "Hi.", "voice": "alto", "response_format": "wav"}
ENDPOINTS = {
    "chat": lambda client, *_: chat(client),
    "chat with n": lambda client, *_: chat(client, n=3),
    "chat stream": stream_chat,
    "chat flex": lambda client, *_: chat(client, service_tier="flex"),
    "completions": lambda client, *_: post(client, "/v1/completions", json={"model": "every", "prompt": ["ab", "c"]}),
    "response": lambda client, *_: create_response(client),
    "background response": run_in_background,
    "message": lambda client, *_: post(client, "/v1/messages", json=chat_body("hello", max_tokens=50)),
    "message with x-api-key": send_message_with_key,
    "embeddings": lambda client, *_: post(client, "/v1/embeddings", json={"model": "every", "input": ["a"]}),
    "rerank": lambda client, *_: post(client, "/v1/rerank", json={"model": "every", "query": "a", "documents": ["b"]}),
    "speech": lambda client, *_: post(client, "/v1/audio/speech", json=SPEECH_BODY),
    "transcription": transcribe("/v1/audio/transcriptions"),
    "translation": transcribe("/v1/audio/translations"),
    "image": lambda client, *_: post(client, "/v1/images/generations", json={"model": "every", "prompt": "a"}),
    "image edit": edit_image,
    "video": render_video,
    "actions": lambda client, *_: post(client, "/v1/actions", content=ACTION_BODY, headers=MSGPACK),
    "world": use_world,
    "forked world": step_forked_world,
    "generate": lambda client, *_: post(
        client, "/v1/generate", json={"model": "plain", "request": {"text": "abc", "steps": 3}}
    ),
    "openpi WebSocket": use_openpi,
    "realtime WebSocket": use_realtime,
    "realtime WebSocket of a browser": use_realtime_from_a_browser,
    "speech WebSocket": stream_speech,
}


@pytest.mark.parametrize("send", ENDPOINTS.values(), ids=ENDPOINTS)
def test_the_engine_sees_the_tenant_of_the_key(two_keys, alice, bob, send):
    recorders = [two_keys.models[name].recorder for name in ("every", "plain")]
    for tenant, client in (("alice", alice), ("bob", bob)):
        for recorder in recorders:
            recorder.calls.clear()
        send(client, two_keys, tenant)
        assert {call for recorder in recorders for call in recorder.calls} == {tenant}


def test_every_endpoint_with_a_request_type_is_covered(two_keys):
    paths = {endpoint.path for endpoint in two_keys.state.endpoints if endpoint.request_type is not None}
    with_get_only = {"/v1/audio/voices", "/v1/actions/metadata"}
    covered = {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/embeddings",
        "/v1/rerank",
        "/v1/audio/speech",
        "/v1/audio/transcriptions",
        "/v1/audio/translations",
        "/v1/images/generations",
        "/v1/images/edits",
        "/v1/videos",
        "/v1/actions",
        "/v1/worlds",
        "/",
        "/v1/realtime",
        "/v1/audio/speech/stream",
    }
    assert paths - with_get_only == covered


def test_requests_that_run_together_keep_their_tenants(two_keys, alice, bob):
    """Calls of both tenants share batches; each call still has the tenant of its own request."""
    recorder = two_keys.models["every"].recorder
    recorder.calls.clear()
    with ThreadPoolExecutor(8) as pool:
        texts = [*pool.map(lambda number: chat((alice, bob)[number % 2], "slow" + "x" * 16), range(8))]
    assert texts == ["slow" + "x" * 16] * 8
    assert {tenant: recorder.calls.count(tenant) for tenant in {*recorder.calls}} == {"alice": 80, "bob": 80}


@pytest.mark.parametrize("path", ["/", "/v1/realtime", "/v1/audio/speech/stream"])
def test_a_websocket_needs_a_valid_key(two_keys, path):
    for options in ({}, {"subprotocols": ["realtime", "openai-insecure-api-key.wrong"]}):
        with pytest.raises(InvalidStatus) as raised, open_socket(two_keys, "", f"{path}?model=every", **options):
            pass
        assert raised.value.response.status_code == 401


def test_the_authorization_header_wins_over_a_key_in_a_subprotocol(two_keys):
    recorder = two_keys.models["every"].recorder
    recorder.calls.clear()
    names = ["realtime", f"openai-insecure-api-key.{KEYS['bob']}"]
    with open_realtime(two_keys, "alice", subprotocols=names) as (socket, _):
        create_item(socket, "hello")
        respond(socket)
    assert {*recorder.calls} == {"alice"}


def test_no_path_but_health_answers_without_a_key(two_keys):
    with two_keys.client() as anonymous:
        for endpoint in two_keys.state.endpoints:
            if endpoint.method in ("GET", "POST", "DELETE"):
                path = (
                    endpoint.path.replace("{model:path}", "every")
                    .replace("{id:path}", "x")
                    .replace("{adapter:path}", "x")
                )
                response = anonymous.request(
                    endpoint.method, path.format(video="x", world="x", response="x", session="x")
                )
                assert (response.status_code == 401) != endpoint.is_public, (endpoint.path, response.status_code)
                assert "alice" not in json.dumps(response.text)

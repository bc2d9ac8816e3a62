"""A server with two API keys, and clients of it over HTTP and WebSockets."""

import json
import threading
import time
from contextlib import contextmanager

import numpy as np
from websockets.sync.client import connect

from mstar.server.access.api_keys import ApiKeys, RateLimit, Tenant, hash_key
from mstar.server.robotics import openpi
from tests.server.model_server import serve_models

CHAT = "/v1/chat/completions"
KEYS = {"alice": "key-of-alice", "bob": "key-of-bob"}
MSGPACK = {"Content-Type": "application/msgpack"}
OBSERVATION = {"pose": np.zeros(2, np.float32)}
ACTION = np.ones(2, np.float32)


@contextmanager
def serve_two_keys(models, options=None, rate_limits=None):
    """Serve models to the tenants `alice` and `bob`, each with an API key."""
    limits = rate_limits or {}
    tenants = {hash_key(key): Tenant(name, limits.get(name, RateLimit())) for name, key in KEYS.items()}
    with serve_models(models, ApiKeys(tenants=tenants), options) as server:
        yield server


def chat_body(text, model="every", **fields):
    return {"model": model, "messages": [{"role": "user", "content": text}]} | fields


def chat(client, text="hello", request_id="", **fields):
    """A chat completion; returns its text."""
    headers = {"X-Request-Id": request_id} if request_id else {}
    response = client.post(CHAT, json=chat_body(text, **fields), headers=headers)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["message"]["content"]


class RunningChat:
    """A streamed chat completion that another thread reads. It takes 5 ms per letter. As a context, it is cancelled."""

    def __init__(self, client, request_id, letters=400, **fields):
        self.text = "slow" + "x" * letters
        self.lines = []
        self._cancel = lambda: client.post(f"/v1/requests/{request_id}/cancel")
        self._has_begun = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(client, request_id, fields), daemon=True)
        self._thread.start()
        assert self._has_begun.wait(10)

    def _read(self, client, request_id, fields):
        body = chat_body(self.text, stream=True, **fields)
        with client.stream("POST", CHAT, json=body, headers={"X-Request-Id": request_id}) as response:
            for line in response.iter_lines():
                self.lines.append(line)
                self._has_begun.set()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._cancel()
        self._thread.join(30)

    def wait(self, seconds=30.0):
        """Wait for the end of the response; return whether it is complete."""
        self._thread.join(seconds)
        assert not self._thread.is_alive()
        chunks = [json.loads(line.removeprefix("data: ")) for line in self.lines if line.startswith("data: {")]
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk.get("choices")]
        return "".join(delta.get("content") or "" for delta in deltas) == self.text and self.lines[-2] == "data: [DONE]"


def wait_until(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not (result := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert result
    return result


# ---------------------------------------------------------------- worlds
def packed(client, method, path, **body):
    """Status and content of a msgpack request."""
    content = openpi.pack(body) if method == "POST" else None
    response = client.request(method, path, content=content, headers=MSGPACK)
    is_packed = response.headers["content-type"] == "application/msgpack"
    return response.status_code, openpi.unpack(response.content) if is_packed else response.json()


def create_world(client):
    """Path of a new world; empty if the quota is exceeded."""
    status, world = packed(client, "POST", "/v1/worlds", model="every", observation=OBSERVATION)
    assert status == 201 or world["error"]["code"] == "quota_exceeded", world
    return f"/v1/worlds/{world['id']}" if status == 201 else ""


def step_world(client, world):
    status, step = packed(client, "POST", f"{world}/step", action=ACTION)
    assert status == 200, step
    return step


# ---------------------------------------------------------------- videos
def create_video(client, prompt="a dawn", seconds=1):
    """Path of a new video job; empty if the quota is exceeded."""
    form = {"prompt": prompt, "model": "every", "seconds": str(seconds)}
    response = client.post("/v1/videos", files={name: (None, value) for name, value in form.items()})
    job = response.json()
    assert response.status_code == 200 or job["error"]["code"] == "quota_exceeded", job
    return f"/v1/videos/{job['id']}" if response.status_code == 200 else ""


def finish_video(client, video):
    """Wait for the end of a video job; return its status."""
    wait_until(lambda: client.get(video).json()["status"] not in ("queued", "in_progress"))
    return client.get(video).json()["status"]


# ---------------------------------------------------------------- responses
def create_response(client, text="hello", **fields):
    """Path of a new response; empty if the quota is exceeded."""
    created = client.post("/v1/responses", json={"model": "every", "input": text} | fields)
    content = created.json()
    assert created.status_code == 200 or content["error"]["code"] == "quota_exceeded", content
    return f"/v1/responses/{content['id']}" if created.status_code == 200 else ""


def finish_response(client, response):
    """Wait for the end of a background response; return its status."""
    wait_until(lambda: client.get(response).json()["status"] not in ("queued", "in_progress"))
    return client.get(response).json()["status"]


# ---------------------------------------------------------------- WebSockets
def open_socket(server, tenant, path, request_id="", **options):
    headers = {"Authorization": f"Bearer {KEYS[tenant]}"} if tenant else {}
    headers |= {"X-Request-Id": request_id} if request_id else {}
    return connect(f"ws://127.0.0.1:{server.port}{path}", additional_headers=headers, compression=None, **options)


def send_event(socket, kind, **fields):
    socket.send(json.dumps({"type": kind} | fields))


def receive_until(socket, kind):
    """All events up to the first of a type; audio messages are dropped."""
    events = []
    while not events or events[-1]["type"] != kind:
        message = socket.recv(10)
        if isinstance(message, str):
            events.append(json.loads(message))
            assert events[-1]["type"] != "error" or kind == "error", events[-1]
    return events


@contextmanager
def open_realtime(server, tenant, model="every", max_output_tokens="inf", **options):
    """A Realtime session with text output; yields its socket and its session id."""
    with open_socket(server, tenant, f"/v1/realtime?model={model}", **options) as socket:
        (created,) = receive_until(socket, "session.created")
        session = {"type": "realtime", "output_modalities": ["text"], "audio": {"input": {"turn_detection": None}}}
        send_event(socket, "session.update", session=session | {"max_output_tokens": max_output_tokens})
        receive_until(socket, "session.updated")
        yield socket, created["session"]["id"]


def create_item(socket, text):
    """Add a user message to a Realtime conversation; return its id."""
    content = [{"type": "input_text", "text": text}]
    send_event(socket, "conversation.item.create", item={"type": "message", "role": "user", "content": content})
    return receive_until(socket, "conversation.item.done")[-1]["item"]["id"]


def respond(socket):
    """Text of a Realtime response."""
    send_event(socket, "response.create")
    return receive_until(socket, "response.done")[-1]["response"]["output"][0]["content"][0]["text"]

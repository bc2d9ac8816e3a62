"""Request middleware: API keys, rate limits, rejections before the body is read, invalid bodies, request ids."""

import json
import re
import socket
import time

import pytest

from mstar.config import RuntimeConfig
from mstar.server.access.api_keys import ApiKeys, RateLimit
from mstar.server.app import ENDPOINTS, PUBLIC_PATHS
from mstar.server.endpoint import WEBSOCKET_METHOD
from mstar.server.state import HttpLimits
from tests.server.toy_server import chat_body, run_toy_server

PATHS = [
    ("GET" if one.method == WEBSOCKET_METHOD else one.method, one.path.replace("{model:path}", "parrot"))
    for one in ENDPOINTS
] + [("GET", "/nowhere")]
"""Every route, so that new ones are covered, and an unknown path."""


@pytest.fixture(scope="module")
def locked():
    """A server with API keys and a short body timeout."""
    with run_toy_server(keys=ApiKeys(["right", "other"]), limits=HttpLimits(body_timeout_s=0.3)) as started:
        yield started


# ---------------------------------------------------------------- keys
@pytest.mark.parametrize("key", ["", "wrong", "righ", "right2"])
def test_every_route_needs_a_key(locked, key):
    with locked.client(key) as client:
        for method, path in PATHS:
            answer = client.request(method, path)
            if path in PUBLIC_PATHS:
                assert answer.status_code == 200
            else:
                assert (answer.status_code, path) == (401, path)
                error = answer.json()["error"]
                assert error.get("code") == (None if path == "/v1/messages" else "invalid_api_key")
                assert error["message"].startswith("missing or invalid API key")


@pytest.mark.parametrize("key", ["right", "other"])
def test_every_key_is_accepted(locked, key):
    with locked.client(key) as client:
        assert client.get("/v1/models").status_code == 200
        assert client.post("/v1/chat/completions", json=chat_body("x")).status_code == 200


def test_the_key_is_checked_before_the_body(locked):
    with _raw(locked, "POST /v1/chat/completions", "Content-Length: 1000") as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 401")


def _raw(server, line, *headers):
    """A connection with the headers of a request sent, and no body."""
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=5)
    connection.sendall("\r\n".join([f"{line} HTTP/1.1", "Host: x", *headers, "", ""]).encode())
    return connection


def test_other_authorization_schemes_are_rejected():
    keys = ApiKeys(["right"])
    assert keys.authenticate("Bearer right") is keys.authenticate("api-key right")
    assert keys.authenticate("Basic right") is None
    assert keys.authenticate("right") is None
    assert re.fullmatch("[0-9a-f]{32}", keys.authenticate("Bearer right").name)


# ---------------------------------------------------------------- rate limits
def test_a_key_gets_its_rate_limit():
    keys = ApiKeys(["a"], RateLimit(requests_per_second=10, max_concurrent=3))
    tenant = keys.authenticate("Bearer a")
    for bucket in (tenant.work, tenant.reads):
        assert [bucket.acquire(100.0) for _ in range(3)] == [0, 0, 0]
        assert bucket.acquire(100.0) == pytest.approx(0.1)
        assert bucket.acquire(100.2) == 0
        bucket.active_requests = 3
        assert bucket.acquire(200.0) > 0


def test_a_client_that_sends_a_large_body_gets_its_rejection():
    body_bytes = 24 << 20  # more than the buffers of a connection
    headers = ("Authorization: Bearer a", f"Content-Length: {body_bytes}", "Connection: close")
    with run_toy_server(keys=ApiKeys(["a"], RateLimit(requests_per_second=0.01, max_concurrent=1))) as server:
        with server.client("a") as client:
            assert client.post("/v1/chat/completions", json=chat_body("x")).status_code == 200
        with _raw(server, "POST /v1/chat/completions", *headers) as connection:
            connection.sendall(bytes(body_bytes))
            answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    assert answer.startswith(b"HTTP/1.1 429")
    assert b"rate_limited" in answer


def test_a_rejected_client_that_does_not_send_its_body_is_disconnected(monkeypatch):
    monkeypatch.setattr("mstar.server.access.lingering_close.LINGER_TIMEOUT_S", 0.2)
    headers = ("Authorization: Bearer a", "Content-Length: 1000", "Connection: close")
    with run_toy_server(keys=ApiKeys(["a"], RateLimit(requests_per_second=0.01, max_concurrent=1))) as server:
        with server.client("a") as client:
            assert client.post("/v1/chat/completions", json=chat_body("x")).status_code == 200
        with _raw(server, "POST /v1/chat/completions", *headers) as connection:
            start = time.monotonic()
            assert connection.recv(100).startswith(b"HTTP/1.1 429"), "at once"
            while connection.recv(1 << 16):
                pass
            assert time.monotonic() - start >= 0.2


def test_requests_over_the_rate_limit_get_retry_after():
    with (
        run_toy_server(keys=ApiKeys(["a", "b"], RateLimit(requests_per_second=0.5, max_concurrent=2))) as server,
        server.client("a") as client,
    ):
        answers = [client.post("/v1/chat/completions", json=chat_body("x")) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert 1 <= int(answers[2].headers["retry-after"]) <= 2
        assert 0 < int(answers[2].headers["retry-after-ms"]) <= 2000
        reads = [client.get("/v1/models"), client.delete("/v1/videos/none"), client.get("/metrics")]
        assert [answer.status_code for answer in reads] == [200, 404, 429], "reads have a bucket of their own"
        assert reads[2].json()["error"]["code"] == "rate_limited"
        assert 1 <= int(reads[2].headers["retry-after"]) <= 2
        assert client.get("/health").status_code == 200, "probes without a key are not limited"
        with server.client("b") as other:
            assert other.post("/v1/chat/completions", json=chat_body("x")).status_code == 200


def test_overload_is_rejected_at_once():
    with (
        run_toy_server(options=RuntimeConfig(max_running_requests=1, max_queued_requests=1)) as server,
        server.client() as client,
    ):
        body = chat_body("slow" + "x" * 500, stream=True)  # at least 5 s
        with client.stream("POST", "/v1/chat/completions", json=body) as first:
            assert first.status_code == 200
            with _raw(server, "POST /v1/chat/completions", *_json_head(body)) as second:
                second.sendall(json.dumps(body).encode())
                while server.request_stats().get("queue") != 1:
                    time.sleep(0.005)
                third = client.post("/v1/chat/completions", json=body)
                assert server.request_stats()["queue"] == 1, "it did not wait for the requests before it"
        assert (third.status_code, third.json()["error"]["code"]) == (429, "overloaded")
        assert int(third.headers["retry-after-ms"]) > 0


def _json_head(body):
    return "Content-Type: application/json", f"Content-Length: {len(json.dumps(body))}"


# ---------------------------------------------------------------- bodies
NUMBERS = ["temperature", "top_p", "n", "seed", "max_tokens", "max_completion_tokens", "presence_penalty"]
NUMBERS += ["frequency_penalty", "top_logprobs"]
BAD = ["NaN", "Infinity", "-Infinity", "1e400", "-1e9", str(2**63), "9" * 4000, '"1"', "true", "[]", "{}"]


@pytest.mark.parametrize("name", NUMBERS)
def test_bad_numbers_reach_no_model(server, name):
    seen = len(server.parrot.seen)
    with server.client() as client:
        for bad in BAD:
            body = json.dumps(chat_body("x"))[:-1] + f', "{name}": {bad}}}'
            answer = client.post("/v1/chat/completions", content=body, headers={"Content-Type": "application/json"})
            assert answer.status_code == 400, (bad, answer.text)
            assert answer.json()["error"]["message"]
    assert len(server.parrot.seen) == seen


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[]", 400),
        (b"\xff\xfe{}", 400),
        (b"[" * 100_000, 400),
        (b'{"model": "parrot", "messages": ' + b"[" * 10_000 + b"]" * 10_000 + b"}", 400),
        (json.dumps(chat_body("x", n=17)).encode(), 400),
        (json.dumps(chat_body("x", n=0)).encode(), 400),
        (json.dumps({"model": "parrot", "messages": []}).encode(), 400),
        (b'{"model": "parrot", "messages": [{"role": "user", "content": "\\ud800"}]}', 400),
    ],
)
def test_bad_bodies_are_rejected(server, content, status):
    with server.client() as client:
        answer = client.post("/v1/chat/completions", content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_the_error_names_the_parameter(server):
    with server.client() as client:
        error = client.post("/v1/chat/completions", json=chat_body("x", temperature=9)).json()["error"]
    assert error["param"] == "temperature"
    assert error["message"] == "temperature: Input should be less than or equal to 2"


def test_a_body_that_is_too_large_is_not_read(server):
    with _raw(server, "POST /v1/chat/completions", f"Content-Length: {1 << 30}") as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 413")
    with _raw(server, "POST /v1/chat/completions", "Transfer-Encoding: chunked") as connection:
        piece = b"%x\r\n%s\r\n" % (1 << 20, b" " * (1 << 20))
        for _ in range(33):
            connection.sendall(piece)
        assert connection.recv(100).startswith(b"HTTP/1.1 413")


def test_a_slow_body_times_out(locked):
    headers = ("Content-Length: 10", "Authorization: Bearer right")
    with _raw(locked, "POST /v1/chat/completions", *headers) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 408")


def test_other_content_types_are_rejected(server):
    with server.client() as client:
        assert client.post("/v1/chat/completions", data={"model": "parrot"}).status_code == 415


# ---------------------------------------------------------------- request ids and paths
def test_the_request_id_is_returned(server):
    with server.client() as client:
        assert client.get("/health", headers={"X-Request-Id": "mine-1"}).headers["x-request-id"] == "mine-1"
        ids = {client.get("/health").headers["x-request-id"] for _ in range(2)}
        assert len(ids) == 2
        assert len(client.get("/health", headers={"X-Request-Id": "x" * 200}).headers["x-request-id"]) == 32
        assert client.get("/nowhere", headers={"X-Request-Id": "mine-2"}).headers["x-request-id"] == "mine-2"


def test_an_unknown_path_suggests_a_similar_one(server):
    with server.client() as client:
        answer = client.post("/chat/completions", json=chat_body("x"))
        assert answer.status_code == 404
        assert "/v1/chat/completions" in answer.json()["error"]["message"]
        assert client.get("/v1/chat/completions").status_code == 405

"""Circuit breaker and fast reject: which requests are rejected, for how long, and that their bodies are not read."""

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

from mstar.config import HttpLimits, RateLimit, RuntimeConfig
from mstar.server.access.api_keys import ApiKeys
from mstar.server.access.circuit_breaker import FORGET_S, MAX_OPEN_S, MAX_PROBE_ROUND_S, CircuitBreaker
from mstar.server.access.fast_reject import FastReject
from mstar.server.access.slo import SLO_HEADER
from mstar.server.errors import ApiError
from mstar.server.state import Phase
from mstar.wire import messages as m
from mstar.wire.slo import Slo
from tests.server.toy_server import chat_body, run_toy_server

HEADER_TIMEOUT_S = 0.3
TOO_MANY_REQUESTS = m.RequestRejected("r", 429, "too many requests are waiting", 2.0)


class FakeClock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def breaker(clock):
    return CircuitBreaker(clock)


# ---------------------------------------------------------------- durations
def test_the_breaker_opens_briefly_and_retry_after_counts_down(breaker, clock):
    breaker.admit("a", "x", Slo())(TOO_MANY_REQUESTS)
    clock.now += 0.04
    rejection = breaker.rejection("a", "x", Slo())
    assert (rejection.status, rejection.code, rejection.message) == (429, "overloaded", TOO_MANY_REQUESTS.reason)
    assert rejection.retry_after == pytest.approx(1.96)
    clock.now += MAX_OPEN_S - 0.04
    assert breaker.rejection("a", "x", Slo()) is None


def test_the_breaker_half_opens_before_a_slot_is_free(breaker, clock):
    breaker.admit("a", "x", Slo())(m.RequestRejected("r", 429, "full", 0.02))
    clock.now += 0.009
    assert breaker.rejection("a", "x", Slo()) is not None
    clock.now += 0.001
    assert breaker.rejection("a", "x", Slo()) is None


@pytest.mark.parametrize(("status", "seconds"), [(503, 5.0), (404, 0.0), (429, 0.0)])
def test_other_errors_do_not_open_the_breaker(breaker, status, seconds):
    breaker.admit("a", "x", Slo())(m.RequestRejected("r", status, "no", seconds))
    assert breaker.rejection("a", "x", Slo()) is None


@pytest.fixture
def reject_probe(breaker, clock):
    """A request was rejected after 8 ms, and the first probe was admitted after the open time."""
    refused = breaker.admit("a", "x", Slo())
    clock.now += 0.008
    refused(TOO_MANY_REQUESTS)
    clock.now += MAX_OPEN_S
    assert breaker.rejection("a", "x", Slo()) is None
    return breaker.admit("a", "x", Slo())


def test_probes_double_until_the_breaker_closes(reject_probe, breaker, clock):
    for width in (1, 2, 4, 8, 16, 32, 64):
        for _ in range(width - (width == 1)):
            breaker.admit("a", "x", Slo())
        assert breaker.is_open
        with pytest.raises(ApiError):
            breaker.admit("a", "x", Slo())
        clock.now += 0.009
    for _ in range(1000):
        breaker.admit("a", "x", Slo())


def test_retry_after_covers_the_probe_round(breaker, clock):
    refused = breaker.admit("a", "x", Slo())
    clock.now += 1.0
    refused(m.RequestRejected("r", 429, "full", 0.02))
    for _ in range(3):  # longer than the first Retry-After
        clock.now += MAX_PROBE_ROUND_S
        while breaker.rejection("a", "x", Slo()) is None:
            breaker.admit("a", "x", Slo())
        assert breaker.rejection("a", "x", Slo()).retry_after >= MAX_PROBE_ROUND_S - 1e-9


def test_the_breaker_closes_after_a_quiet_time(reject_probe, breaker, clock):
    """The 300 requests arrive at once: without the quiet time, all but the next round of probes are rejected."""
    clock.now += FORGET_S
    for _ in range(300):
        breaker.admit("a", "x", Slo())
    assert not breaker.is_open


def test_a_slow_rejection_does_not_hold_up_others(breaker, clock):
    refused = breaker.admit("a", "x", Slo())
    clock.now += 3.0
    refused(TOO_MANY_REQUESTS)
    for _ in range(3):
        clock.now += MAX_OPEN_S
        breaker.admit("a", "x", Slo())
    clock.now += MAX_PROBE_ROUND_S
    assert breaker.rejection("a", "x", Slo()) is None


def test_a_rejected_probe_opens_the_breaker_again(reject_probe, breaker, clock):
    clock.now += 0.005
    reject_probe(TOO_MANY_REQUESTS)
    clock.now += MAX_OPEN_S - 0.001
    assert breaker.rejection("a", "x", Slo()) is not None


# ---------------------------------------------------------------- circuits
def test_other_keys_and_models_are_admitted(breaker):
    breaker.admit("a", "x", Slo())(TOO_MANY_REQUESTS)
    assert breaker.rejection("b", "x", Slo()) is None
    assert breaker.rejection("a", "y", Slo()) is None


@pytest.mark.parametrize(
    ("refused", "slo", "is_rejected"),
    [
        (Slo(1.0), Slo(1.0), True),
        (Slo(1.0), Slo(0.5), True),
        (Slo(1.0), Slo(1.5), False),
        (Slo(1.0), Slo(), False),
        (Slo(), Slo(9.0), True),
        (Slo(), Slo(best_effort=True), False),
        (Slo(best_effort=True), Slo(), False),
        (Slo(best_effort=True), Slo(best_effort=True), True),
    ],
)
def test_a_looser_slo_is_admitted(breaker, refused, slo, is_rejected):
    breaker.admit("a", "x", refused)(TOO_MANY_REQUESTS)
    assert (breaker.rejection("a", "x", slo) is not None) == is_rejected


def test_rejecting_a_tighter_slo_keeps_looser_ones_rejected(breaker):
    for refused in [breaker.admit("a", "x", Slo(ttft_s)) for ttft_s in (1.0, 0.1)]:
        refused(TOO_MANY_REQUESTS)
    assert breaker.rejection("a", "x", Slo(0.8)) is not None


# ---------------------------------------------------------------- in a server
@pytest.fixture(scope="module")
def server():
    with run_toy_server(
        keys=ApiKeys(["right", "other"]),
        limits=HttpLimits(header_timeout_s=HEADER_TIMEOUT_S),
        options=RuntimeConfig(max_running_requests=1, max_queued_requests=0),
    ) as started:
        yield started


@pytest.fixture
def tenant(server):
    return server.state.keys.authenticate("Bearer right").name


@pytest.fixture
def tripped_server(server, tenant, breaker, monkeypatch):
    """The server, with open circuits for the chats and embeddings of one tenant."""
    monkeypatch.setattr(server.state, "circuit_breaker", breaker)
    for model in ("parrot", "vectors"):
        breaker.admit(tenant, model, Slo())(TOO_MANY_REQUESTS)
    return server


def head(server, path, key, size=1000):
    """The response to the headers of a request without its body."""
    host, port = server.url.removeprefix("http://").split(":")
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {key}", f"Content-Length: {size}", "", ""]
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall("\r\n".join(lines).encode())
        return connection.recv(1 << 16)


def test_a_request_is_rejected_before_its_body_is_read(tripped_server):
    response = head(tripped_server, "/v1/embeddings", "right")
    assert response.startswith(b"HTTP/1.1 429 ")
    assert b"retry-after: 2\r\n" in response
    assert b"retry-after-ms: 2000\r\n" in response
    assert b"x-request-id: " in response


def test_keys_and_paths_are_checked_first(tripped_server):
    assert head(tripped_server, "/v1/embeddings", "wrong").startswith(b"HTTP/1.1 401 ")
    assert head(tripped_server, "/v1/nowhere", "right").startswith(b"HTTP/1.1 404 ")


def test_other_tenants_and_slos_are_served(tripped_server):
    with tripped_server.client("other") as client:
        assert client.post("/v1/chat/completions", json=chat_body("x")).status_code == 200
    with tripped_server.client("right") as client:
        assert client.get("/v1/models").status_code == 200
        assert (
            client.post("/v1/chat/completions", json=chat_body("x"), headers={SLO_HEADER: "best_effort"}).status_code
            == 200
        )
        assert client.post("/v1/chat/completions", json=chat_body("x", service_tier="flex")).status_code == 200
        assert client.post("/v1/chat/completions", content=b"no json").status_code == 429
        mix = {"sound": {"dtype": "float32", "shape": [1], "data": "AAAAAA=="}, "times": 1}
        assert client.post("/v1/generate", json={"model": "mixer", "request": mix}).status_code == 200
        embed = {"model": "vectors", "request": {"texts": ["a"]}}
        assert client.post("/v1/generate", json=embed).status_code == 429  # its model is known only from the body


def test_a_rejection_opens_the_breaker_and_is_counted(server, tenant, breaker, clock, monkeypatch):
    monkeypatch.setattr(server.state, "circuit_breaker", breaker)
    submitted, submit_request = [], server.front.submit
    monkeypatch.setattr(
        server.front, "submit", lambda submit, listener: (submitted.append(submit), submit_request(submit, listener))
    )
    counted = server.state.metrics.request_errors.labels("overloaded")._value
    with server.client("right") as client:
        with client.stream("POST", "/v1/chat/completions", json=chat_body("slow" + "x" * 100, stream=True)) as first:
            before = counted.get()
            assert first.status_code == 200
            answers = [client.post("/v1/chat/completions", json=chat_body("x")) for _ in range(5)]
            assert [one.status_code for one in answers] == [429] * 5
            assert len({one.text for one in answers}) == 1
            assert len(submitted) == 2  # the one that runs, and the first that was rejected
        assert server.wait_until_idle()
        assert counted.get() - before == 5
        clock.now += MAX_OPEN_S
        assert client.post("/v1/chat/completions", json=chat_body("x")).status_code == 200


# ---------------------------------------------------------------- fast reject
BODY = b'{"model": "parrot", "messages": [{"role": "user", "content": "x"}]}'


def request(*more, line="POST /v1/chat/completions HTTP/1.1", body=BODY, size=None):
    lines = [line, "Host: x", "authorization: Bearer right", f"Content-Length: {size or len(body)}", *more, "", ""]
    return "\r\n".join(lines).encode() + body


def test_a_complete_request_is_rejected_from_its_raw_bytes(tripped_server, tenant, caplog):
    fast_reject = FastReject(tripped_server.state)
    caplog.set_level("INFO", "mstar.requests")
    answer = fast_reject.try_reject(request("X-Request-Id: mine", "Connection: close"))
    head, _, body = answer.data.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "HTTP/1.1 429 Too Many Requests"
    assert {"X-Request-Id: mine", "Retry-After: 2", "Connection: close", f"Content-Length: {len(body)}"} <= {*lines}
    assert json.loads(body)["error"]["code"] == "overloaded"
    assert answer.close_connection
    assert not fast_reject.try_reject(request()).close_connection
    fields = caplog.records[0].fields
    assert (fields["id"], fields["tenant"], fields["status"], fields["code"]) == ("mine", tenant, 429, "overloaded")
    assert (fields["endpoint"], fields["bytes_in"], fields["bytes_out"]) == (
        "/v1/chat/completions",
        len(BODY),
        len(body),
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\r\n\r\n",
        b"\xff\x00" * 100,
        request()[:60],
        request()[:-1],
        request() + request(),
        request(line="GET /v1/chat/completions HTTP/1.1"),
        request(line="POST /v1/chat/completions HTTP/1.0"),
        request(line="POST /v1/chat/completions?x=1 HTTP/1.1"),
        request(line="POST /v1/generate HTTP/1.1"),
        request(line="POST /v1/requests/mine/cancel HTTP/1.1"),
        request("Transfer-Encoding: chunked"),
        request("Expect: 100-continue"),
        request("Upgrade: h2c"),
        request("X: y", " z"),
        request("X: y\nX2: z"),
        request(*(f"X-{number}: y" for number in range(2000))),
        request("Authorization: Bearer other"),
        request("Content-Length: 5"),
        request(size="+67"),
        request("Mstar-SLO: best_effort"),
        request("Mstar-SLO: now"),
        request(body=BODY.replace(b"}]}", b'}], "service_tier": "flex"}')),
        request().replace(b"right", b"wrong"),
        request().replace(b"right", b"other"),
    ],
)
def test_anything_else_takes_the_normal_path(tripped_server, data):
    assert FastReject(tripped_server.state).try_reject(data) is None


def test_only_authorized_requests_learn_that_the_breaker_is_open(tripped_server, breaker, clock, monkeypatch):
    fast_reject = FastReject(tripped_server.state)
    monkeypatch.setattr(tripped_server.state, "phase", Phase("draining"))
    assert fast_reject.try_reject(request()) is None
    monkeypatch.undo()
    monkeypatch.setattr(tripped_server.state, "circuit_breaker", breaker)
    limited_keys = ApiKeys(["right"], RateLimit(requests_per_second=0.001, max_concurrent=2))
    monkeypatch.setattr(tripped_server.state, "keys", limited_keys)
    assert [fast_reject.try_reject(request()) is None for _ in range(3)] == [False, False, True]
    monkeypatch.setattr(tripped_server.state, "keys", ApiKeys(["right"]))
    clock.now += MAX_OPEN_S
    assert fast_reject.try_reject(request()) is None


def test_a_connection_stays_usable_after_a_rejection(tripped_server, tenant, breaker, clock):
    host, port = tripped_server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        for status in (b"429", b"429", b"200"):
            clock.now += MAX_OPEN_S * (status == b"200")
            connection.sendall(request())
            data = connection.recv(1 << 16)
            while not data.endswith(b"}"):
                data += connection.recv(1 << 16)
            assert data[9:12] == status
            time.sleep(1.5 * HEADER_TIMEOUT_S)  # which begins with the first byte of the next request
        breaker.admit(tenant, "parrot", Slo())(TOO_MANY_REQUESTS)
        connection.sendall(request("Connection: close"))
        assert connection.recv(1 << 16)[9:12] == b"429"
        assert connection.recv(1) == b""


# ---------------------------------------------------------------- after an overload
def test_an_idle_server_rejects_no_request_after_an_overload():
    """Afterwards, 300 requests arrive with as many at a time as fit into the server."""
    with (
        run_toy_server(options=RuntimeConfig(max_running_requests=8, max_queued_requests=56)) as server,
        server.client(limits=httpx2.Limits(max_connections=128), timeout=60) as client,
    ):

        def post_all(text, count, concurrent):
            with ThreadPoolExecutor(concurrent) as pool:
                bodies = [chat_body(text)] * count
                return [*pool.map(lambda body: client.post("/v1/chat/completions", json=body).status_code, bodies)]

        assert 429 in post_all("slow hello", 256, 128)
        assert server.wait_until_idle(5.0)
        time.sleep(FORGET_S)
        assert post_all("hello", 300, 60) == [200] * 300

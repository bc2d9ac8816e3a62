"""Acceptor: floods of new connections, the limit of requests, and order of tenants."""

import json
import logging
import socket
import threading
import time
from contextlib import closing, contextmanager

import pytest

from mstar.server import acceptor
from mstar.server.access.api_keys import ApiKeys
from tests.server.toy_server import chat_body, run_toy_server

CHAT = "/v1/chat/completions"
LIMIT, FLOOD = 24, 200
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def raw_chat(text, key="", **fields):
    body = json.dumps(chat_body(text, **fields)).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
    head += f"Authorization: Bearer {key}\r\n" if key else ""
    return f"{head}Content-Type: application/json\r\n\r\n".encode() + body


def send(server, data):
    connection = socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])))
    connection.settimeout(20)
    connection.sendall(data)
    return connection


def read_all(connection):
    with closing(connection):
        data = b""
        while more := connection.recv(1 << 16):
            data += more
    return data


def status_of(response):
    return int(response.split(b" ")[1])


@contextmanager
def blocked_loop(server):
    """While active, the event loop of the server does nothing, so that connections wait to be accepted."""
    is_blocked, release = threading.Event(), threading.Event()

    def block():
        is_blocked.set()
        release.wait(20)

    server.run_in_loop(block)
    assert is_blocked.wait(10)
    try:
        yield
    finally:
        release.set()


@pytest.fixture
def limited():
    with run_toy_server() as server:
        server.state.load_shedder.limit = LIMIT
        yield server


def test_a_flood_of_connections_is_served_up_to_the_limit_and_the_rest_is_rejected(limited):
    with blocked_loop(limited):
        connections = [send(limited, raw_chat("hi")) for _ in range(FLOOD)]
    responses = [read_all(connection) for connection in connections]
    statuses = [status_of(response) for response in responses]
    assert set(statuses) == {200, 429}
    assert LIMIT <= statuses.count(200) <= 2 * LIMIT, "a request that ends makes room for another"
    rejection = next(response for response in responses if status_of(response) == 429)
    assert b"Retry-After: 1\r\n" in rejection
    assert b"Connection: close\r\n" in rejection
    assert json.loads(rejection.partition(b"\r\n\r\n")[2])["error"]["code"] == "overloaded"
    assert limited.wait_until_idle(5)
    with limited.client() as client:
        assert client.post(CHAT, json=chat_body("hi")).status_code == 200


def test_a_health_check_behind_a_flood_does_not_wait_for_it():
    with run_toy_server() as server:
        with blocked_loop(server):
            connections = [send(server, raw_chat("hi")) for _ in range(FLOOD)]
            health = send(server, HEALTH)
        assert status_of(read_all(health)) == 200
        assert len(server.parrot.seen) < FLOOD // 2, "most of the requests before it have not begun"
        assert {status_of(read_all(connection)) for connection in connections} == {200}


def test_rejections_are_counted_and_logged_once_in_an_interval(limited, monkeypatch, caplog):
    monkeypatch.setattr(acceptor, "LOG_INTERVAL_S", 0.2)
    caplog.set_level(logging.WARNING, "mstar.server")
    with blocked_loop(limited):
        connections = [send(limited, raw_chat("hi")) for _ in range(FLOOD)]
    rejected = [status_of(read_all(connection)) for connection in connections].count(429)
    time.sleep(0.5)
    lines = [record.fields for record in caplog.records if record.message == "requests rejected"]
    assert sum(line["requests"] for line in lines) == rejected
    assert len(lines) < 5
    with limited.client() as client:
        page = client.get("/metrics").text
    assert f'mstar_requests_total{{endpoint="{CHAT}",status="429"}} {rejected}.0' in page
    assert f'mstar_request_errors_total{{code="overloaded"}} {rejected}.0' in page


def test_a_request_on_a_kept_connection_is_rejected_beyond_the_limit(limited):
    limited.state.load_shedder.limit = 1
    with limited.client() as client:
        assert client.post(CHAT, json=chat_body("hi")).status_code == 200
        assert limited.wait_until_idle(5)
        with closing(send(limited, raw_chat("slow" + "x" * 300, stream=True))) as running:
            assert status_of(running.recv(1 << 16)) == 200
            response = client.post(CHAT, json=chat_body("hi"))
            assert (response.status_code, response.json()["error"]["code"]) == (429, "overloaded")
            assert client.get("/v1/models").status_code == 200, "only requests that begin work are limited"
            assert client.post("/v1/requests/unknown/cancel").status_code == 404


def test_a_flood_of_one_tenant_leaves_slots_and_turns_to_another():
    with run_toy_server(keys=ApiKeys(["a", "b"])) as server:
        server.state.load_shedder.limit = 90
        with blocked_loop(server):
            flood = [send(server, raw_chat("from a", key="a")) for _ in range(FLOOD)]
            other = [send(server, raw_chat("from b", key="b")) for _ in range(4)]
        assert [status_of(read_all(connection)) for connection in other] == [200] * 4
        texts = [request.messages[-1].parts[0] for request in server.parrot.seen]
        last = max(place for place, text in enumerate(texts) if text == "from b")
        assert last < 40, "tenants take turns: it does not wait for the 80 requests of the other one"
        assert {status_of(read_all(connection)) for connection in flood} == {200, 429}


def test_requests_that_wait_get_a_503_at_shutdown():
    with run_toy_server() as server:
        with blocked_loop(server):
            connections = [send(server, raw_chat("hi")) for _ in range(FLOOD)]
            # In the turn after the one that accepts them.
            server.run_in_loop(lambda: server.loop.call_soon(server.http_server.servers[0].close))
        statuses = {status_of(read_all(connection)) for connection in connections}
    assert 503 in statuses
    assert statuses <= {200, 503}


def test_a_large_request_that_waits_gets_its_503_at_shutdown():
    """The rest of its body is unread. To close the connection would reset it, and the reset deletes the response."""
    text = "x" * (4 * acceptor.FIRST_READ_BYTES)
    with run_toy_server() as server:
        with blocked_loop(server):
            connections = [send(server, raw_chat(text, max_tokens=1)) for _ in range(50)]
            server.run_in_loop(lambda: server.loop.call_soon(server.http_server.servers[0].close))
        time.sleep(0.2)  # so that a reset arrives before the response is read
        statuses = [status_of(read_all(connection)) for connection in connections]
    assert 503 in statuses
    assert {*statuses} <= {200, 503}


def test_a_request_larger_than_the_first_read_keeps_its_order(server):
    """The event loop can read the rest of the request as soon as there is a transport."""
    text = "x" * (4 * acceptor.FIRST_READ_BYTES)
    with blocked_loop(server):
        connections = [send(server, raw_chat(text, max_tokens=1)) for _ in range(8)]
    assert [status_of(read_all(connection)) for connection in connections] == [200] * 8

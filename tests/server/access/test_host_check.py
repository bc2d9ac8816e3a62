"""Host check: which Host headers a server without API keys accepts, over HTTP and WebSocket (DNS rebinding)."""

import socket

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from mstar.server.access.api_keys import ApiKeys
from mstar.server.access.host_check import HostCheck
from tests.server.toy_server import chat_body, run_toy_server

LOOPBACK = ["127.0.0.1", "localhost", "LocalHost", "[::1]"]
FOREIGN = ["", "evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "[::2]", "0.0.0.0", "127.0.0.2", "]"]


@pytest.mark.parametrize("name", LOOPBACK)
def test_loopback_names_are_accepted_without_a_port_and_with_the_bound_port(name):
    check = HostCheck("127.0.0.1", 8000)
    assert check.rejection(name) is None
    assert check.rejection(f"{name}:8000") is None
    assert check.rejection(f"{name}:8001").status == 421


@pytest.mark.parametrize("name", FOREIGN)
def test_other_names_are_rejected(name):
    for host in (name, f"{name}:8000"):
        error = HostCheck("127.0.0.1", 8000).rejection(host)
        assert (error.status, error.code) == (421, "host_not_allowed")
        assert "fix: use http://127.0.0.1:8000, or start the server with --allow-host NAME" in error.message


@pytest.mark.parametrize(("listening", "host"), [("127.0.0.2", "127.0.0.2"), ("::1", "[::1]")])
def test_the_listening_host_is_accepted(listening, host):
    assert HostCheck(listening, 8000).rejection(f"{host}:8000") is None


def test_additional_hosts_are_accepted():
    check = HostCheck("127.0.0.1", 8000, ["box.local", "localhost:9000", "[fd00::1]"])
    for host in ("box.local", "BOX.local:1", "localhost:9000", "[fd00::1]", "[fd00::1]:8000"):
        assert check.rejection(host) is None
    for host in ("box.local.evil.example", "localhost:9001", "[fd00::2]"):
        assert check.rejection(host) is not None


@pytest.fixture(scope="module")
def checked():
    """A server without keys that checks the Host header."""
    with run_toy_server() as started:
        started.state.host_check = HostCheck("127.0.0.1", int(started.url.rpartition(":")[2]))
        yield started


REBOUND = {"Host": "evil.example:8203", "Origin": "http://evil.example:8203"}
"""What a browser sends for a page of evil.example whose name now resolves to 127.0.0.1."""


def test_a_rebound_page_reaches_no_endpoint(checked):
    seen = len(checked.parrot.seen)
    with checked.client() as client:
        for method, path in (
            ("GET", "/health"),
            ("GET", "/v1/requests"),
            ("GET", "/v1/models"),
            ("GET", "/nowhere"),
            ("POST", "/v1/chat/completions"),
            ("POST", "/v1/models/parrot/unload"),
        ):
            answer = client.request(method, path, headers=REBOUND, json=chat_body("x") if method == "POST" else None)
            assert (answer.status_code, answer.json()["error"]["code"]) == (421, "host_not_allowed"), path
        assert client.post("/v1/chat/completions", json=chat_body("x")).status_code == 200
    assert len(checked.parrot.seen) == seen + 1


def test_a_rebound_page_opens_no_websocket(checked):
    url = checked.url.replace("http", "ws") + "/v1/realtime?model=parrot"
    with pytest.raises(InvalidStatus) as rejected:
        # `additional_headers` would send a second Host header, so the name is that of the URL.
        connect(url.replace("127.0.0.1", "evil.example"), sock=connect_socket(checked)).close()
    assert rejected.value.response.status_code == 421
    with connect(url):
        pass


def connect_socket(server):
    return socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=5)


def test_with_api_keys_every_host_is_accepted():
    with run_toy_server(keys=ApiKeys(["k"])) as server, server.client("k") as client:
        server.state.host_check = HostCheck("127.0.0.1", 1)
        assert client.get("/v1/models", headers={"Host": "api.example"}).status_code == 200

"""API keys: roles, and keys that are added, changed and withdrawn while the server runs."""

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from mstar.config import RateLimit
from mstar.server.access.api_keys import ApiKeys, Tenant, hash_key
from tests.server.toy_server import run_toy_server


def test_keys_are_client_keys_unless_they_are_configured_as_operator_keys():
    keys = ApiKeys(["a", "both"], operator_keys=["o", "both"])
    assert [keys.authenticate(f"Bearer {key}").is_operator for key in ("a", "both", "o")] == [False, True, True]
    assert ApiKeys().authenticate("").is_operator


def test_a_withdrawn_key_is_rejected_and_the_others_keep_their_counts():
    keys = ApiKeys(["a", "b"], RateLimit(max_concurrent=5))
    alice, bob = keys.authenticate("Bearer a"), keys.authenticate("Bearer b")
    alice.work.active_requests = 3
    assert keys.replace(ApiKeys(["a", "c"], RateLimit(max_concurrent=3), operator_keys=["a"])) == (1, 1)
    assert keys.authenticate("Bearer a") is alice
    assert (alice.work.active_requests, alice.is_operator, alice.is_withdrawn) == (3, True, False)
    assert alice.work.acquire(1.0) > 0  # by the new limit
    assert keys.authenticate("Bearer b") is None
    assert bob.is_withdrawn
    assert keys.authenticate("Bearer c") is not None


def test_a_key_under_another_name_belongs_to_another_tenant():
    keys = ApiKeys(["a"])
    unnamed = keys.authenticate("Bearer a")
    keys.replace(ApiKeys(tenants={hash_key("a"): Tenant("alice", RateLimit())}))
    assert keys.authenticate("Bearer a").name == "alice"
    assert unnamed.is_withdrawn


def test_the_first_key_withdraws_the_anonymous_tenant():
    keys = ApiKeys()
    anonymous = keys.authenticate("")
    assert keys.replace(ApiKeys(["a"])) == (1, 0)
    assert anonymous.is_withdrawn
    assert keys.authenticate("") is None


def test_a_server_without_keys_keeps_the_counts_of_its_tenant():
    keys = ApiKeys()
    anonymous = keys.authenticate("")
    anonymous.work.active_requests = 3
    keys.replace(ApiKeys(rate_limit=RateLimit(max_concurrent=3)))
    assert keys.authenticate("") is anonymous
    assert not anonymous.is_withdrawn
    assert anonymous.work.acquire(1.0) > 0  # by the new limit


def read_until_closed(socket):
    while True:
        socket.recv(5)


def test_a_websocket_of_a_withdrawn_key_is_closed_at_its_next_message():
    with run_toy_server(keys=ApiKeys(["a", "b"])) as server:
        url = server.url.replace("http", "ws") + "/v1/realtime?model=parrot"
        with connect(url, additional_headers={"Authorization": "Bearer b"}) as socket:
            socket.recv(5)
            server.state.keys.replace(ApiKeys(["a"]))
            socket.send('{"type": "session.update", "session": {}}')
            with pytest.raises(ConnectionClosed):
                read_until_closed(socket)
        assert server.wait_until_idle()

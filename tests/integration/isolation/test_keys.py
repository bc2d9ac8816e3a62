"""API keys are separate tenants: named, unnamed, and unnamed with digests that begin alike."""

import pytest

from mstar.server.access.api_keys import ApiKeys, RateLimit, Tenant, hash_key
from tests.integration.isolation.tenant_models import EveryEndpoint
from tests.integration.isolation.two_keys import chat
from tests.server.model_server import serve_models

COLLIDING_KEYS = ("key-8337", "key-15029")
"""Keys whose SHA-256 digests have the same first 8 hex digits."""


def tenant_of(keys, key):
    return keys.authenticate(f"Bearer {key}")


def test_the_keys_of_this_test_collide():
    assert len({hash_key(key)[:4] for key in COLLIDING_KEYS}) == 1


def test_keys_whose_digests_begin_alike_are_different_tenants():
    keys = ApiKeys(COLLIDING_KEYS)
    first, second = (tenant_of(keys, key) for key in COLLIDING_KEYS)
    assert first.name != second.name
    assert first is not second


def test_the_name_of_an_unnamed_key_has_at_least_128_bits_of_its_digest_and_not_the_key():
    name = tenant_of(ApiKeys(["secret"]), "secret").name
    assert len(name) >= 32
    assert hash_key("secret").hex().startswith(name)
    assert name != hash_key("secret").hex(), "the whole digest would authenticate in a manifest"


def test_a_named_key_is_a_tenant_of_its_own_beside_unnamed_keys():
    keys = ApiKeys(["plain"], tenants={hash_key("named"): Tenant("alice", RateLimit())})
    assert tenant_of(keys, "named").name == "alice"
    assert tenant_of(keys, "plain").name == hash_key("plain").hex()[:32]
    assert tenant_of(keys, "other") is None


def test_a_key_that_is_named_and_unnamed_is_the_named_tenant():
    keys = ApiKeys(["both"], tenants={hash_key("both"): Tenant("alice", RateLimit())})
    assert tenant_of(keys, "both").name == "alice"


def test_colliding_unnamed_keys_share_nothing_over_http():
    with serve_models({"every": EveryEndpoint()}, ApiKeys(COLLIDING_KEYS)) as server:
        recorder = server.models["every"].recorder
        with server.client(COLLIDING_KEYS[0]) as first, server.client(COLLIDING_KEYS[1]) as second:
            chat(first, "hello", "private-1")
            chat(second, "hello", "other-1")
            assert len({*recorder.calls}) == 2
            assert [one["id"] for one in second.get("/v1/requests").json()["data"]] == ["other-1"]
            assert second.get("/v1/requests/private-1/trace").status_code == 404


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic key-8337", "Bearer key-8337 x", "bearer key-83"])
def test_a_malformed_header_is_no_tenant(header):
    assert ApiKeys(COLLIDING_KEYS).authenticate(header) is None

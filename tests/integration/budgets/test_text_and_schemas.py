"""Long texts, large schemas and msgpack bombs are rejected before they cost anything, and no other client waits."""

import json
import time

import msgspec
import pytest

from tests.integration.budgets.bystander import MAX_RISE_S, chat, p99_rise_s, post
from tests.tiers import ci_cases

pytestmark = [pytest.mark.slow, pytest.mark.timeout(170)]
WORDS = "The quick brown fox jumps over the lazy dog. "


def rejection(response):
    return response.status_code, response.json()["error"]["code"]


def tokenize(client, text, **fields):
    return chat(client, text, model="tokenizing", **fields)


@pytest.mark.parametrize("megabytes", ci_cases([5, 28], 28))
def test_text_that_cannot_fit_the_context_delays_no_other_client(server, report, megabytes):
    text = WORDS * (megabytes * 1_000_000 // len(WORDS))
    body = json.dumps({"model": "tokenizing", "messages": [{"role": "user", "content": text}]}).encode()

    def attack():
        begun = time.perf_counter()
        status, content = post(server, "alice", "/v1/chat/completions", body, "application/json")
        report(f"{megabytes} MB of text: rejected after {time.perf_counter() - begun:.2f} s")
        assert (status, content["error"]["code"]) == (400, "context_length_exceeded")

    with server.client("bob") as bob:
        rise = p99_rise_s(server, attack, lambda: tokenize(bob, "Hi."))
    report(f"bob's p99 rises by {rise * 1000:.0f} ms")
    assert rise <= MAX_RISE_S


def test_long_text_below_the_bound_is_tokenized_beside_other_requests(server, report):
    text = (WORDS * 14_000)[:600_000]

    def attack():
        response = tokenize(server.alice, text)
        assert rejection(response) == (400, "context_length_exceeded"), response.text[:300]

    with server.client("bob") as bob:
        rise = p99_rise_s(server, attack, lambda: tokenize(bob, "Hi."))
    report(f"bob's p99 rises by {rise * 1000:.0f} ms")
    assert rise <= MAX_RISE_S


def test_long_text_that_fits_is_answered(server):
    response = tokenize(server.alice, (WORDS * 1000)[:30_000])
    assert response.status_code == 200, response.text
    assert response.json()["choices"][0]["message"]["content"] == "\n"


CYCLE = {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}
SCHEMAS = {
    "5000 properties": {"type": "object", "properties": {f"property_{i}": {"type": "string"} for i in range(5000)}},
    "2000 properties": {"type": "object", "properties": {f"property_{i}": {"type": "string"} for i in range(2000)}},
    "circular reference": {"$ref": "#/$defs/a", "$defs": CYCLE},
}


@pytest.mark.parametrize("name", ci_cases(SCHEMAS, "5000 properties", "circular reference"))
def test_a_schema_above_the_limits_delays_no_other_client(server, report, name):
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMAS[name]}}

    def attack():
        response = chat(server.alice, "x", model="tokenizing", response_format=schema)
        assert rejection(response) == (400, "bad_grammar"), response.text[:300]
        assert response.json()["error"]["type"] == "invalid_request_error"

    with server.client("bob") as bob:
        rise = p99_rise_s(server, attack, lambda: tokenize(bob, "Hi."))
    report(f"bob's p99 rises by {rise * 1000:.0f} ms")
    assert rise <= MAX_RISE_S


def test_the_largest_schemas_that_are_allowed_delay_others_little(server, report):
    numbers = iter(range(100))

    def attack():
        """A schema that is not in the cache of compiled grammars."""
        number = next(numbers)
        pattern = f"^[a-z]{{1,{200 + number}}}$"
        properties = {f"property_{number}_{i}": {"type": "string", "pattern": pattern} for i in range(256)}
        schema = {"name": "x", "schema": {"type": "object", "properties": properties}}
        response = tokenize(server.alice, "x", response_format={"type": "json_schema", "json_schema": schema})
        assert response.status_code == 200, response.text[:300]

    with server.client("bob") as bob:
        rise = p99_rise_s(server, attack, lambda: tokenize(bob, "Hi."))
    report(f"bob's p99 rises by {rise * 1000:.0f} ms")
    assert rise <= MAX_RISE_S


def test_a_msgpack_list_of_200_million_nils_is_not_decoded(server, report):
    nils = 200_000_000
    head = msgspec.msgpack.encode({"model": "parrot", "request": None})[:-1]
    body = head + b"\xdd" + nils.to_bytes(4, "big") + b"\xc0" * nils
    before = server.rss_bytes("frontend")

    def attack():
        status, content = post(server, "alice", "/v1/generate", body, "application/msgpack")
        assert (status, content["error"]["code"]) == (413, "too_many_values")

    rise = p99_rise_s(server, attack)
    grown = server.rss_bytes("frontend") - before
    report(f"bob's p99 rises by {rise * 1000:.0f} ms, the front end by {grown / 1e6:.0f} MB")
    assert rise <= MAX_RISE_S
    assert grown <= 64 << 20

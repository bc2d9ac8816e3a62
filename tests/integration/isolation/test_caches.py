"""Prefix cache and encoder cache are shared within a tenant and never between tenants."""

import base64
import string
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.integration.isolation.tenant_models import PAGE_SIZE, CachingModel
from tests.integration.isolation.two_keys import (
    KEYS,
    chat,
    create_item,
    open_realtime,
    respond,
    serve_two_keys,
)
from tests.server.model_server import serve_models
from tests.server.openai.test_images import png

PROMPT_TOKENS, OUTPUT_TOKENS = 40, 4
CACHED_TOKENS = PROMPT_TOKENS - 1
"""The last token of a prompt is always computed."""


class ComputedTokens:
    """Counts the tokens that a network computes. Tokens from the prefix cache are not computed."""

    def __init__(self, lm):
        self._count = 0
        forward = lm.decoder._forward

        def counted(embeddings, positions, last):
            self._count += embeddings.shape[1]
            return forward(embeddings, positions, last)

        lm.decoder._forward = counted

    def take(self):
        """Computed tokens since the last call, without those of generated tokens."""
        count, self._count = self._count, 0
        return count - OUTPUT_TOKENS


@pytest.fixture(scope="module")
def caching():
    with serve_two_keys({"caching": CachingModel()}) as server:
        server.computed = ComputedTokens(server.models["caching"].lm)
        server.clients = {tenant: server.client(key) for tenant, key in KEYS.items()}
        yield server
        for client in server.clients.values():
            client.close()


FIRST_CHARACTERS = iter(string.ascii_letters)


@pytest.fixture
def prompt(request):
    """A prompt of which no other test sends the first character."""
    return next(FIRST_CHARACTERS) + f"{request.node.name:.<{PROMPT_TOKENS}}"[1 - PROMPT_TOKENS :]


def send(server, tenant, prompt, **fields):
    """Send a chat; return the number of prompt tokens that were computed."""
    chat(server.clients[tenant], prompt, model="caching", max_tokens=OUTPUT_TOKENS, temperature=0, **fields)
    return server.computed.take()


# ---------------------------------------------------------------- prefix cache
def test_a_cached_prefix_is_used_by_its_own_tenant_only(caching, prompt):
    computed = [send(caching, tenant, prompt) for tenant in ("alice", "alice", "bob", "bob", "alice")]
    hit = PROMPT_TOKENS - CACHED_TOKENS
    assert computed == [PROMPT_TOKENS, hit, PROMPT_TOKENS, hit, hit]


def test_generated_tokens_are_cached_for_their_own_tenant_only(caching, prompt):
    """The next turn of a conversation contains the response to the last one."""
    text = chat(caching.clients["alice"], prompt, model="caching", max_tokens=8, temperature=0)
    caching.computed.take()
    longer = prompt + text + "and"
    cached = (PROMPT_TOKENS + 8) // PAGE_SIZE * PAGE_SIZE
    assert send(caching, "bob", longer) == len(longer)
    assert send(caching, "alice", longer) == len(longer) - cached


def test_prompts_of_both_tenants_that_run_together_share_nothing(caching, prompt):
    with ThreadPoolExecutor(2) as pool:
        texts = [
            *pool.map(
                lambda tenant: chat(
                    caching.clients[tenant], prompt, model="caching", max_tokens=OUTPUT_TOKENS, temperature=0
                ),
                ("alice", "bob"),
            )
        ]
    assert texts[0] == texts[1]
    assert caching.computed.take() == 2 * PROMPT_TOKENS + OUTPUT_TOKENS


def test_choices_of_one_request_share_their_prompt(caching, prompt):
    computed = send(caching, "alice", prompt, n=2) - OUTPUT_TOKENS
    assert PROMPT_TOKENS < computed < 2 * PROMPT_TOKENS
    assert send(caching, "bob", prompt) == PROMPT_TOKENS


def converse(server, tenant, prompt):
    """Send a prompt in a Realtime session; return the number of prompt tokens that were computed."""
    with open_realtime(server, tenant, model="caching", max_output_tokens=OUTPUT_TOKENS) as (socket, _):
        create_item(socket, prompt)
        respond(socket)
    return server.computed.take()


def test_a_websocket_session_uses_the_prefix_cache_of_its_own_tenant(caching, prompt):
    computed = [converse(caching, tenant, prompt) for tenant in ("alice", "bob", "alice")]
    assert computed == [PROMPT_TOKENS, PROMPT_TOKENS, PROMPT_TOKENS - CACHED_TOKENS]


def test_http_and_websockets_of_a_tenant_share_a_prefix_cache_of_their_own(caching, prompt):
    send(caching, "alice", prompt)
    assert converse(caching, "bob", prompt) == PROMPT_TOKENS
    assert converse(caching, "alice", prompt) == PROMPT_TOKENS - CACHED_TOKENS


# ---------------------------------------------------------------- encoder cache
def send_image(server, tenant, seed):
    """Send a chat with an image; return how often the encoder ran."""
    encoder = server.models["caching"].encoder
    before = encoder.runs
    pixels = np.random.default_rng(seed).integers(0, 255, (8, 8, 3)).astype(np.uint8)
    url = f"data:image/png;base64,{base64.b64encode(png(pixels)).decode()}"
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "what is it?"}]
    body = {"model": "caching", "messages": [{"role": "user", "content": parts}], "max_tokens": 1}
    response = server.clients[tenant].post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    server.computed.take()
    return encoder.runs - before


def test_a_cached_image_is_used_by_its_own_tenant_only(caching):
    assert [send_image(caching, tenant, 1) for tenant in ("alice", "alice", "bob", "bob")] == [1, 0, 1, 0]


def test_the_same_image_of_both_tenants_is_encoded_twice_when_it_arrives_together(caching):
    encoder = caching.models["caching"].encoder
    before = encoder.runs
    with ThreadPoolExecutor(4) as pool:
        [*pool.map(lambda tenant: send_image(caching, tenant, 2), ("alice", "bob", "alice", "bob"))]
    assert encoder.runs - before == 2


# ---------------------------------------------------------------- without keys
def test_a_server_without_keys_has_one_anonymous_tenant(caching, prompt):
    send(caching, "alice", prompt)
    with serve_models(caching.models) as server, server.client() as client:
        server.computed, server.clients = caching.computed, {"": client}
        assert [send(server, "", prompt) for _ in range(2)] == [PROMPT_TOKENS, PROMPT_TOKENS - CACHED_TOKENS]
        assert [send_image(server, "", 3) for _ in range(2)] == [1, 0]

"""Background responses: their limits, and what they keep in memory."""

from __future__ import annotations

import asyncio
import gc
import time

import pytest
from openai import InternalServerError, RateLimitError

from mstar.server.errors import ApiError
from mstar.server.http_exchange import HttpExchange
from mstar.server.responses import store as response_store
from mstar.server.responses.store import measure
from tests.server.responses.test_responses import respond, wait_for_end
from tests.server.toy_models import BOOM


def call_in_loop(server, function, *arguments):
    """The result of a function that runs in the event loop of the server, between the steps of its tasks."""

    async def call():
        return function(*arguments)

    return asyncio.run_coroutine_threadsafe(call(), server.loop).result(10)


def store_of(server):
    """The store of the server, after the tasks of ended responses are done."""
    store = server.http_server.config.app.state.response_store
    deadline = time.monotonic() + 10
    while call_in_loop(server, store.count_running, "") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not call_in_loop(server, store.count_running, "")
    return store


@pytest.mark.parametrize("end", ["completed", "failed", "cancelled"])
def test_the_output_of_a_background_response_counts_however_it_ended(server, openai, end):
    text = {"completed": "x" * 90, "failed": "x" * 90 + BOOM, "cancelled": "slow " + "x" * 2000}[end]
    created = respond(openai, text, background=True)
    if end == "cancelled":
        while not openai.responses.retrieve(created.id).output_text:
            time.sleep(0.01)
        openai.responses.cancel(created.id)
    ended = wait_for_end(openai, created)
    assert (ended.status, bool(ended.output_text)) == (end, True)
    stored = store_of(server).find("", created.id)
    assert stored.size == measure(stored.input_items) + measure(stored.builder.content)
    openai.responses.delete(created.id)


def test_a_background_response_that_cannot_start_is_not_stored(server, openai, monkeypatch):
    respond(openai, "x")
    store = store_of(server)
    before = store.size

    def reject(*_, **__):
        raise ApiError(503, "not_ready", "the server is draining", retry_after=2.0)

    monkeypatch.setattr(server.state, "start_requests", reject)
    with pytest.raises(InternalServerError, match="draining"):
        respond(openai, "x", background=True)
    assert store.size == before


def test_a_background_response_that_cannot_be_stored_does_not_run(server, openai, monkeypatch):
    monkeypatch.setattr(response_store, "MAX_TENANT_BYTES", 10)
    with pytest.raises(RateLimitError, match="storage of this API key is full"):
        respond(openai, "slow " + "x" * 1000, background=True)
    assert server.wait_until_idle()


def test_running_background_responses_are_limited(server, openai, monkeypatch):
    monkeypatch.setattr("mstar.server.responses.responses.MAX_RUNNING", 2)
    running = [respond(openai, "slow " + "x" * 1000, background=True) for _ in range(2)]
    with server.client() as client:
        body = {"model": "parrot", "input": "x", "background": True}
        rejected = client.post("/v1/responses", json=body)
    for response in running:
        openai.responses.cancel(response.id)
    assert (rejected.status_code, rejected.json()["error"]["code"]) == (429, "quota_exceeded")
    assert int(rejected.headers["retry-after"]) >= 1
    assert server.wait_until_idle()


# ---------------------------------------------------------------- limits
def test_a_running_background_response_keeps_its_memory_but_not_its_body(server, openai):
    assert server.wait_until_idle()
    before = server.state.memory_budget.held_bytes
    created = respond(openai, "slow " + "x" * 1000, background=True)
    deadline = time.monotonic() + 10
    while server.state.active_requests and time.monotonic() < deadline:
        time.sleep(0.01)
    gc.collect()
    assert not [one for one in gc.get_objects() if type(one) is HttpExchange]
    assert server.state.memory_budget.held_bytes > before + 1000
    openai.responses.cancel(created.id)
    store_of(server)
    assert server.state.memory_budget.held_bytes == before

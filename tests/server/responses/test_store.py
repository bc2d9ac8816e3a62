"""Tests of the store of responses: limits by number and bytes, for one tenant and for all."""

import asyncio

import pytest

from mstar.server.errors import ApiError
from mstar.server.responses import store
from mstar.server.responses.events import ResponseBuilder
from mstar.server.responses.store import ResponseStore, StoredResponse


@pytest.fixture(autouse=True)
def small_limits(monkeypatch):
    monkeypatch.setattr(store, "MAX_RESPONSES", 4)
    monkeypatch.setattr(store, "MAX_TENANT_BYTES", 100_000)
    monkeypatch.setattr(store, "MAX_BYTES", 150_000)


def response(size=0):
    builder = ResponseBuilder({}, "completed")
    return StoredResponse(builder, [{"type": "message", "content": "x" * size}])


def run(scenario):
    async def in_loop():
        await scenario(ResponseStore())

    asyncio.run(in_loop())


def ids(responses, tenant, items):
    return [responses.get(tenant, item.builder.response_id) is item for item in items]


def test_the_oldest_response_of_a_tenant_is_dropped():
    async def scenario(responses):
        other, own = response(), [response() for _ in range(6)]
        responses.put("bob", other)
        for item in own:
            assert responses.put("alice", item)
        assert ids(responses, "alice", own) == [False, False, True, True, True, True]
        assert ids(responses, "bob", [other]) == [True]

    run(scenario)


def test_the_bytes_of_a_tenant_are_limited():
    async def scenario(responses):
        items = [response(40_000) for _ in range(3)]
        for item in items:
            assert responses.put("alice", item)
        assert ids(responses, "alice", items) == [False, True, True]
        assert responses.size == sum(item.size for item in items[1:]) <= 100_000
        assert not responses.put("alice", response(100_000))
        assert ids(responses, "alice", items) == [False, True, True]  # nothing was dropped for it

    run(scenario)


def test_the_tenant_with_the_most_bytes_loses_responses_first():
    async def scenario(responses):
        small, large = response(20_000), [response(40_000), response(40_000)]
        responses.put("alice", small)
        for item in large:
            responses.put("bob", item)
        new = response(50_000)
        assert responses.put("alice", new)
        assert ids(responses, "alice", [small, new]) == [True, True]
        assert ids(responses, "bob", large) == [False, True]
        assert responses.size <= 150_000

    run(scenario)


def test_a_running_response_is_not_dropped():
    async def scenario(responses):
        running = [response() for _ in range(4)]
        for item in running:
            item.task = asyncio.create_task(asyncio.sleep(60))
            assert responses.put("alice", item)
        assert not responses.put("alice", response())
        assert responses.count_running("alice") == 4
        for item in running:
            responses.remove("alice", item.builder.response_id)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert all(item.task.cancelled() for item in running)
        assert responses.size == 0

    run(scenario)


def test_a_response_is_found_by_its_tenant_only():
    async def scenario(responses):
        item = response()
        responses.put("alice", item)
        for tenant in ("bob", ""):
            with pytest.raises(ApiError, match="no response has the id"):
                responses.find(tenant, item.builder.response_id)
            with pytest.raises(ApiError):
                responses.remove(tenant, item.builder.response_id)
        assert responses.find("alice", item.builder.response_id) is item

    run(scenario)


def test_storing_a_response_again_counts_its_new_size():
    async def scenario(responses):
        item = response(1000)
        responses.put("alice", item)
        before = responses.size
        item.builder.output.append({"type": "message", "content": "y" * 10_000})
        responses.put("alice", item)
        assert 10_000 <= responses.size - before < 11_000
        responses.remove("alice", item.builder.response_id)
        assert responses.size == 0

    run(scenario)

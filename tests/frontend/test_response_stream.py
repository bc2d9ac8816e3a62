"""Response streams: disconnects cancel requests, slow readers cause backpressure, concurrent streams finish."""

import asyncio
import gc
import json
import time
from concurrent.futures import Future

import pytest

from mstar.frontend.response_stream import (
    MAX_PENDING_STREAMS,
    Deliver,
    LoopBridge,
    RequestEnded,
    ResponseStream,
    wait_reply,
)
from mstar.requests import ChatRequest, Message
from mstar.server.errors import ApiError, api_error_from
from mstar.wire.messages import RequestFinished, Submit, Value
from tests.server.toy_server import chat_body

LONG = chat_body("slow" + "x" * 2000, max_tokens=2000)


def test_a_disconnect_cancels_a_stream(server):
    with server.client() as client, client.stream("POST", "/v1/chat/completions", json=LONG | {"stream": True}) as got:
        assert next(got.iter_lines()).startswith("data: ")
        assert server.request_stats()
    assert server.wait_until_idle(1.0), server.request_stats()


def test_a_disconnect_cancels_all_choices(server):
    body = LONG | {"stream": True, "n": 3}
    with server.client() as client, client.stream("POST", "/v1/chat/completions", json=body) as got:
        lines = (line for line in got.iter_lines() if line.startswith("data: "))
        choices = set()
        while len(choices) < 3:
            choices |= {choice["index"] for choice in json.loads(next(lines)[6:])["choices"]}
    assert server.wait_until_idle(1.0), server.request_stats()


def test_a_disconnect_cancels_a_pending_response(server):
    async def leave():
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
        body = json.dumps(LONG).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
        writer.write(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
        await writer.drain()
        while not server.request_stats():
            await asyncio.sleep(0.005)
        writer.close()
        await writer.wait_closed()
        del reader

    asyncio.run(leave())
    assert server.wait_until_idle(1.0), server.request_stats()


def test_a_slow_reader_causes_backpressure(server):
    text = "x" * 3000

    async def read():
        bridge = LoopBridge(server.front, asyncio.get_running_loop(), api_error_from)
        chat = ChatRequest((Message("user", (text,)),), _long())
        live = ResponseStream(bridge, [Submit(server.front.new_rid(), "parrot", Value(chat))])
        await live.wait_first()
        buffered = [await _buffered_count(live)]
        async for event in live:
            if isinstance(event, RequestEnded):
                assert isinstance(event.end, RequestFinished)
                return max(buffered), event.end.totals["Text"]
            buffered.append(len(live._events))
        raise AssertionError("the stream did not end")

    buffered, total = asyncio.run(read())
    assert total == 3000
    assert 16 < buffered <= 64 + 16  # the worker's window, and what was in transit


async def _buffered_count(live):
    """Number of buffered events once no more arrive."""
    count = -1
    while count != len(live._events):
        count = len(live._events)
        await asyncio.sleep(0.1)
    return count


def _long():
    from mstar.requests import Sampling

    return Sampling(max_tokens=3000)


def test_a_cancelled_request_yields_no_more_events(server):
    async def read():
        bridge = LoopBridge(server.front, asyncio.get_running_loop(), api_error_from)
        chats = [ChatRequest((Message("user", (text,)),)) for text in ("slow" + "x" * 90, "short")]
        live = ResponseStream(bridge, [Submit(server.front.new_rid(), "parrot", Value(chat)) for chat in chats])
        events = [await anext(live)]
        live.cancel(live.rids[0])
        events += [one async for one in live]
        return [live.index_of(one) for one in events[1:]], live

    numbers, _ = asyncio.run(read())
    assert numbers == [1] * len(numbers)
    assert server.wait_until_idle(1.0)


def test_many_concurrent_streams_finish(server):
    async def one(number):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
        body = json.dumps(chat_body(f"number {number}!", stream=True)).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
        writer.write(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
        got = (await reader.read()).decode()
        writer.close()
        events = [line[6:] for line in got.splitlines() if line.startswith("data: ")]
        assert events[-1] == "[DONE]"
        deltas = [json.loads(event)["choices"][0]["delta"] for event in events[:-1]]
        return "".join(delta.get("content", "") for delta in deltas)

    async def all_of_them():
        return await asyncio.gather(*(one(number) for number in range(100)))

    begun = time.monotonic()
    assert asyncio.run(all_of_them()) == [f"number {number}!" for number in range(100)]
    assert time.monotonic() - begun < 5
    assert server.wait_until_idle()


def test_a_reply_that_fails_too_late_is_not_reported_as_unretrieved():
    problems = []

    async def wait():
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context["message"]))
        query = Future()
        assert await wait_reply(query, 0.01) is None
        query.set_exception(TimeoutError("no reply"))
        await asyncio.sleep(0.01)
        del query
        gc.collect()
        await asyncio.sleep(0)

    asyncio.run(wait())
    assert problems == []


class RecordingFrontend:
    """A front end that submits nothing and records what is consumed."""

    def __init__(self):
        self.consumed = []

    def submit(self, submit, listener):
        pass

    def call_after_turn(self, function):
        function()

    def report_consumed(self, consumed):
        self.consumed.append(consumed)

    def close(self, rid):
        pass


def read_stream(scenario):
    """Run a scenario with a stream of two requests whose events the scenario pushes."""

    async def run():
        frontend = RecordingFrontend()
        bridge = LoopBridge(frontend, asyncio.get_running_loop(), api_error_from)
        stream = ResponseStream(bridge, [Submit(rid, "parrot", Value(None)) for rid in ("one", "two")])
        return await scenario(stream, frontend)

    return asyncio.run(run())


def test_all_events_that_have_arrived_are_read_without_waiting():
    async def scenario(stream, frontend):
        for index in range(40):
            stream.push(Deliver("one", "Text", index, "x", ()))
        assert await stream.wait_ready()
        indexes = []
        while (event := stream.poll()) is not None:
            indexes.append(event.index)
        await asyncio.sleep(0)
        before = list(frontend.consumed)  # the connection has not taken them yet
        stream.push(Deliver("one", "Text", 40, "x", ()))
        await stream.wait_ready()
        await asyncio.sleep(0)
        return indexes, before, frontend.consumed

    assert read_stream(scenario) == ([*range(40)], [], [{("one", "Text"): 32}])


class RecordingLoop:
    """An event loop that counts its wake-ups."""

    def __init__(self):
        self.wakeups = 0

    def call_soon_threadsafe(self, function):
        self.wakeups += 1


def test_the_event_loop_wakes_up_after_the_turn_or_for_many_streams():
    loop, after_turn, frontend = RecordingLoop(), [], RecordingFrontend()
    frontend.call_after_turn = after_turn.append
    bridge = LoopBridge(frontend, loop, api_error_from)
    stream = ResponseStream(bridge, [Submit("one", "parrot", Value(None))])
    for index in range(MAX_PENDING_STREAMS - 1):
        stream.push(Deliver("one", "Text", index, "x", ()))
    assert loop.wakeups == 0
    stream.push(Deliver("one", "Text", MAX_PENDING_STREAMS - 1, "x", ()))
    assert loop.wakeups == 1
    (wake_up,) = after_turn
    wake_up()
    assert loop.wakeups == 2


def test_one_report_carries_what_all_streams_have_consumed():
    async def run():
        frontend = RecordingFrontend()
        bridge = LoopBridge(frontend, asyncio.get_running_loop(), api_error_from)
        for rid in ("one", "two"):
            stream = ResponseStream(bridge, [Submit(rid, "parrot", Value(None))])
            for index in range(17):
                stream.push(Deliver(rid, "Text", index, "x", ()))
                await anext(stream)
        await asyncio.sleep(0)
        return frontend.consumed

    assert asyncio.run(run()) == [{("one", "Text"): 16, ("two", "Text"): 16}]


def test_a_cancelled_request_has_no_events_that_have_arrived():
    async def scenario(stream, _):
        for rid in ("one", "one", "two"):
            stream.push(Deliver(rid, "Text", 0, "x", ()))
        await anext(stream)
        stream.cancel("one")
        return stream.poll().rid, stream.poll()

    assert read_stream(scenario) == ("two", None)


def test_a_failed_request_is_raised_after_the_events_before_it():
    async def scenario(stream, _):
        stream.push(Deliver("one", "Text", 0, "x", ()))
        stream.push(RequestEnded("one", RequestFinished("one", "failed", {}, Value(None), "ValueError", "no")))
        await anext(stream)
        assert stream.poll() is None
        with pytest.raises(ApiError, match="ValueError"):
            await anext(stream)

    read_stream(scenario)

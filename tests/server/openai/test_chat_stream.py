"""Chunks of a streamed chat are written when their outputs arrive, without a turn of the task of the request."""

import asyncio

import pytest

from mstar.frontend.core import CREDIT_INTERVAL
from mstar.frontend.response_stream import Deliver, LoopBridge, RequestEnded, ResponseStream
from mstar.requests import ChatRequest, Finish, Sampling
from mstar.server.errors import ApiError, api_error_from
from mstar.server.openai.completion import ChatCompletion, Choice, CompletionReader
from mstar.server.state import ServedModel
from mstar.server.stream_response import EventStreamResponse
from mstar.server.write_timeout import ClientStalled
from mstar.wire.messages import RequestFinished, Submit, Value
from tests.server.test_stream_response import Exchange
from tests.server.toy_models import Parrot


class Frontend:
    """A front end whose outputs the test pushes."""

    def __init__(self):
        self.closed, self.consumed = [], []

    def submit(self, submit, listener):
        self.push = listener

    def call_after_turn(self, function):
        function()

    def report_consumed(self, consumed):
        self.consumed.append(consumed)

    def close(self, rid):
        self.closed.append(rid)


class Chat:
    """One streamed chat, from the outputs of its request to the bytes of its connection."""

    def __init__(self, stop_strings=()):
        self.frontend, self.exchange = Frontend(), Exchange()
        bridge = LoopBridge(self.frontend, asyncio.get_running_loop(), api_error_from)
        self.stream = ResponseStream(bridge, [Submit("one", "parrot", Value(None))])
        chat = ChatRequest((), Sampling(stop_strings=stop_strings))
        served = ServedModel.from_model("parrot", Parrot())
        choice = Choice(served, chat, audio_encoder=None, is_tool_call=False, max_tool_calls=None)
        reader = CompletionReader(self.stream, [choice], 1)
        self.completion = ChatCompletion({"id": "chatcmpl-one"}, reader)
        self.resumed = 0
        self._index = 0

    async def chunks(self):
        async for chunk in self.completion.chunks(include_usage=False):
            self.resumed += 1
            yield chunk

    def to_last_event(self, error):
        return f"error: {getattr(error, 'code', type(error).__name__)}".encode()

    def start(self):
        response = EventStreamResponse(self.chunks(), self.to_last_event, self.completion.attach)
        self.responding = asyncio.create_task(self.exchange.respond(response))

    async def say(self, *texts):
        for text in texts:
            self.frontend.push(Deliver("one", "Text", self._index, text, ()))
            self._index += 1
        await settle()

    async def end(self):
        self.frontend.push(RequestEnded("one", RequestFinished("one", "ok", {}, Value(Finish("stop")))))
        await self.responding
        self.stream.close()

    @property
    def text(self):
        return b"".join(self.exchange.transport.writes).decode()


async def settle():
    for _ in range(10):
        await asyncio.sleep(0)


def run(scenario, **options):
    async def run_chat():
        chat = Chat(**options)
        chat.start()
        await chat.say("first")
        await scenario(chat)
        return chat

    return asyncio.run(run_chat())


def test_tokens_are_written_without_a_turn_of_the_task():
    async def scenario(chat):
        resumed = chat.resumed
        await chat.say("second")
        await chat.say("third", "fourth")
        assert chat.resumed == resumed
        assert len(chat.exchange.transport.writes) == 3
        assert chat.text.index("first") < chat.text.index("second") < chat.text.index("third")
        await chat.end()
        assert chat.resumed == resumed + 2  # the finish reason and [DONE]

    chat = run(scenario)
    assert chat.text.count('"finish_reason":"stop"') == 1
    assert chat.text.endswith("data: [DONE]\n\n\r\n")
    assert chat.exchange.bodies == [(b"", False)]
    assert chat.stream.on_outputs is None


def test_outputs_and_the_end_that_arrive_together_are_all_written():
    async def scenario(chat):
        for text in ("second", "third"):
            chat.frontend.push(Deliver("one", "Text", 1, text, ()))
        await chat.end()

    text = run(scenario).text
    assert text.index("second") < text.index("third") < text.index("[DONE]")


def test_written_outputs_count_as_consumed():
    async def scenario(chat):
        await chat.say(*["x"] * CREDIT_INTERVAL)
        assert chat.frontend.consumed == [{("one", "Text"): CREDIT_INTERVAL}]
        await chat.end()

    run(scenario)


def test_tokens_wait_for_a_client_that_does_not_read():
    async def scenario(chat):
        chat.exchange.flow.pause_writing()
        await chat.say(*["waits"] * CREDIT_INTERVAL)
        assert "waits" not in chat.text
        assert chat.frontend.consumed == []
        chat.exchange.flow.resume_writing()
        await settle()
        assert chat.text.count("waits") == CREDIT_INTERVAL
        await chat.end()

    run(scenario)


def test_a_client_that_stalls_gets_the_error():
    async def scenario(chat):
        chat.exchange.flow.pause_writing()
        await chat.say("second")
        chat.exchange.flow.cancel(ClientStalled(1.0))
        await chat.responding

    assert run(scenario).exchange.bodies == [(b"error: client_stalled", False)]


def test_a_stop_string_ends_the_chat_and_its_request():
    async def scenario(chat):
        await chat.say("a STOP b")
        await chat.say("more")
        await chat.responding
        assert chat.frontend.closed == ["one"]

    chat = run(scenario, stop_strings=("STOP",))
    assert '"content":"a "' in chat.text
    assert "more" not in chat.text
    assert chat.text.endswith("data: [DONE]\n\n\r\n")


@pytest.mark.parametrize("error", [ApiError(500, "model_error", "no"), ValueError("no")])
def test_an_error_comes_after_the_chunks_before_it(monkeypatch, error):
    async def scenario(chat):
        add_output = Choice.add_output

        def add_until_bad(choice, output):
            if output.value == "bad":
                raise error
            return add_output(choice, output)

        monkeypatch.setattr(Choice, "add_output", add_until_bad)
        await chat.say("second", "bad", "third")
        await chat.responding

    text = run(scenario).text
    assert text.index("second") < text.index("error: ")
    assert "third" not in text


def test_a_cancelled_chat_writes_nothing_more():
    async def scenario(chat):
        chat.responding.cancel()
        await settle()
        before = chat.text
        await chat.say("late")
        assert chat.text == before

    run(scenario)

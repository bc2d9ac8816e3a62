"""Long text is rejected by its bytes, or tokenized before it is submitted."""

import asyncio
import json
import socket
import threading

import numpy as np
import pytest

from mstar.errors import NeverFits
from mstar.requests import ChatRequest, Finish, Message
from mstar.server.errors import ApiError
from mstar.server.inputs.text_budget import MAX_INLINE_TEXT_BYTES, TOKENIZER_THREADS, TextBudget, text_bytes
from mstar.transfer import values
from tests.integration.isolation.two_keys import wait_until
from tests.server.model_server import serve_models
from tests.server.toy_models import Parrot

LIMIT = 100_000


class Counting(Parrot):
    """Echoes; its front end tokenizes one token per byte."""

    def __init__(self) -> None:
        super().__init__()
        self.threads = []
        self.is_released = threading.Event()
        self.is_released.set()

    def max_text_bytes(self):
        return LIMIT

    def input_types(self):
        return (str,)

    def tokenize(self, request):
        self.threads.append(threading.current_thread())
        self.is_released.wait(10)
        text = request.messages[-1].parts[0]
        if text.startswith("z"):
            raise NeverFits("too many tokens\n  fix: send fewer")
        if text.startswith("!"):
            raise RuntimeError("an internal secret")
        return request.with_prompt_tokens(np.frombuffer(text.encode(), np.uint8).astype(np.int64))

    async def route(self, request: ChatRequest) -> Finish:
        self.seen.append(request)
        await self.say("done", 4)
        return Finish("stop")


@pytest.fixture(scope="module")
def model_server():
    with serve_models({"counting": Counting()}) as server:
        yield server


@pytest.fixture
def model(model_server):
    counting = model_server.models["counting"]
    counting.seen.clear()
    counting.threads.clear()
    return counting


@pytest.fixture
def client(model_server):
    with model_server.client() as made:
        yield made


def chat(client, text, **fields):
    body = {"model": "counting", "messages": [{"role": "user", "content": text}]} | fields
    return client.post("/v1/chat/completions", json=body)


def request_of(*texts):
    return ChatRequest(tuple(Message("user", (text,)) for text in texts))


def test_text_is_measured_in_bytes():
    assert text_bytes(request_of("abc", "äöü", "\ud800")) == 3 + 6 + 1


@pytest.mark.parametrize("text", ["x" * (LIMIT + 1), "ä" * (LIMIT // 2 + 1), "x" * (7 * LIMIT), "x" * (2 << 20)])
def test_text_above_the_bound_is_rejected_without_tokenization(client, model, text):
    response = chat(client, text)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert f"at most {LIMIT}" in response.json()["error"]["message"]
    assert not model.threads


def test_long_text_arrives_with_its_tokens(client, model):
    assert chat(client, "x" * LIMIT).json()["choices"][0]["message"]["content"] == "done"
    assert np.array_equal(model.seen[-1].prompt_tokens, np.full(LIMIT, ord("x")))
    assert model.threads[0] is not threading.main_thread()


def test_every_choice_of_a_long_text_has_its_tokens(client, model):
    response = chat(client, "x" * LIMIT, n=3)
    assert [choice["message"]["content"] for choice in response.json()["choices"]] == ["done"] * 3
    assert [len(request.prompt_tokens) for request in model.seen] == [LIMIT] * 3


def test_short_text_is_left_to_the_model(client, model):
    assert chat(client, "x" * MAX_INLINE_TEXT_BYTES).status_code == 200
    assert model.seen[-1].prompt_tokens is None
    assert not model.threads


def test_text_with_too_many_tokens_is_rejected(client):
    response = chat(client, "z" * LIMIT)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert "too many tokens" in response.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_of_the_tokenizer_is_one_of_the_model(client, stream):
    response = chat(client, "!" * LIMIT, stream=stream)
    assert response.status_code == 500
    assert "model_error" in response.text
    assert "secret" not in response.text


def test_a_client_that_leaves_during_tokenization_leaves_no_request(model_server, model):
    model.is_released.clear()
    message = {"role": "user", "content": "x" * LIMIT}
    body = json.dumps({"model": "counting", "messages": [message]}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{model_server.port}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    try:
        with socket.create_connection(("127.0.0.1", model_server.port), timeout=10) as connection:
            connection.sendall(head.encode() + body)
            assert wait_until(lambda: model.threads)
        assert wait_until(lambda: not model_server.state.active_requests)
    finally:
        model.is_released.set()
    assert model_server.wait_until_idle(10)
    assert not model.seen


def test_a_cancelled_tokenization_holds_its_slot_until_its_thread_ends():
    model, budget = Counting(), TextBudget()
    model.is_released.clear()

    async def scenario():
        async def start(text="x"):
            tasks = [
                asyncio.create_task(budget.tokenize(model, request_of(text), "")) for _ in range(TOKENIZER_THREADS)
            ]
            await asyncio.sleep(0.1)
            return tasks

        first = await start("!")  # fails after its cancellation
        for task in first:
            task.cancel()
        await asyncio.wait(first, timeout=5)
        assert all(task.cancelled() for task in first), "a cancelled request does not wait for its thread"
        second = await start()
        assert len(model.threads) == TOKENIZER_THREADS
        model.is_released.set()
        assert len(await asyncio.gather(*second)) == TOKENIZER_THREADS

    try:
        asyncio.run(scenario())
    finally:
        model.is_released.set()


def test_clients_cannot_send_tokens(client):
    message = {"role": "user", "parts": ["x"]}
    body = {"model": "counting", "request": {"messages": [message], "prompt_tokens": [1]}}
    response = client.post("/v1/generate", content=json.dumps(body), headers={"Content-Type": "application/json"})
    assert response.status_code == 422


def test_tokens_survive_the_way_to_another_process():
    request = request_of("x").with_prompt_tokens(np.arange(3))
    assert np.array_equal(values.unpack(values.pack(request)).prompt_tokens, np.arange(3))
    assert values.unpack(values.pack(request_of("x"))) == request_of("x")


def test_models_without_hooks_have_no_limit():
    budget = TextBudget()
    budget.check(Parrot(), request_of("x" * (1 << 20)))
    assert not budget.is_long(Parrot(), request_of("x" * (1 << 20)))


def test_other_errors_of_a_tokenizer_are_not_hidden():
    with pytest.raises(RuntimeError):
        asyncio.run(TextBudget().tokenize(Counting(), request_of("!"), ""))
    with pytest.raises(ApiError):
        asyncio.run(TextBudget().tokenize(Counting(), request_of("z"), ""))

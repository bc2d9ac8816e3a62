"""Tests of /v1/completions with the OpenAI SDK: prompts as text and token ids, echo, logprobs, limits."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
from openai import BadRequestError, NotFoundError, OpenAI

from mstar import Component, Model, Text, loop, op, walk
from mstar.requests import ChatRequest, Finish, Logprobs, Sampling, ScoredToken
from tests.server.model_server import serve_models
from tests.server.toy_models import BOOM, MAX_PROMPT_BYTES


@pytest.fixture(scope="module")
def openai(server):
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def complete(openai, prompt, **params):
    return openai.completions.create(model="parrot", prompt=prompt, **{"max_tokens": 64} | params)


def texts_of(result, *, stream):
    """Text of each choice, of an object or of chunks."""
    texts: dict[int, str] = {}
    for chunk in result if stream else [result]:
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
    return [texts[index] for index in sorted(texts)]


def test_a_completion_has_text_and_usage(server, openai):
    response = complete(openai, "Grüße")
    assert (response.object, response.choices[0].text, response.choices[0].finish_reason) == (
        "text_completion",
        "Grüße",
        "stop",
    )
    assert (response.usage.prompt_tokens, response.usage.completion_tokens) == (7, 7)
    request = server.parrot.seen[-1]
    assert (request.messages, bytes(request.prompt_tokens.tolist()).decode()) == ((), "Grüße")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("ab", ["ab"]),
        (["ab", "cd"], ["ab", "cd"]),
        ([104, 105], ["hi"]),
        ([[104], [105]], ["h", "i"]),
    ],
    ids=["text", "texts", "tokens", "lists of tokens"],
)
def test_every_form_of_a_prompt_is_completed(openai, prompt, texts, stream):
    assert texts_of(complete(openai, prompt, stream=stream), stream=stream) == texts


@pytest.mark.parametrize("echo", [False, True])
def test_token_ids_become_text_for_echo_only_and_outside_the_event_loop(server, openai, monkeypatch, echo):
    prompt, detokenize, threads = [97] * 40, server.parrot.detokenize, []

    def watch(tokens, /):
        if len(tokens) == len(prompt):
            threads.append(threading.get_ident())
        return detokenize(tokens)

    monkeypatch.setattr(server.parrot, "detokenize", watch)
    loop_thread = Future()
    server.run_in_loop(lambda: loop_thread.set_result(threading.get_ident()))
    text = complete(openai, prompt, max_tokens=1, echo=echo).choices[0].text
    assert text == "a" * (41 if echo else 1)
    assert len(threads) == (2 if echo else 1)  # the route of the model calls it too
    assert loop_thread.result(5) not in threads


@pytest.mark.parametrize("stream", [False, True])
def test_choices_are_ordered_by_prompt_and_then_by_seed(openai, stream):
    result = complete(openai, ["a{seed}", "b{seed}"], n=2, seed=5, stream=stream)
    assert texts_of(result, stream=stream) == ["a5", "a6", "b5", "b6"]


def test_each_prompt_counts_once_in_the_usage(openai):
    usage = complete(openai, ["abc", "de"], n=2).usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (5, 10, 15)
    *_, last = complete(openai, ["abc", "de"], n=2, stream=True, stream_options={"include_usage": True})
    assert (last.choices, last.usage) == ([], usage)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["ab", [97, 98]], ids=["text", "tokens"])
def test_echo_repeats_the_prompt(openai, prompt, stream):
    assert texts_of(complete(openai, prompt, echo=True, stream=stream), stream=stream) == ["abab"]


def test_the_default_of_max_tokens_is_that_of_openai(openai):
    response = openai.completions.create(model="parrot", prompt="x" * 40)
    assert (response.choices[0].text, response.choices[0].finish_reason) == ("x" * 16, "length")


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_response_and_the_request(server, openai, stream):
    result = complete(openai, "slow one, two. " + "three " * 200, stop="two.", max_tokens=2000, stream=stream)
    assert texts_of(result, stream=stream) == ["slow one, "]
    assert server.wait_until_idle()


@pytest.mark.parametrize(
    ("params", "code", "param"),
    [
        ({"suffix": "end"}, "unsupported_parameter", "suffix"),
        ({"best_of": 3}, "unsupported_parameter", "best_of"),
        ({"echo": True, "logprobs": 1}, "unsupported_parameter", "echo"),
        ({"prompt": ["x"] * 8, "n": 9}, "invalid_value", "n"),
        ({"prompt": [300]}, "unsupported", None),
        ({"prompt": "x" * MAX_PROMPT_BYTES}, "context_length_exceeded", "prompt"),
    ],
    ids=["suffix", "best_of", "echo with logprobs", "too many choices", "unknown token", "too long"],
)
def test_an_unsupported_request_reaches_no_model(server, openai, params, code, param):
    seen = len(server.parrot.seen)
    with pytest.raises(BadRequestError) as error:
        complete(openai, **{"prompt": "x"} | params)
    assert (error.value.code, error.value.param) == (code, param)
    assert "fix: " in error.value.message
    assert len(server.parrot.seen) == seen


@pytest.mark.parametrize(
    "prompt", ["", [], [""], [[]], [-1], ["x"] * 65, [[1]] * 65, ["a", 1], None], ids=lambda value: repr(value)[:16]
)
def test_a_malformed_prompt_is_rejected(server, prompt):
    with server.client() as client:
        response = client.post("/v1/completions", json={"model": "parrot", "prompt": prompt})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"].startswith("prompt")


def test_a_failure_during_a_stream_is_an_error_event(server):
    with server.client() as client:
        body = {"model": "parrot", "prompt": f"ab{BOOM}", "stream": True}
        text = client.post("/v1/completions", json=body).text
    assert text.strip().split("\n\n")[-1].startswith("event: error\ndata: ")
    assert "[DONE]" not in text
    assert "secret" not in text


def test_a_model_without_the_hook_is_not_served(server, openai):
    with pytest.raises(NotFoundError, match="not served at /v1/completions"):
        openai.completions.create(model="vectors", prompt="x")
    with server.client() as client:
        models = {model["id"]: model["endpoints"] for model in client.get("/v1/models").json()["data"]}
    assert "/v1/completions" in models["parrot"]
    assert "/v1/completions" not in models["vectors"]


# ---------------------------------------------------------------- logprobs
class Scorer(Component):
    @op
    def score(self, text: str, step: int, sampling: Sampling) -> ScoredToken:
        byte = text.encode()[step]
        top = tuple((byte + number, -step / 4 - number) for number in range(sampling.logprobs or 0))
        return ScoredToken(byte, Logprobs(-step / 4, top))


class ScoringModel(Model):
    """Repeats the prompt, one byte per token, with logprobs. It has no chat template."""

    def __init__(self) -> None:
        self.scorer = Scorer()

    @walk
    def say(self, text: str, steps: int, sampling: Sampling) -> Iterator[Text]:
        for step in loop(steps=steps):
            yield Text(self.scorer.score(text, step, sampling))

    async def route(self, request: ChatRequest) -> Finish:
        text = bytes(request.prompt_tokens.tolist()).decode()
        await self.say(text, len(text.encode()), request.sampling)
        return Finish("stop", {"text": len(request.prompt_tokens)})

    def tokenize_prompt(self, prompt: str | Sequence[int]) -> Any:
        return np.array([*(prompt.encode() if isinstance(prompt, str) else prompt)], np.int64)

    def detokenize(self, tokens: Sequence[int], /) -> str:
        return bytes(tokens).decode(errors="replace")

    def token_to_bytes(self, token: int) -> bytes:
        return bytes([token])


def test_logprobs_are_parallel_lists_with_offsets():
    with (
        serve_models({"scorer": ScoringModel()}) as served,
        OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client,
    ):
        params = {"model": "scorer", "prompt": "aéb", "logprobs": 1}
        logprobs = client.completions.create(**params).choices[0].logprobs
        chunks = [chunk.choices[0].logprobs for chunk in client.completions.create(stream=True, **params)]
    assert logprobs.tokens[0] == "a"
    assert logprobs.token_logprobs == [0, -0.25, -0.5, -0.75]
    assert logprobs.top_logprobs[3] == {"b": -0.75}
    assert logprobs.text_offset == [0, 1, 1, 2]  # the two bytes of é begin at the same character
    assert [offset for part in chunks if part for offset in part.text_offset] == logprobs.text_offset

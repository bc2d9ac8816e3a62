"""Tests of chat completion responses: logprobs, usage, finish reasons and tool calls.

Toy models emit known values; SmolLM2 (slow) is compared with its reference implementation.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import deque
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest
from openai import APIError, BadRequestError, InternalServerError, OpenAI

from mstar import Component, Float32, Model, Tensor, Text, loop, op, walk
from mstar.errors import MissingExtra
from mstar.frontend.response_stream import Deliver, RequestEnded
from mstar.models.smollm2.smollm2 import SmolLm2
from mstar.nn.weights.sources import SMOLLM2_135M
from mstar.requests import ChatRequest, EmbeddingRequest, Finish, Logprobs, Message, Sampling, ScoredToken, ToolCall
from mstar.server.errors import ApiError
from mstar.server.openai.completion import ChatCompletion, Choice, CompletionReader
from mstar.server.state import ServedModel
from mstar.wire.messages import RequestFinished, Value
from tests.cli.test_serve import start_server, wait_ready
from tests.models.transcripts import one_thread
from tests.server.model_server import serve_models


class Scorer(Component):
    @op
    def score(self, text: str, step: int, sampling: Sampling) -> ScoredToken:
        byte = text.encode()[step]
        top = tuple((byte + number, -step / 4 - number) for number in range(sampling.logprobs or 0))
        return ScoredToken(byte, Logprobs(-step / 4, top))

    @op
    def word(self, text: str, step: int) -> str:
        return text.split("|")[step]


class ScoringModel(Model):
    """Echoes the message with logprobs up to a stop string. It calls every tool twice."""

    def __init__(self) -> None:
        self.scorer = Scorer()

    @walk
    def say(self, text: str, steps: int, sampling: Sampling) -> Iterator[Text]:
        for step in loop(steps=steps):
            yield Text(self.scorer.score(text, step, sampling))

    async def route(self, request: ChatRequest) -> Finish:
        text = str(request.messages[-1].parts[0])
        for stop in request.sampling.stop_strings:
            text = text[: text.find(stop) + len(stop)] if stop in text else text
        calls = tuple(ToolCall(f"c{n}", tool.name, str(n)) for tool in request.tools for n in range(2))
        if not calls:
            await self.say(text, len(text.encode()), request.sampling)
        return Finish("tool_calls" if calls else "stop", {"text": 3, "audio": 7}, calls)

    def input_types(self) -> tuple[type, ...]:
        return (str,)

    def detokenize(self, tokens, /) -> str:
        return bytes(tokens).decode(errors="replace")


class PlainTextModel(Model):
    """Emits strings instead of tokens; reports a token count only for texts that start with `counted`."""

    def __init__(self) -> None:
        self.scorer = Scorer()

    @walk
    def say(self, text: str, steps: int) -> Iterator[Text]:
        for step in loop(steps=steps):
            yield Text(self.scorer.word(text, step))

    async def route(self, request: ChatRequest) -> Finish:
        text = str(request.messages[-1].parts[0])
        await self.say(text, text.count("|") + 1)
        return Finish("stop", {"text": 3}, completion_tokens={"text": 9} if text.startswith("counted") else {})


class TextLength(Component):
    @op
    def lengths(self, request: EmbeddingRequest) -> Float32[Tensor, "N 1"]:
        return np.array([[len(text)] for text in request.texts], np.float32)


class LengthEmbeddings(Model):
    """Embedding model that reports its prompt tokens."""

    def __init__(self) -> None:
        self.gauge = TextLength()

    @walk
    def embed(self, request: EmbeddingRequest) -> Float32[Tensor, "N 1"]:
        return self.gauge.lengths(request)

    async def route(self, request: EmbeddingRequest) -> tuple[object, Finish]:
        return await self.embed(request), Finish(prompt_tokens={"text": sum(map(len, request.texts))})


def openai_client(url):
    return OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def openai():
    with (
        serve_models(
            {"oracle": ScoringModel(), "teller": PlainTextModel(), "counted": LengthEmbeddings()}
        ) as model_server,
        openai_client(model_server.url) as client,
    ):
        yield client


def complete(openai, text, model="oracle", **params):
    return openai.chat.completions.create(model=model, messages=[{"role": "user", "content": text}], **params)


def test_logprobs_of_each_token(openai):
    entries = complete(openai, "aé", logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert [(entry.token, entry.bytes, entry.logprob) for entry in entries] == [
        ("a", [97], 0),
        ("\N{REPLACEMENT CHARACTER}", None, -0.25),  # half of a character: its bytes are unknown
        ("\N{REPLACEMENT CHARACTER}", None, -0.5),
    ]
    assert [(top.token, top.logprob) for top in entries[0].top_logprobs] == [("a", 0), ("b", -1)]
    chunks = [*complete(openai, "aé", logprobs=True, top_logprobs=2, stream=True)]
    logprobs = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices[0].logprobs]
    assert [entry for part in logprobs for entry in part.content] == entries
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "aé"
    assert not complete(openai, "a", logprobs=True).choices[0].logprobs.content[0].top_logprobs
    assert complete(openai, "a").choices[0].logprobs is None


class ReadyStream:
    """A stream of one request whose events have all arrived."""

    def __init__(self, *events):
        self._events = deque(events)

    async def wait_ready(self):
        return bool(self._events)

    def poll(self):
        return self._events.popleft() if self._events else None

    def index_of(self, _):
        return 0


def pieces_of(model, *values, logprobs=None):
    """What the events of a streamed completion are written as, one piece for each write."""
    served = ServedModel.from_model('a "model"', model)
    chat = ChatRequest((), Sampling(logprobs=logprobs))
    choice = Choice(served, chat, audio_encoder=None, is_tool_call=False, max_tool_calls=None)
    events = [Deliver("one", "Text", index, value, ()) for index, value in enumerate(values)]
    end = RequestEnded("one", RequestFinished("one", "ok", {}, Value(Finish("stop", {"text": 1}))))
    reader = CompletionReader(ReadyStream(*events, end), [choice], 1)
    completion = ChatCompletion({"id": "1", "model": served.name}, reader)

    async def read():
        await reader.wait_first()
        chunks, pieces = completion.chunks(include_usage=False), []
        while True:
            try:
                pieces.append(await anext(chunks))
            except StopAsyncIteration:
                return pieces, None
            except ApiError as error:
                return pieces, error

    return asyncio.run(read())


def test_events_that_are_ready_are_one_write():
    texts = ["plain", 'a "quoted" \\ \n line', "\N{BLACK HEART SUIT}", '"content":""']
    pieces, _ = pieces_of(PlainTextModel(), *texts)
    assert len(pieces) == 2  # all that is ready, then the end of the stream
    *events, done, empty = b"".join(pieces).split(b"\n\n")
    assert (done, empty) == (b"data: [DONE]", b"")
    chunks = [json.loads(event.removeprefix(b"data: ")) for event in events]
    expected = {"index": 0, "logprobs": None, "finish_reason": None}
    assert [chunk["choices"] for chunk in chunks[1:-1]] == [[expected | {"delta": {"content": text}}] for text in texts]
    heads = [chunk | {"choices": []} for chunk in chunks]
    assert heads == [heads[0]] * len(heads)
    for event, chunk in zip(events, chunks, strict=True):
        assert event == b"data: " + msgspec.json.encode(chunk), "text is not encoded otherwise than the whole"


def test_outputs_before_an_invalid_one_are_sent():
    pieces, error = pieces_of(ScoringModel(), ScoredToken(97, Logprobs(0.0, ())), 98, logprobs=0)
    assert error.code == "unsupported_parameter"
    assert b'"content":"a"' in pieces[0]
    assert len(pieces) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_of_a_model_without_them_are_an_error(openai, stream):
    with pytest.raises(BadRequestError, match="logprobs: the model does not provide logprobs"):
        complete(openai, "a|b", "teller", logprobs=True, stream=stream)
    with pytest.raises(APIError, match="top_logprobs: 1 requires logprobs"):
        complete(openai, "a", top_logprobs=1, stream=stream)


@pytest.mark.parametrize(
    ("params", "text", "size"), [({}, "abcdef", 6), ({"stop": "c"}, "ab", 3), ({"stop": ["x", "bc"]}, "a", 3)]
)
def test_usage_counts_tokens_after_a_stop_string(openai, params, text, size):
    response = complete(openai, "abcdef", **params)
    assert (response.choices[0].message.content, response.choices[0].finish_reason) == (text, "stop")
    usage = response.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (10, size, 10 + size)
    assert usage.prompt_tokens_details.audio_tokens == 7
    *_, last = complete(openai, "abcdef", stream=True, stream_options={"include_usage": True}, **params)
    assert last.usage == usage


def test_usage_of_empty_multiple_and_string_outputs(openai):
    empty = complete(openai, "")
    assert (empty.choices[0].message.content, empty.usage.completion_tokens) == ("", 0)
    assert complete(openai, "ab", n=3).usage.completion_tokens == 6
    assert complete(openai, "counted|b", "teller").usage.completion_tokens == 9
    assert complete(openai, "a|b", "teller").usage is None  # the token count of strings is unknown


@pytest.mark.parametrize("stream", [False, True])
def test_parallel_tool_calls_can_be_turned_off(openai, stream):
    tools = [{"type": "function", "function": {"name": name}} for name in ("look", "grip")]
    for params, names in (({}, ["look", "look", "grip", "grip"]), ({"parallel_tool_calls": False}, ["look"])):
        result = complete(openai, "x", tools=tools, stream=stream, **params)
        if stream:
            *_, call_chunk, last = result
            calls, reason = call_chunk.choices[0].delta.tool_calls, last.choices[0].finish_reason
            assert [call.index for call in calls] == [*range(len(names))]
        else:
            calls, reason = result.choices[0].message.tool_calls, result.choices[0].finish_reason
        assert [call.function.name for call in calls] == names
        assert reason == "tool_calls"


def test_a_model_without_vision_rejects_images(openai):
    image = {"type": "image_url", "image_url": {"url": "http://127.0.0.1/x.png"}}
    file = {"type": "file", "file": {"file_data": "data:audio/wav;base64,AAAA"}}
    for part, kind in ((image, "images"), (file, "audio")):
        with pytest.raises(BadRequestError, match=f"the model `oracle` does not accept {kind}, only text"):
            openai.chat.completions.create(model="oracle", messages=[{"role": "user", "content": [part]}])


def test_embeddings_have_usage(openai):
    usage = openai.embeddings.create(model="counted", input=["abc", "de"]).usage
    assert (usage.prompt_tokens, usage.total_tokens) == (5, 5)


class GrammarOp(Component):
    @op
    def compile(self, sampling: Sampling) -> str:
        raise MissingExtra.from_package("structured output", "llguidance", "grammar")


class WithoutGrammars(Model):
    """Model of a worker without the extra `grammar`."""

    def __init__(self) -> None:
        self.guide = GrammarOp()

    @walk
    def answer(self, sampling: Sampling) -> Iterator[Text]:
        yield Text(self.guide.compile(sampling))

    async def route(self, request: ChatRequest) -> Finish:
        await self.answer(request.sampling)
        return Finish()


def test_a_grammar_without_its_package_gets_501_with_the_command():
    with (
        serve_models({"plain": WithoutGrammars()}) as served,
        openai_client(served.url) as client,
        pytest.raises(InternalServerError) as error,
    ):
        complete(client, "x", "plain", response_format={"type": "json_object"})
    assert (error.value.status_code, error.value.code) == (501, "missing_extra")
    assert "llguidance. fix: pip install 'mstar-serve[grammar]' on the server" in error.value.message


# ---------------------------------------------------------------- a real model
QUESTION = "What is the capital of France?"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "country": {"enum": ["France", "Italy"]}},
    "required": ["city", "country"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def smollm2():
    with start_server("smollm2") as (process, url):
        wait_ready(process)
        with one_thread(), openai_client(url) as client:
            yield client, SmolLm2()


IMPORT_CHECK = """
import sys
from mstar.models.smollm2.smollm2 import SmolLm2
assert SmolLm2().detokenize([504, 3575]) == "The capital"
sys.exit(any(name in sys.modules for name in ("torch", "transformers", "numpy")))
"""


@pytest.mark.slow
def test_detokenizing_imports_neither_torch_nor_numpy():
    subprocess.run([sys.executable, "-c", IMPORT_CHECK], check=True, timeout=60)


def reference_logprobs(model, text, tokens):
    """Log probabilities of the whole vocabulary at each generated token, by the reference implementation."""
    import torch

    from mstar.nn.weights.gguf import GgufFile

    prompt, _ = model.lm.prompt(ChatRequest((Message("user", (text,)),)))
    with torch.inference_mode():
        logits = GgufFile(SMOLLM2_135M.path()).network()(torch.cat([prompt, torch.tensor(tokens)])[None]).logits[0]
    return logits[len(prompt) - 1 : -1].log_softmax(-1)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "sampling",
    [
        pytest.param({"temperature": 0}, marks=pytest.mark.nightly),
        {"temperature": 0.9, "seed": 5, "presence_penalty": 1.5, "logit_bias": {"504": -5}},
    ],
)
def test_logprobs_match_the_reference(smollm2, sampling):
    openai, model = smollm2
    params = {"logprobs": True, "top_logprobs": 5, "max_tokens": 12} | sampling
    choice = complete(openai, QUESTION, "smollm2", **params).choices[0]
    entries = choice.logprobs.content
    assert b"".join(bytes(entry.bytes) for entry in entries).decode(errors="replace") == choice.message.content
    token_ids = {model.token_to_bytes(token): token for token in range(49152)}
    tokens = [token_ids[bytes(entry.bytes)] for entry in entries]
    for expected, entry, token in zip(reference_logprobs(model, QUESTION, tokens), entries, tokens, strict=True):
        assert entry.logprob == pytest.approx(float(expected[token]), abs=1e-3)
        best = expected.topk(5)
        assert [token_ids[bytes(top.bytes)] for top in entry.top_logprobs] == best.indices.tolist()
        assert [top.logprob for top in entry.top_logprobs] == pytest.approx(best.values.tolist(), abs=1e-3)
    chunks = complete(openai, QUESTION, "smollm2", stream=True, **params)
    streamed = [entry for chunk in chunks if (part := chunk.choices[0].logprobs) for entry in part.content]
    assert [entry.token for entry in streamed] == [entry.token for entry in entries]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_smollm2_honors_its_parameters(smollm2):
    openai, _ = smollm2
    stopped = complete(openai, QUESTION, "smollm2", temperature=0, stop=["France is"])
    assert (stopped.choices[0].message.content, stopped.choices[0].finish_reason) == ("The capital of ", "stop")
    assert (stopped.usage.prompt_tokens, stopped.usage.completion_tokens) == (37, 5)
    several = complete(openai, "Name a colour.", "smollm2", n=3, seed=5, temperature=1.0, max_tokens=8)
    assert len({choice.message.content for choice in several.choices}) == 3
    assert {choice.finish_reason for choice in several.choices} <= {"stop", "length"}
    assert several.usage.completion_tokens <= 24
    schema = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}
    place = complete(openai, QUESTION, "smollm2", temperature=0, response_format=schema, max_tokens=40).choices[0]
    assert json.loads(place.message.content) == {"city": "Paris", "country": "France"}
    assert place.finish_reason == "stop"
    tools = [
        {"type": "function", "function": {"name": "find", "parameters": SCHEMA}},
        {"type": "function", "function": {"name": "wait", "parameters": {"type": "object", "properties": {}}}},
    ]
    for choice in ("required", {"type": "function", "function": {"name": "find"}}):
        completion = complete(
            openai, QUESTION, "smollm2", temperature=0, tools=tools, tool_choice=choice, max_tokens=60
        )
        (call,) = completion.choices[0].message.tool_calls
        assert completion.choices[0].finish_reason == "tool_calls"
        if call.function.name == "find":
            assert {*json.loads(call.function.arguments)} == {"city", "country"}
    truncated = complete(openai, QUESTION, "smollm2", temperature=0, tools=tools, tool_choice="required", max_tokens=3)
    assert truncated.choices[0].finish_reason == "length"
    assert truncated.choices[0].message.tool_calls is None
    huge = complete(openai, QUESTION, "smollm2", temperature=0, max_tokens=1_000_000).choices[0]
    assert (huge.message.content, huge.finish_reason) == ("The capital of France is Paris.", "stop")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_smollm2_completes_text_without_its_template(smollm2):
    openai, model = smollm2
    params = {"model": "smollm2", "max_tokens": 8, "temperature": 0}
    prompt = "The capital of France is"
    completion = openai.completions.create(prompt=prompt, logprobs=1, **params)
    tokens = model.tokenize_prompt(prompt).tolist()
    assert "Paris" in completion.choices[0].text
    assert completion.usage.prompt_tokens == len(tokens) == 5
    assert openai.completions.create(prompt=tokens, **params).choices[0].text == completion.choices[0].text
    with pytest.raises(BadRequestError, match="is not a token id of the model"):
        openai.completions.create(prompt=[49152], **params)
    with pytest.raises(BadRequestError, match="context holds 8192"):
        openai.completions.create(prompt=[5] * 8192, **params)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_smollm2_serves_responses(smollm2):
    openai, _ = smollm2
    chat = complete(openai, QUESTION, "smollm2", temperature=0)
    first = openai.responses.create(model="smollm2", input=QUESTION, temperature=0)
    assert first.output_text == chat.choices[0].message.content
    assert (first.usage.input_tokens, first.usage.output_tokens) == (37, chat.usage.completion_tokens)
    with openai.responses.stream(model="smollm2", input=QUESTION, temperature=0) as stream:
        assert stream.get_final_response().output_text == first.output_text
    text = {"format": {"type": "json_schema", "name": "place", "schema": SCHEMA}}
    place = openai.responses.create(model="smollm2", input=QUESTION, temperature=0, text=text, max_output_tokens=40)
    assert json.loads(place.output_text) == {"city": "Paris", "country": "France"}
    tools = [{"type": "function", "name": "find", "parameters": SCHEMA, "strict": True}]
    called = openai.responses.create(
        model="smollm2", input=QUESTION, temperature=0, tools=tools, tool_choice="required", max_output_tokens=60
    )
    assert {*json.loads(called.output[0].arguments)} == {"city", "country"}
    output = {"type": "function_call_output", "call_id": called.output[0].call_id, "output": "found"}
    second = openai.responses.create(
        model="smollm2", input=[output], previous_response_id=called.id, temperature=0, max_output_tokens=8
    )
    assert second.usage.input_tokens > called.usage.input_tokens

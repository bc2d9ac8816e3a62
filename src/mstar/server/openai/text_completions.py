"""Text completions endpoint (OpenAI `/v1/completions`): continues prompts without a chat template.

A prompt is text or token ids. It becomes a `ChatRequest` without messages that has its prompt tokens, so that models,
streams and limits are those of chat. A model is served here if it has the method `tokenize_prompt`. Prompt tokens have
no logprobs, and text is not inserted before a `suffix`.
"""

from __future__ import annotations

import asyncio
import codecs
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from starlette.responses import Response

from mstar.frontend.response_stream import ResponseStream
from mstar.requests import ChatRequest
from mstar.server.errors import ApiError
from mstar.server.http_exchange import HttpExchange, json_response, sse_event
from mstar.server.openai.chat import apply_service_tier, clip_max_tokens, to_sampling
from mstar.server.openai.completion import Choice, CompletionReader
from mstar.server.openai.schema import CompletionBody

DEFAULT_MAX_TOKENS = 16
"""Maximum output tokens if the request does not set `max_tokens`; the default of OpenAI."""
MAX_CHOICES = 64
"""Maximum choices of all prompts of one request together."""


async def create_completion(exchange: HttpExchange) -> Response:
    """POST /v1/completions."""
    body = await exchange.read_json(CompletionBody)
    served = exchange.resolve_model(body.model)
    prompts, count = _prompts(body), body.n or 1
    _reject_unsupported(body, len(prompts) * count)
    tier = apply_service_tier(exchange, body.service_tier)
    max_tokens = clip_max_tokens(served, body.max_tokens or DEFAULT_MAX_TOKENS)
    sampling = to_sampling(served, body, max_tokens, body.logprobs, None)
    budget, tenant = exchange.state.text_budget, exchange.context.tenant_name
    requests, echoes = list[ChatRequest](), list[str]()
    for prompt in prompts:
        tokens = await budget.tokenize_prompt(served.model, prompt, tenant)
        echo = ""
        if body.echo:  # in a thread: a long prompt would block the event loop
            is_text = isinstance(prompt, str)
            echo = prompt if is_text else await asyncio.to_thread(served.model.detokenize, tokens.tolist())
        for number in range(count):
            request = ChatRequest((), replace(sampling, seed=sampling.seed + number))
            requests.append(request.with_prompt_tokens(tokens))
            echoes.append(echo)
    choices = [
        Choice(served, request, audio_encoder=None, is_tool_call=False, max_tool_calls=None) for request in requests
    ]
    stream = exchange.start_requests(served, *requests)
    common_fields = {"id": f"cmpl-{exchange.context.id}", "model": served.name, **tier}
    completion = TextCompletion(common_fields, stream, choices, count, echoes)
    if body.stream:
        await completion.wait_first()
        include_usage = body.stream_options is not None and body.stream_options.include_usage
        return exchange.event_stream(completion.chunks(include_usage=include_usage))
    return json_response(await completion.collect())


def _prompts(body: CompletionBody) -> list[str] | list[list[int]]:
    """The prompts of a body, which has one or several."""
    if isinstance(body.prompt, str):
        return [body.prompt]
    if isinstance(body.prompt[0], int):
        return [cast("list[int]", body.prompt)]
    return cast("list[str] | list[list[int]]", body.prompt)


def _reject_unsupported(body: CompletionBody, choice_count: int) -> None:
    if body.suffix:
        message = "suffix: inserting text before a suffix is not supported. fix: omit suffix"
        raise ApiError(400, "unsupported_parameter", message, param="suffix")
    if body.best_of is not None and body.best_of != (body.n or 1):
        message = f"best_of: {body.best_of} is not supported. fix: omit best_of, or set it to n"
        raise ApiError(400, "unsupported_parameter", message, param="best_of")
    if body.echo and body.logprobs is not None:
        message = "echo: logprobs of the prompt are not supported. fix: set echo to false or omit logprobs"
        raise ApiError(400, "unsupported_parameter", message, param="echo")
    if choice_count > MAX_CHOICES:
        message = f"n: {choice_count} choices of all prompts, the limit is {MAX_CHOICES}. fix: send fewer prompts"
        raise ApiError(400, "invalid_value", message, param="n")


class TextCompletion(CompletionReader):
    """All choices of one completion, as one object or as a stream of chunks of the same form."""

    def __init__(
        self,
        common_fields: Mapping[str, Any],
        stream: ResponseStream,
        choices: Sequence[Choice],
        choices_per_prompt: int,
        echoes: Sequence[str],
    ) -> None:
        """`echoes` has the text before each choice: its prompt, or nothing."""
        super().__init__(stream, choices, choices_per_prompt)
        self._common_fields = {**common_fields, "object": "text_completion", "created": int(time.time())}
        self._echoes = echoes
        self._logprobs = [_LogprobsWriter() for _ in choices]

    async def collect(self) -> dict[str, Any]:
        """Wait for all choices and return the `text_completion` object."""
        async for _ in self.read():
            pass
        choices = [
            self._choice(index, self._echoes[index] + choice.text, choice.finish_reason, choice.logprobs or ())
            for index, choice in enumerate(self.choices)
        ]
        return self._common_fields | {"choices": choices, "usage": self.usage()}

    async def chunks(self, *, include_usage: bool) -> AsyncGenerator[bytes]:
        """Yield `text_completion` events, then `[DONE]`."""
        for index, echo in enumerate(self._echoes):
            if echo:
                yield sse_event(self._common_fields | {"choices": [self._choice(index, echo, None)]})
        async for delta in self.read():
            index = delta.choice
            choice = self._choice(index, delta.content.get("content", ""), None, delta.logprobs)
            if choice["text"] or choice["logprobs"]:
                yield sse_event(self._common_fields | {"choices": [choice]})
            if delta.is_end:
                last = self._choice(index, "", self.choices[index].finish_reason)
                yield sse_event(self._common_fields | {"choices": [last]})
        if include_usage:
            yield sse_event(self._common_fields | {"choices": [], "usage": self.usage()})
        yield b"data: [DONE]\n\n"

    def _choice(
        self, index: int, text: str, finish_reason: str | None, entries: Sequence[Mapping[str, Any]] = ()
    ) -> dict[str, Any]:
        """One choice; `entries` are the logprobs of its tokens."""
        logprobs = self._logprobs[index].write(entries) if entries else None
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}


class _LogprobsWriter:
    """Converts logprobs of chat to the parallel lists of completions, with the offset of each token in the text."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")  # tokens can split a character
        self._offset = 0

    def write(self, entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The `logprobs` object of some tokens that follow the previous ones."""
        offsets = list[int]()
        for entry in entries:
            offsets.append(self._offset)
            token: str = entry["token"]
            self._offset += len(token if entry["bytes"] is None else self._decoder.decode(bytes(entry["bytes"])))
        return {
            "tokens": [entry["token"] for entry in entries],
            "token_logprobs": [entry["logprob"] for entry in entries],
            "top_logprobs": [{top["token"]: top["logprob"] for top in entry["top_logprobs"]} for entry in entries],
            "text_offset": offsets,
        }

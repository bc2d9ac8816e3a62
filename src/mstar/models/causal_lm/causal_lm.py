"""Causal language model of any checkpoint: chat and text completion, as `mstar serve PATH` runs it.

One component, `LanguageModel`. The walk prefills the prompt, then decodes token by token. Everything that differs
between checkpoints (chat template, stop tokens, sampling defaults, format of tool calls) is read from the files.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from mstar import Model, Text, WalkCall, choose, loop, walk
from mstar.models.causal_lm.language_model import LanguageModel
from mstar.nn.weights.sources import Weights
from mstar.requests import ChatRequest, Finish, Message, Sampling

DEFAULT_WEIGHTS = "package:smollm2-135m"


class CausalLanguageModel(Model):
    """Answers chat requests with any causal language model of transformers.

    `weights` is a folder in the Hugging Face layout, a GGUF file, or `hub:NAME`.
    """

    def __init__(self, weights: str = DEFAULT_WEIGHTS) -> None:
        self.lm = LanguageModel(Weights(weights))

    @walk
    def answer(self, chat: ChatRequest) -> Generator[Text, None, Finish]:
        """Decode the next message token by token."""
        prompt, max_tokens = self.lm.prompt(chat)
        kv = self.lm.kv()
        first = self.lm.next_token(prompt, kv, chat.sampling)
        s = loop(steps=choose(self.lm.is_end(first, chat.sampling), 0, max_tokens), token=first)
        for _ in s:
            yield Text(s.token)
            s.token = self.lm.next_token(s.token, kv, chat.sampling)
            s.stop_when(self.lm.is_over(s.token, kv, chat.sampling))
        return self.lm.finish(prompt, s.token, kv, chat)

    @walk
    def answer_scored(self, chat: ChatRequest) -> Generator[Text, None, Finish]:
        """Decode like `answer`, and emit the log probabilities of each token."""
        prompt, max_tokens = self.lm.prompt(chat)
        kv = self.lm.kv()
        first, logprobs = self.lm.next_token_scored(prompt, kv, chat.sampling)
        s = loop(steps=choose(self.lm.is_end(first, chat.sampling), 0, max_tokens), token=first, logprobs=logprobs)
        for _ in s:
            yield Text(self.lm.score_token(s.token, s.logprobs))
            s.token, s.logprobs = self.lm.next_token_scored(s.token, kv, chat.sampling)
            s.stop_when(self.lm.is_over(s.token, kv, chat.sampling))
        return self.lm.finish(prompt, s.token, kv, chat)

    def select_answer(self, chat: ChatRequest) -> WalkCall[Text, Finish]:
        """Return the walk for this request, with log probabilities if it requests them."""
        return self.answer(chat) if chat.sampling.logprobs is None else self.answer_scored(chat)

    async def route(self, request: ChatRequest) -> Finish:
        """Answer a chat request with one walk."""
        return await self.select_answer(request)

    def warmup_requests(self) -> Sequence[Any]:
        """One short conversation."""
        return [ChatRequest((Message("user", ("Hello.",)),), Sampling(max_tokens=2))]

    def weights_checksum(self) -> str:
        """Return the checksum of the checkpoint: an exported session is imported where it is the same."""
        return self.lm.checkpoint_checksum()

    def input_types(self) -> tuple[type, ...]:
        """Text only."""
        return (str,)

    def default_sampling(self) -> Sampling | None:
        """Return the sampling parameters of the checkpoint, None if it has none."""
        return self.lm.checkpoint.default_sampling

    def max_context_tokens(self) -> int:
        """Return the context length in tokens."""
        return self.lm.max_context_tokens

    def max_text_bytes(self) -> int | None:
        """Return the bytes of text above which a conversation exceeds the context."""
        return self.lm.max_text_bytes(self.lm.max_context_tokens)

    def tool_call_start(self) -> str:
        """Return the text that starts a tool call; empty if the checkpoint has no known format."""
        return "" if self.lm.tool_parser is None else self.lm.tool_parser.start

    def tokenize(self, request: ChatRequest | Any) -> Any:
        """Return a chat request with its prompt tokenized."""
        import numpy as np

        if not isinstance(request, ChatRequest):
            return request
        return request.with_prompt_tokens(np.array(self.lm.prompt_tokens(request), np.int64))

    def tokenize_prompt(self, prompt: str | Sequence[int]) -> Any:
        """Return the token ids of a prompt without a chat template (`/v1/completions`)."""
        import numpy as np

        return np.array(self.lm.tokenize_prompt(prompt, self.lm.max_context_tokens), np.int64)

    def detokenize(self, tokens: Sequence[int], /) -> str:
        """Decode token ids to text."""
        return self.lm.detokenize(tokens)

"""Models for the budget tests: SmolLM2 without its network, and a transcriber that returns at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mstar import Component, Int64, Model, Tensor, Text, op, walk
from mstar.models.smollm2.smollm2 import LanguageModel, SmolLm2
from mstar.requests import ChatRequest, Finish, Sampling, Transcript, TranscriptionRequest


class PromptOnly(LanguageModel):
    """SmolLM2's tokenizer and chat template. The network is not loaded."""

    def prepare(self) -> None:
        _ = self.eos_token_id
        if (vocabulary := self._vocabulary()) is not None:
            vocabulary.prepare()

    @op
    def last_token(self, prompt: Int64[Tensor, "T"], sampling: Sampling) -> Int64[Tensor, "1"]:
        if sampling.grammar is not None:  # as the sampler of a network does
            vocabulary = self._vocabulary()
            assert vocabulary is not None
            vocabulary.guide(sampling.grammar, 0)
        return prompt[-1:]


class Tokenizing(SmolLm2):
    """Answers with the last token of the prompt, and reports the length of the prompt."""

    def __init__(self) -> None:
        self.lm = PromptOnly()

    @walk
    def echo(self, chat: ChatRequest) -> Iterator[Text]:
        prompt, _ = self.lm.prompt(chat)
        yield Text(self.lm.last_token(prompt, chat.sampling))

    async def route(self, request: ChatRequest) -> Finish:
        await self.echo(request)
        return Finish("stop")

    def warmup_requests(self) -> tuple[Any, ...]:
        return ()


class Meter(Component):
    @op
    def measure(self, request: TranscriptionRequest) -> str:
        return f"{len(request.audio.samples)} {np.abs(request.audio.samples[::4800]).max():.3f}"


class Measuring(Model):
    """Transcribes audio as its number of samples and its loudest sample."""

    def __init__(self) -> None:
        self.meter = Meter()

    @walk
    def measure(self, request: TranscriptionRequest) -> str:
        return self.meter.measure(request)

    async def route(self, request: TranscriptionRequest) -> Transcript:
        return Transcript(await self.measure(request), (), "", len(request.audio.samples) / request.audio.rate)

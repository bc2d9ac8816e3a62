"""Toy models that record the tenant which reaches the engine, or that cache content per tenant."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mstar import (
    KV,
    Action,
    Audio,
    Component,
    Float,
    Float32,
    Image,
    Int64,
    Latents,
    Model,
    Tensor,
    Text,
    UInt8,
    Video,
    View,
    loop,
    op,
    walk,
)
from mstar.nn.encoder import Encoder, TenantState
from mstar.nn.lm.causal_lm import CausalLM
from mstar.requests import (
    ActionRequest,
    ChatRequest,
    EmbeddingRequest,
    Finish,
    ImageInput,
    ImageRequest,
    RolloutRequest,
    Sampling,
    SpeechRequest,
    Transcript,
    TranscriptionRequest,
    VideoRequest,
)
from tests.integration.language_models import TINY, network

RATE = 24_000
PAGE_SIZE = 4
FIRST_CHARACTER = 32
"""Character of token 0."""


class TenantRecorder(Component):
    """Records the tenant of each op call, and produces one output of each kind."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        """Tenant of each op call, in order."""
        self.gate = threading.Event()
        """Calls with a text that begins with `hold` wait until it is set."""

    def record(self, owner: TenantState, text: str = "") -> None:
        self.calls.append(owner.tenant)
        if text.startswith("slow"):
            time.sleep(0.005)
        if text.startswith("hold"):
            self.gate.wait(30)

    @op
    def letter(self, text: str, step: int, owner: View[TenantState]) -> Int64[Tensor, "1"]:
        self.record(owner, text)
        return np.array([ord(text[step])], np.int64)

    @op
    def tone(self, text: str, step: int, owner: View[TenantState]) -> Float32[Tensor, "S"]:
        self.record(owner, text)
        return np.full(RATE // 50, 0.25, np.float32)

    @op
    def vectors(self, count: int, owner: View[TenantState]) -> Float32[Tensor, "N 2"]:
        self.record(owner)
        return np.ones((count, 2), np.float32)

    @op
    def pixels(self, prompt: str, owner: View[TenantState]) -> UInt8[Tensor, "H W 3"]:
        self.record(owner, prompt)
        return np.full((16, 16, 3), 7, np.uint8)

    @op
    def frames(self, prompt: str, step: int, owner: View[TenantState]) -> UInt8[Tensor, "F H W 3"]:
        self.record(owner, prompt)
        return np.full((4, 16, 16, 3), step, np.uint8)

    @op
    def actions(self, owner: View[TenantState]) -> Float32[Tensor, "T 2"]:
        self.record(owner)
        return np.zeros((4, 2), np.float32)

    @op
    def latents(self, action: Float32[Tensor, "2"], owner: View[TenantState]) -> Float32[Tensor, "2"]:
        self.record(owner)
        return action + np.float32(1)


class EveryEndpoint(Model):
    """Served at every endpoint that has a request type. Its world is multi-turn: the request stays open."""

    def __init__(self) -> None:
        self.recorder = TenantRecorder()
        self.chats: list[ChatRequest] = []

    @walk
    def write(self, text: str, steps: int) -> Iterator[Text]:
        owner = self.recorder.state(TenantState)
        for step in loop(steps=steps):
            yield Text(self.recorder.letter(text, step, owner))

    @walk
    def say(self, text: str, steps: int) -> Iterator[Audio]:
        owner = self.recorder.state(TenantState)
        for step in loop(steps=steps):
            yield Audio(self.recorder.tone(text, step, owner), rate=RATE)

    @walk
    def embed(self, count: int) -> Float32[Tensor, "N 2"]:
        return self.recorder.vectors(count, self.recorder.state(TenantState))

    @walk
    def draw(self, prompt: str) -> Iterator[Image]:
        yield Image(self.recorder.pixels(prompt, self.recorder.state(TenantState)))

    @walk
    def film(self, prompt: str, chunks: int) -> Iterator[Video]:
        owner = self.recorder.state(TenantState)
        for step in loop(steps=chunks):
            yield Video(self.recorder.frames(prompt, step, owner), fps=8.0)

    @walk
    def act(self) -> Iterator[Action]:
        yield Action(self.recorder.actions(self.recorder.state(TenantState)), rate=50)

    @walk
    def imagine(self, action: Float32[Tensor, "2"]) -> Iterator[Latents]:
        yield Latents(self.recorder.latents(action, self.recorder.state(TenantState)))

    async def route(
        self,
        request: ChatRequest
        | SpeechRequest
        | TranscriptionRequest
        | EmbeddingRequest
        | ImageRequest
        | VideoRequest
        | ActionRequest
        | RolloutRequest,
    ) -> Any:
        match request:
            case ChatRequest():
                self.chats.append(request)
                prompt = request.prompt_tokens
                text = str(request.messages[-1].parts[-1]) if prompt is None else self.detokenize(prompt.tolist())
                await self.write(text, len(text))
                size = sum(len(message.parts[-1]) for message in request.messages)
                return Finish(prompt_tokens={"text": size if prompt is None else len(prompt)})
            case SpeechRequest():
                await self.say(request.text, len(request.text))
                return Finish()
            case TranscriptionRequest():
                await self.write("heard", 5)
                return Transcript("heard", (), "en", 0.1)
            case EmbeddingRequest():
                return await self.embed(len(request.texts))
            case ImageRequest():
                await self.draw(request.prompt)
                return Finish()
            case VideoRequest():
                await self.film(request.prompt, max(1, int(request.seconds * 2)))
            case ActionRequest():
                await self.act()
            case RolloutRequest():
                await self.roll_out(request)
        return None

    async def roll_out(self, request: RolloutRequest) -> None:
        for action in request.actions:
            await self.imagine(action)
        while (action := await self.next_input()) is not None:
            await self.imagine(action)

    def detokenize(self, tokens: Sequence[int], /) -> str:
        return "".join(map(chr, tokens))

    def tokenize_prompt(self, prompt: str | Sequence[int]) -> Any:
        return np.array([*map(ord, prompt)] if isinstance(prompt, str) else [*prompt], np.int64)


class NoRouteRecorder(Model):
    """Model without a route, for `/v1/generate`: a request holds the arguments of its only walk."""

    def __init__(self) -> None:
        self.recorder = TenantRecorder()

    @walk
    def write(self, text: str, steps: int) -> Iterator[Text]:
        owner = self.recorder.state(TenantState)
        for step in loop(steps=steps):
            yield Text(self.recorder.letter(text, step, owner))


class CachingEncoder(Encoder):
    """Encodes images, with a cache per tenant as in SmolVLM. Counts the runs of its network."""

    def __init__(self) -> None:
        super().__init__(_identity)
        self.runs = 0

    @op
    def encode(self, image: UInt8[Tensor, "H W 3"], owner: View[TenantState]) -> Float[Tensor, "P D"]:
        return self._encode([image], [owner.tenant])[0]

    def _hidden(self, batch: Any, **_: Any) -> Any:
        self.runs += len(batch)
        return batch.float().flatten(2)


def _identity() -> Any:
    import torch

    return torch.nn.Identity()


class CachingModel(Model):
    """Chat model with a real paged KV cache and prefix cache, and with a cached image encoder."""

    def __init__(self) -> None:
        self.lm = CausalLM(lambda: network(TINY), eos_token_id=5, pages=512, page_size=PAGE_SIZE)
        self.encoder = CachingEncoder()

    @walk
    def read(self, prompt: Int64[Tensor, "T"], sampling: Sampling, kv: KV) -> Int64[Tensor, "1"]:
        return self.lm.next_token(prompt, kv, sampling)

    @walk
    def write(self, token: Int64[Tensor, "1"], sampling: Sampling, kv: KV) -> Iterator[Text]:
        s = loop(steps=sampling.max_tokens, token=token)
        for _ in s:
            yield Text(s.token)
            s.token = self.lm.next_token(s.token, kv, sampling)

    @walk
    def look(self, image: UInt8[Tensor, "H W 3"]) -> Float[Tensor, "P D"]:
        return self.encoder.encode(image, self.encoder.state(TenantState))

    async def route(self, request: ChatRequest) -> Finish:
        import torch

        parts = [part for message in request.messages for part in message.parts]
        for part in parts:
            if isinstance(part, ImageInput):
                await self.look(torch.tensor(part.pixels))
        prompt = torch.tensor(to_tokens("".join(part for part in parts if isinstance(part, str))))
        kv = self.lm.kv()
        token = await self.read(prompt, request.sampling, kv)
        await self.write(token, request.sampling, kv)
        return Finish(prompt_tokens={"text": len(prompt)})

    def detokenize(self, tokens: Sequence[int], /) -> str:
        return "".join(chr(FIRST_CHARACTER + token) for token in tokens)


def to_tokens(text: str) -> list[int]:
    """One token per character; the inverse of `detokenize`."""
    return [(ord(character) - FIRST_CHARACTER) % TINY["vocab_size"] for character in text]

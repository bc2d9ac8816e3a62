"""Toy models for server tests: an echoing chat model, an embedding model, and models for `/v1/generate`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from mstar import Audio, Component, Float32, Int64, Model, Tensor, Text, loop, op, walk
from mstar.errors import NeverFits, Unsupported
from mstar.requests import ChatRequest, EmbeddingRequest, Finish

BOOM = "💥"
MAX_PROMPT_BYTES = 4096
"""Context of the chat model at `/v1/completions`."""


class Letters(Component):
    @op
    def letter(self, text: str, step: int) -> Int64[Tensor, "1"]:
        if text.startswith("slow"):
            time.sleep(0.01)
        letter = text.encode()[step]
        if letter == BOOM.encode()[0] and BOOM in text:
            raise RuntimeError("an internal secret: /etc/passwd at 0x7fffdeadbeef")
        return np.array([letter], np.int64)

    @op
    def tone(self, text: str, step: int) -> Float32[Tensor, "T"]:
        return np.full(240, text.encode()[step] / 256, np.float32)


class Parrot(Model):
    """Chat model that echoes the last message, one byte per token."""

    def __init__(self) -> None:
        self.letters = Letters()
        self.seen: list[Any] = []
        """Every request that reached the route."""

    @walk
    def say(self, text: str, steps: int) -> Iterator[Text]:
        for step in loop(steps=steps):
            yield Text(self.letters.letter(text, step))

    @walk
    def sing(self, text: str, steps: int) -> Iterator[Audio]:
        for step in loop(steps=steps):
            yield Audio(self.letters.tone(text, step), rate=24_000)

    async def route(self, request: ChatRequest) -> Finish:
        self.seen.append(request)
        if request.audio_output and request.voice == "mute":
            raise NotImplementedError("an internal secret")
        parts = request.messages[-1].parts if request.messages else (self.detokenize(request.prompt_tokens.tolist()),)
        text = "".join(part if isinstance(part, str) else f"<{type(part).__name__}>" for part in parts)
        text = text.replace("{seed}", str(request.sampling.seed))
        size = len(text.encode())
        await self.say(text, min(size, request.sampling.max_tokens))
        if request.audio_output and request.voice != "lazy":
            await self.sing(text, size)
        prompt_size = sum(len(str(part)) for message in request.messages for part in message.parts)
        if request.prompt_tokens is not None:
            prompt_size = len(request.prompt_tokens)
        return Finish("stop" if size <= request.sampling.max_tokens else "length", {"text": prompt_size})

    def detokenize(self, tokens: Sequence[int], /) -> str:
        return bytes(tokens).decode(errors="replace")

    def max_context_tokens(self) -> int:
        return 8192

    def tokenize_prompt(self, prompt: str | Sequence[int]) -> Any:
        tokens = prompt.encode() if isinstance(prompt, str) else prompt
        if any(token > 255 for token in tokens):
            raise Unsupported(f"prompt: {max(tokens)} is not a byte\n  fix: send bytes")
        if len(tokens) >= MAX_PROMPT_BYTES:
            raise NeverFits(f"the prompt has {len(tokens)} bytes\n  fix: send fewer than {MAX_PROMPT_BYTES}")
        return np.array([*tokens], np.int64)


class Measure(Component):
    @op
    def measure(self, texts: EmbeddingRequest) -> Float32[Tensor, "N 2"]:
        return np.array([[len(text), text.count("a") + 0.5] for text in texts.texts], np.float32)


class Vectors(Model):
    """Embedding model: the length of a text, and its count of the letter `a`."""

    def __init__(self) -> None:
        self.measure = Measure()

    @walk
    def embed(self, request: EmbeddingRequest) -> Float32[Tensor, "N 2"]:
        return self.measure.measure(request)

    async def route(self, request: EmbeddingRequest) -> Any:
        vectors = await self.embed(request)
        return vectors * np.nan if "nan" in request.texts else vectors


@dataclass(frozen=True)
class Mix:
    """Request type of `Mixer`."""

    sound: Float32[Tensor, "T"]
    times: int
    mode: Literal["loud", "soft"] = "loud"
    gains: list[float] = field(default_factory=list)


class Desk(Component):
    @op
    def play(self, mix: Mix, step: int) -> Float32[Tensor, "T"]:
        return mix.sound * np.float32(step + 1 if mix.mode == "loud" else step)


class Mixer(Model):
    """Repeats audio; its request type has no OpenAI endpoint, so it is served at `/v1/generate` only."""

    def __init__(self) -> None:
        self.desk = Desk()

    @walk
    def mix(self, mix: Mix, times: int) -> Iterator[Audio]:
        for step in loop(steps=times):
            yield Audio(self.desk.play(mix, step), rate=8000)

    async def route(self, request: Mix) -> dict[str, Any]:
        await self.mix(request, request.times)
        return {"gains": request.gains, "sound": request.sound}


class NoRoute(Model):
    """Model without a route: a request holds the arguments of its only walk."""

    def __init__(self) -> None:
        self.letters = Letters()

    @walk
    def say(self, text: str, steps: int, prompt: Int64[Tensor, "T 2"]) -> Iterator[Text]:
        for step in loop(steps=steps):
            yield Text(self.letters.letter(text, step))

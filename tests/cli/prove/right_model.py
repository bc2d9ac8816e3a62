"""A right port of a small speech model, with the reference that it is compared with. Tests make it wrong.

A decoder with rotary positions attends to the prompt and to a summary of it; a vocoder turns windows of its tokens into
samples. Rows are computed one by one, so results do not depend on the batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from mstar import (
    Audio,
    Component,
    Float32,
    Int64,
    Model,
    State,
    Stream,
    Tensor,
    Text,
    loop,
    op,
    padded,
    ragged,
    rows,
    stacked,
    walk,
    windows,
)
from mstar.walk.batching import ONE_ROW, Layout

SIZE, VOCAB, WINDOW, RATE = 16, 50, 3, 8_000


@dataclass(frozen=True)
class Speak:
    """A request: the tokens to read, and how many to write."""

    tokens: tuple[int, ...]
    length: int
    seed: int = 0


def weights() -> dict[str, Any]:
    """The published weights."""
    random = np.random.default_rng(7)
    shapes = {"embedding": (VOCAB, SIZE), "query": (SIZE, SIZE), "key": (SIZE, SIZE), "value": (SIZE, SIZE)}
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def rotate(x: Any, position: int) -> Any:
    """Rotary position embedding."""
    angles = position / 50 ** (np.arange(SIZE // 2) / (SIZE // 2))
    first, second = x[: SIZE // 2], x[SIZE // 2 :]
    cosines, sines = np.cos(angles), np.sin(angles)
    return np.concatenate([first * cosines - second * sines, first * sines + second * cosines])


def noise(seed: int, position: int) -> Any:
    """Gumbel noise of a position: the random draw of its token."""
    return np.random.default_rng([seed, position]).gumbel(scale=9.0, size=VOCAB) if seed else np.zeros(VOCAB)


class Memory(State):
    """Keys and values of one request."""

    def __init__(self) -> None:
        self.keys: list[Any] = []
        self.values: list[Any] = []


class Summary(Component):
    """Sums up the prompt."""

    def prepare(self) -> None:
        self.w = weights()

    @op(batch=padded("T"))
    def sum_up(self, tokens: Int64[Tensor, "T"], layout: Layout = ONE_ROW) -> Float32[Tensor, "16"]:
        """The mean embedding of each prompt."""
        means = [self.w["embedding"][row[:length]].mean(0) for row, length in zip(tokens, layout.lengths, strict=True)]
        return np.stack(means)


class Decoder(Component):
    """Writes token by token."""

    def prepare(self) -> None:
        self.w = weights()

    @op(batch=ragged("T"), chunked=True)
    def next_token(
        self,
        tokens: Int64[Tensor, "T"],
        summary: Float32[Tensor, "16"],
        memory: Memory,
        seed: int,
        layout: Layout = ONE_ROW,
    ) -> Int64[Tensor, "1"]:
        """Read tokens, and return the one that follows."""
        results = []
        columns = zip(layout.offsets, layout.lengths, rows(memory), rows(seed), summary, strict=False)
        for start, length, own, own_seed, own_summary in columns:
            logits = np.zeros(VOCAB)
            for token in tokens[start : start + length]:
                position = len(own.keys)
                x = self.w["embedding"][token]
                own.keys.append(rotate(x @ self.w["key"], position))
                own.values.append(x @ self.w["value"])
                query = rotate(x @ self.w["query"], position)
                scores = np.stack(own.keys) @ query / np.sqrt(SIZE)
                shares = np.exp(scores - scores.max())
                attended = (shares / shares.sum()) @ np.stack(own.values)
                logits = self.w["embedding"] @ (x + attended + own_summary)
            results.append([int((logits + noise(own_seed, len(own.keys))).argmax())])
        return np.array(results, np.int64)


class Vocoder(Component):
    """Turns tokens into sound."""

    @op(batch=stacked)
    def synthesize(self, tokens: Int64[Tensor, "W 1"]) -> Float32[Tensor, "S"]:
        """The samples of a window of tokens."""
        return np.stack([np.sin(np.arange(20) * (1 + row.mean())).astype(np.float32) for row in tokens])


class SpeechModel(Model):
    """Reads a prompt, then writes tokens and speaks them."""

    def __init__(self) -> None:
        self.summary, self.lm, self.vocoder = Summary(), Decoder(), Vocoder()

    @walk
    def read(
        self, tokens: Int64[Tensor, "T"], memory: Memory, seed: int
    ) -> tuple[Int64[Tensor, "1"], Float32[Tensor, "16"]]:
        """Prefill."""
        summary = self.summary.sum_up(tokens)
        return self.lm.next_token(tokens, summary, memory, seed), summary

    @walk
    def write(
        self, token: Int64[Tensor, "1"], summary: Float32[Tensor, "16"], memory: Memory, length: int, seed: int
    ) -> Iterator[Text | Audio]:
        """Decode, and speak meanwhile."""
        codes = Stream("codes")
        s = loop(steps=length, token=token)
        for _ in s:
            yield Text(s.token)
            codes.put(s.token)
            s.token = self.lm.next_token(s.token, summary, memory, seed)
        for window in windows(codes, size=WINDOW, flush=True):
            yield Audio(self.vocoder.synthesize(window), rate=RATE)

    async def route(self, request: Speak) -> None:
        """Read, then write."""
        memory = self.lm.state(Memory)
        token, summary = await self.read(np.array(request.tokens), memory, request.seed)
        await self.write(token, summary, memory, request.length, request.seed)


def requests() -> list[Speak]:
    """Requests of different lengths."""
    return [Speak((3, 1, 4, 1, 5, 9, 2, 6), 7), Speak((2, 7), 5, seed=1), Speak((1, 6, 1, 8, 0), 9, seed=2)]


def reference(request: Speak) -> list[Any]:
    """What the library gives: no cache, all positions at once."""
    w, tokens, written = reference_weights(), [*request.tokens], []
    prompt = w["embedding"][tokens].mean(0)
    for _ in range(request.length):
        x = w["embedding"][tokens]
        keys = np.stack([turn(row, at) for at, row in enumerate(x @ w["key"])])
        query = turn(x[-1] @ w["query"], len(tokens) - 1)
        scores = np.exp(keys @ query / 4)
        attended = (scores / scores.sum()) @ (x @ w["value"])
        draw = np.random.default_rng([request.seed, len(tokens)]).gumbel(scale=9.0, size=VOCAB) if request.seed else 0
        written.append(int((w["embedding"] @ (x[-1] + attended + prompt) + draw).argmax()))
        tokens.append(written[-1])
    groups = [written[at : at + 3] for at in range(0, len(written), 3)]
    sounds = [np.sin(np.arange(20) * (1 + np.mean(group))).astype(np.float32) for group in groups]
    return [np.array([token]) for token in written] + sounds


def reference_weights() -> dict[str, Any]:
    """The weights, read by the library."""
    random = np.random.default_rng(7)
    shapes = {"embedding": (50, 16), "query": (16, 16), "key": (16, 16), "value": (16, 16)}
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def turn(x: Any, position: int) -> Any:
    """The rotary embedding of the library, by complex numbers."""
    turned = (x[:8] + 1j * x[8:]) * np.exp(1j * position / 50 ** (np.arange(8) / 8))
    return np.concatenate([turned.real, turned.imag])

# pyright: basic
"""Toy components for language: real shapes, small arithmetic, and nothing goes unnoticed.

Every output is a pure function of all inputs, of their order and of the state: each is drawn from a `digest` of them.
So a lost value, a stale state, a swapped argument or a wrong order changes what comes out. Floats are small whole
numbers, so results are equal to the last bit, alone or in a batch. `seed` stands for a component's weights.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar, cast

import numpy as np

from mstar.walk.batching import ONE_ROW, Layout, ragged, rows, stacked
from mstar.walk.component import Component, op
from mstar.walk.states import KV, State
from mstar.walk.types import Bool, Float32, Int64, Tensor, View

S = TypeVar("S", bound=State)

PRIME = 2_147_483_647
WIDTH = 64
"""How wide every embedding is."""


# ---------------------------------------------------------------- arithmetic
@functools.cache
def _powers(count: int) -> Any:
    powers = np.ones(count, np.int64)
    for i in range(1, count):
        powers[i] = powers[i - 1] * 1_000_003 % PRIME
    return powers


def digest(*values: Any) -> int:
    """A number below `PRIME` that depends on every element, on their order and on the shapes."""
    total = 17
    for value in values:
        array = np.ascontiguousarray(value)
        if array.dtype.kind == "f":
            array = array.view(f"u{array.dtype.itemsize}")
        numbers = np.array([*array.shape, *(array.ravel() % PRIME)], np.int64) + 1
        total = (total * 48_271 + int((numbers * _powers(len(numbers)) % PRIME).sum())) % PRIME
    return total


def to_floats(number: int, shape: tuple[int, ...]) -> Any:
    """Whole numbers from -125 to 125 as float32, drawn from one number."""
    at = np.arange(int(np.prod(shape)), dtype=np.int64) * 7919
    mixed = (number + at) % PRIME * 69_621 % PRIME
    return (mixed % 251 - 125).astype(np.float32).reshape(shape)


def to_token(number: int, vocab: int) -> Any:
    """One token drawn from a number."""
    return np.array([number % vocab], np.int64)


def split_rows(joined: Any, layout: Layout) -> list[Any]:
    """The rows of a tensor that a ragged batch has joined along its first axis."""
    return [joined[start:end] for start, end in pairwise(layout.offsets)]


# ---------------------------------------------------------------- states
class ToyKV(KV):
    """An attention cache: one number for each token or embedding that went in."""

    def __init__(self) -> None:
        self.entries: list[int] = []


def kv_entries(kv: KV) -> list[int]:
    """What is in a toy cache."""
    return cast("ToyKV", kv).entries


class ToyComponent(Component):
    """A component whose weights are one number and whose attention cache is a ToyKV."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = digest([ord(letter) for letter in type(self).__name__], seed)

    def make_state(self, kind: type[S]) -> S:
        """A ToyKV for KV; any other kind makes itself."""
        return cast("S", ToyKV()) if kind is KV else kind()

    def weighted_digest(self, *values: Any) -> int:
        """The digest of values under this component's weights."""
        return digest(self.seed, *values)

    def cache_digest(self, kv: KV, *values: Any) -> int:
        """The digest of all that is in a cache, and of values."""
        return self.weighted_digest(kv_entries(kv), *values)


# ---------------------------------------------------------------- language models
@dataclass(frozen=True)
class Sampling:
    """How a request wants its tokens drawn."""

    max_tokens: int = 60
    temperature: float = 1.0
    seed: int = 0


class TokenDecoder(ToyComponent):
    """What all token writers share: a vocabulary and its last word."""

    def __init__(self, vocab: int = 97, eos: int = 5, seed: int = 0) -> None:
        super().__init__(seed)
        self.vocab = vocab
        self.eos = eos

    def tokenize(self, text: str) -> Any:
        """A token for each letter."""
        return np.array([ord(letter) % self.vocab for letter in text], np.int64)

    @op(batch=stacked)
    def is_end(self, token: Int64[Tensor, "1"]) -> Bool[Tensor, ""]:
        """Whether this token ends the text."""
        return cast("Any", np.asarray(token)[:, 0] == self.eos)


class SampledLM(TokenDecoder):
    """A causal language model that draws tokens as a request wants."""

    @op(batch=ragged("T"))
    def prefill(
        self, tokens: Int64[Tensor, "T"], kv: KV, sampling: Sampling, layout: Layout = ONE_ROW
    ) -> Int64[Tensor, "1"]:
        """Read a prompt; the token that follows it."""
        for ids, cache in zip(split_rows(tokens, layout), rows(kv), strict=True):
            kv_entries(cache).extend(map(int, ids))
        return self._draw(kv, sampling)

    @op(batch=stacked)
    def decode(self, token: Int64[Tensor, "1"], kv: KV, sampling: Sampling) -> Int64[Tensor, "1"]:
        """Read one token; the one that follows it."""
        for ids, cache in zip(token, rows(kv), strict=True):
            kv_entries(cache).append(int(ids[0]))
        return self._draw(kv, sampling)

    def _draw(self, kv: KV, sampling: Sampling) -> Any:
        pairs = zip(rows(kv), rows(sampling), strict=True)
        return np.stack([to_token(self.cache_digest(kv, how.temperature, how.seed), self.vocab) for kv, how in pairs])


class CausalLM(TokenDecoder):
    """A causal language model that always takes the likeliest token."""

    @op(batch=ragged("T"))
    def prefill(self, tokens: Int64[Tensor, "T"], kv: KV, layout: Layout = ONE_ROW) -> Int64[Tensor, "1"]:
        """Read a prompt; the token that follows it."""
        for ids, cache in zip(split_rows(tokens, layout), rows(kv), strict=True):
            kv_entries(cache).extend(map(int, ids))
        return self._next(kv)

    @op(batch=stacked)
    def decode(self, token: Int64[Tensor, "1"], kv: KV) -> Int64[Tensor, "1"]:
        """Read one token; the one that follows it."""
        for ids, cache in zip(token, rows(kv), strict=True):
            kv_entries(cache).append(int(ids[0]))
        return self._next(kv)

    def _next(self, kv: KV) -> Any:
        return np.stack([to_token(self.cache_digest(cache), self.vocab) for cache in rows(kv)])


class MultimodalLM(CausalLM):
    """A language model that also reads embeddings: of a picture, of sound."""

    @op(batch=ragged("P"))
    def see(self, patches: Float32[Tensor, "P 64"], kv: KV, layout: Layout = ONE_ROW) -> None:
        """Read embeddings into the cache."""
        for part, cache in zip(split_rows(patches, layout), rows(kv), strict=True):
            kv_entries(cache).extend(self.weighted_digest(patch) for patch in part)


class Thinker(MultimodalLM):
    """A language model that shows what it thought beside each token."""

    @op(batch=stacked)
    def think(self, token: Int64[Tensor, "1"], kv: KV) -> tuple[Int64[Tensor, "1"], Float32[Tensor, "64"]]:
        """Read one token; the one that follows it, and the hidden state behind that."""
        for ids, cache in zip(token, rows(kv), strict=True):
            kv_entries(cache).append(int(ids[0]))
        hidden = [to_floats(self.cache_digest(cache), (WIDTH,)) for cache in rows(kv)]
        return self._next(kv), cast("Any", np.stack(hidden))


class MixtureLM(MultimodalLM):
    """A mixture of transformers: it writes text, and denoises latents under what it has read."""

    @op
    def start(self) -> Int64[Tensor, "1"]:
        """The token that begins an answer."""
        return to_token(1, self.vocab)

    @op(batch=ragged("N"))
    def flow(
        self, x: Float32[Tensor, "N 64"], step: int, kv: View[KV], layout: Layout = ONE_ROW
    ) -> Float32[Tensor, "N 64"]:
        """Where the latents should go, given what the cache holds."""
        parts = zip(split_rows(x, layout), rows(step), rows(kv), strict=True)
        return cast("Any", np.concatenate([to_floats(self.cache_digest(kv, x, at), x.shape) for x, at, kv in parts]))


class RetrievalLM(CausalLM):
    """A language model for retrieval: it reads passages, and says what it would like to look up."""

    def __init__(self, vocab: int = 97, eos: int = 5, stops: tuple[int, ...] = (), seed: int = 0) -> None:
        super().__init__(vocab, eos, seed)
        self.stops = stops

    @op(batch=ragged("P"))
    def read(self, passages: Int64[Tensor, "P 8"], kv: KV, layout: Layout = ONE_ROW) -> None:
        """Read passages into the cache."""
        for found, cache in zip(split_rows(passages, layout), rows(kv), strict=True):
            kv_entries(cache).extend(map(int, np.asarray(found).ravel()))

    @op
    def query(self, kv: View[KV]) -> Float32[Tensor, "64"]:
        """An embedding of all that was read and written."""
        return to_floats(self.cache_digest(kv), (WIDTH,))

    @op(batch=stacked)
    def is_stop(self, token: Int64[Tensor, "1"]) -> Bool[Tensor, ""]:
        """Whether this token ends a sentence."""
        return cast("Any", np.isin(np.asarray(token)[:, 0], self.stops))


class Retriever(ToyComponent):
    """Finds the passages nearest to a query."""

    @op
    def embed(self, tokens: Int64[Tensor, "T"]) -> Float32[Tensor, "64"]:
        """A query for a text."""
        return to_floats(self.weighted_digest(tokens), (WIDTH,))

    @op
    def search(self, query: Float32[Tensor, "64"]) -> Int64[Tensor, "P 8"]:
        """As many passages of eight tokens as are near, two to four."""
        mark = self.weighted_digest(query)
        return cast("Any", (to_floats(mark, (2 + mark % 3, 8)) + 125).astype(np.int64) % 97)

# pyright: basic
"""Fake language models for tests: real shapes, cheap deterministic arithmetic.

Every output is computed from a `digest` (hash) of all inputs, their order and the state. So a lost value, a stale
state, a swapped argument or a wrong order changes the output. Floats are small integers, so results are equal bit for
bit, alone or in a batch. `seed` stands for a component's weights.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar, cast

from mstar.testing.lazy_numpy import np
from mstar.walk.batching import ONE_ROW, Layout, ragged, rows, stacked
from mstar.walk.component import Component, op
from mstar.walk.states import KV, State
from mstar.walk.types import Bool, Float32, Int64, Tensor, View

S = TypeVar("S", bound=State)

PRIME = 2_147_483_647
WIDTH = 64
"""Size of every embedding."""


# ---------------------------------------------------------------- arithmetic
@functools.cache
def _powers(count: int) -> Any:
    powers = np.ones(count, np.int64)
    for i in range(1, count):
        powers[i] = powers[i - 1] * 1_000_003 % PRIME
    return powers


def digest(*values: Any) -> int:
    """A hash below `PRIME` of all elements, their order and the shapes."""
    total = 17
    for value in values:
        array = np.ascontiguousarray(value)
        if array.dtype.kind == "f":
            array = array.view(f"u{array.dtype.itemsize}")
        numbers = np.array([*array.shape, *(array.ravel() % PRIME)], np.int64) + 1
        total = (total * 48_271 + int((numbers * _powers(len(numbers)) % PRIME).sum())) % PRIME
    return total


def to_floats(number: int, shape: tuple[int, ...]) -> Any:
    """Pseudo-random integers from -125 to 125 as float32, derived from one number."""
    offsets = np.arange(int(np.prod(shape)), dtype=np.int64) * 7919
    mixed = (number + offsets) % PRIME * 69_621 % PRIME
    return (mixed % 251 - 125).astype(np.float32).reshape(shape)


def to_token(number: int, vocab: int) -> Any:
    """One token derived from a number."""
    return np.array([number % vocab], np.int64)


def split_rows(joined: Any, layout: Layout) -> list[Any]:
    """Split a tensor of a ragged batch into its rows."""
    return [joined[start:end] for start, end in pairwise(layout.offsets)]


# ---------------------------------------------------------------- states
class ToyKV(KV):
    """Fake KV cache: one number per token or embedding."""

    def __init__(self) -> None:
        self.entries: list[int] = []


def kv_entries(kv: KV) -> list[int]:
    """The entries of a ToyKV."""
    return cast("ToyKV", kv).entries


class ToyComponent(Component):
    """A component whose weights are one number and whose KV cache is a ToyKV."""

    def __init__(self, seed: int = 0) -> None:
        self._weights_seed = seed

    @functools.cached_property
    def seed(self) -> int:
        """The weights: one number, computed on first use."""
        return digest([ord(letter) for letter in type(self).__name__], self._weights_seed)

    def make_state(self, kind: type[S]) -> S:
        """Create a ToyKV for KV; any other kind by its constructor."""
        return cast("S", ToyKV()) if kind is KV else kind()

    def weighted_digest(self, *values: Any) -> int:
        """Digest of the weights and of values."""
        return digest(self.seed, *values)

    def cache_digest(self, kv: KV, *values: Any) -> int:
        """Digest of the weights, of a cache and of values."""
        return self.weighted_digest(kv_entries(kv), *values)


# ---------------------------------------------------------------- language models
@dataclass(frozen=True)
class Sampling:
    """Sampling parameters of a request."""

    max_tokens: int = 60
    temperature: float = 1.0
    seed: int = 0


class TokenDecoder(ToyComponent):
    """Base of components that generate tokens: a vocabulary and its end-of-sequence token."""

    def __init__(self, vocab: int = 97, eos: int = 5, seed: int = 0) -> None:
        super().__init__(seed)
        self.vocab = vocab
        self.eos = eos

    def tokenize(self, text: str) -> Any:
        """One token per character."""
        return np.array([ord(letter) % self.vocab for letter in text], np.int64)

    @op(batch=stacked)
    def is_end(self, token: Int64[Tensor, "1"]) -> Bool[Tensor, ""]:
        """Whether this token ends the text."""
        return cast("Any", np.asarray(token)[:, 0] == self.eos)


class SampledLM(TokenDecoder):
    """Causal language model with sampling parameters."""

    @op(batch=ragged("T"))
    def prefill(
        self, tokens: Int64[Tensor, "T"], kv: KV, sampling: Sampling, layout: Layout = ONE_ROW
    ) -> Int64[Tensor, "1"]:
        """Prefill: read a prompt, return the next token."""
        for ids, cache in zip(split_rows(tokens, layout), rows(kv), strict=True):
            kv_entries(cache).extend(map(int, ids))
        return self._draw(kv, sampling)

    @op(batch=stacked)
    def decode(self, token: Int64[Tensor, "1"], kv: KV, sampling: Sampling) -> Int64[Tensor, "1"]:
        """Decode: read one token, return the next one."""
        for ids, cache in zip(token, rows(kv), strict=True):
            kv_entries(cache).append(int(ids[0]))
        return self._draw(kv, sampling)

    def _draw(self, kv: KV, sampling: Sampling) -> Any:
        pairs = zip(rows(kv), rows(sampling), strict=True)
        return np.stack([to_token(self.cache_digest(kv, one.temperature, one.seed), self.vocab) for kv, one in pairs])


class CausalLM(TokenDecoder):
    """Causal language model with greedy decoding."""

    @op(batch=ragged("T"))
    def prefill(self, tokens: Int64[Tensor, "T"], kv: KV, layout: Layout = ONE_ROW) -> Int64[Tensor, "1"]:
        """Prefill: read a prompt, return the next token."""
        for ids, cache in zip(split_rows(tokens, layout), rows(kv), strict=True):
            kv_entries(cache).extend(map(int, ids))
        return self._next(kv)

    @op(batch=stacked)
    def decode(self, token: Int64[Tensor, "1"], kv: KV) -> Int64[Tensor, "1"]:
        """Decode: read one token, return the next one."""
        for ids, cache in zip(token, rows(kv), strict=True):
            kv_entries(cache).append(int(ids[0]))
        return self._next(kv)

    def _next(self, kv: KV) -> Any:
        return np.stack([to_token(self.cache_digest(cache), self.vocab) for cache in rows(kv)])


class MultimodalLM(CausalLM):
    """Language model that also reads embeddings of images or audio."""

    @op(batch=ragged("P"))
    def see(self, patches: Float32[Tensor, "P 64"], kv: KV, layout: Layout = ONE_ROW) -> None:
        """Append embeddings to the KV cache."""
        for part, cache in zip(split_rows(patches, layout), rows(kv), strict=True):
            kv_entries(cache).extend(self.weighted_digest(patch) for patch in part)


class Thinker(MultimodalLM):
    """Language model that returns the hidden state with each token."""

    @op(batch=stacked)
    def think(self, token: Int64[Tensor, "1"], kv: KV) -> tuple[Int64[Tensor, "1"], Float32[Tensor, "64"]]:
        """Decode: read one token, return the next one and its hidden state."""
        for ids, cache in zip(token, rows(kv), strict=True):
            kv_entries(cache).append(int(ids[0]))
        hidden = [to_floats(self.cache_digest(cache), (WIDTH,)) for cache in rows(kv)]
        return self._next(kv), cast("Any", np.stack(hidden))


class MixtureLM(MultimodalLM):
    """Mixture of transformers: generates text, and denoises latents conditioned on its KV cache."""

    @op
    def start(self) -> Int64[Tensor, "1"]:
        """The start token of a response."""
        return to_token(1, self.vocab)

    @op(batch=ragged("N"))
    def flow(
        self, x: Float32[Tensor, "N 64"], step: int, kv: View[KV], layout: Layout = ONE_ROW
    ) -> Float32[Tensor, "N 64"]:
        """Velocity of the latents (flow matching), conditioned on the KV cache."""
        parts = zip(split_rows(x, layout), rows(step), rows(kv), strict=True)
        return cast("Any", np.concatenate([to_floats(self.cache_digest(kv, x, at), x.shape) for x, at, kv in parts]))


class RetrievalLM(CausalLM):
    """Language model for retrieval: reads passages and returns query embeddings."""

    def __init__(self, vocab: int = 97, eos: int = 5, stops: tuple[int, ...] = (), seed: int = 0) -> None:
        super().__init__(vocab, eos, seed)
        self.stops = stops

    @op(batch=ragged("P"))
    def read(self, passages: Int64[Tensor, "P 8"], kv: KV, layout: Layout = ONE_ROW) -> None:
        """Append passages to the KV cache."""
        for tokens, cache in zip(split_rows(passages, layout), rows(kv), strict=True):
            kv_entries(cache).extend(map(int, np.asarray(tokens).ravel()))

    @op
    def query(self, kv: View[KV]) -> Float32[Tensor, "64"]:
        """Query embedding of the text so far."""
        return to_floats(self.cache_digest(kv), (WIDTH,))

    @op(batch=stacked)
    def is_stop(self, token: Int64[Tensor, "1"]) -> Bool[Tensor, ""]:
        """Whether this token ends a sentence."""
        return cast("Any", np.isin(np.asarray(token)[:, 0], self.stops))


class Retriever(ToyComponent):
    """Fake vector search."""

    @op
    def embed(self, tokens: Int64[Tensor, "T"]) -> Float32[Tensor, "64"]:
        """Query embedding of a text."""
        return to_floats(self.weighted_digest(tokens), (WIDTH,))

    @op
    def search(self, query: Float32[Tensor, "64"]) -> Int64[Tensor, "P 8"]:
        """Two to four passages of eight tokens."""
        number = self.weighted_digest(query)
        return cast("Any", (to_floats(number, (2 + number % 3, 8)) + 125).astype(np.int64) % 97)

"""Components for tests of tracing. Their ops are never run."""

from __future__ import annotations

from mstar import KV, Bool, Component, Float, Float32, Int64, State, Static, Tensor, View, op


class Past(State):
    """What a codec remembers."""


class LM(Component):
    @op
    def prefill(self, tokens: Int64[Tensor, "T"], kv: KV) -> Int64[Tensor, "1"]: ...

    @op
    def decode(self, token: Int64[Tensor, "1"], kv: KV, mode: Static[str] = "fast") -> Int64[Tensor, "1"]: ...

    @op
    def think(self, token: Int64[Tensor, "1"], kv: KV) -> tuple[Int64[Tensor, "1"], Float32[Tensor, "64"]]: ...

    @op
    def is_end(self, token: Int64[Tensor, "1"]) -> Bool[Tensor, ""]: ...

    @op
    def embed(self, tokens: Int64[Tensor, "T"]) -> Float32[Tensor, "T 64"]: ...

    @op
    def add(self, a: Float[Tensor, "N 64"], b: Float[Tensor, "N 64"]) -> Float32[Tensor, "N 64"]: ...

    @op
    def score(self, kv: View[KV]) -> float: ...

    @op
    def start(self) -> Int64[Tensor, "1"]: ...

    @op
    def remember(self, tokens: Int64[Tensor, "T"], kv: KV) -> None: ...

    @op
    def scale(self, x: Int64[Tensor, "T"], by: float) -> Int64[Tensor, "T"]: ...


class Codec(Component):
    @op
    def decode(self, codes: Int64[Tensor, "28 1"]) -> Float32[Tensor, "S"]: ...

    @op
    def sound(self, codes: Int64[Tensor, "N 1"], past: Past) -> Float32[Tensor, "S"]: ...

    @op
    def one(self, token: Int64[Tensor, "1"]) -> Float32[Tensor, "S"]: ...

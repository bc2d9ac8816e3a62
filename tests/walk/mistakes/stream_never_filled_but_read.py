"""A stream is read, and nothing is ever put into it."""

from __future__ import annotations

from collections.abc import Iterator

from mstar import KV, Audio, Int64, Model, Stream, Tensor, walk, windows
from tests.walk.toy_components import LM, Codec


class Author(Model):
    def __init__(self) -> None:
        self.lm = LM()
        self.codec = Codec()

    @walk
    def speak(self, prompt: Int64[Tensor, "T"], kv: KV) -> Iterator[Audio]:
        codes = Stream("codes")
        for window in windows(codes, size=28):  # mistake
            yield Audio(self.codec.decode(window), rate=24_000)

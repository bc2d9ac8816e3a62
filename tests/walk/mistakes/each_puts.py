"""The bodies of an each fill a stream."""

from __future__ import annotations

from collections.abc import Iterator

from mstar import Audio, Int64, Model, Stream, Tensor, each, walk, windows
from tests.walk.toy_components import LM, Codec


class Author(Model):
    def __init__(self) -> None:
        self.lm = LM()
        self.codec = Codec()

    @walk
    def speak(self, prompts: list[Int64[Tensor, "T"]]) -> Iterator[Audio]:
        codes = Stream("codes")
        for prompt in each(prompts):
            codes.put(self.lm.prefill(prompt, self.lm.kv()))  # mistake
        for window in windows(codes, size=28):
            yield Audio(self.codec.decode(window), rate=24_000)

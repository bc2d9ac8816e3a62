"""stop_when is called after the loop."""

from __future__ import annotations

from collections.abc import Iterator

from mstar import KV, Int64, Model, Tensor, Text, loop, walk
from tests.walk.toy_components import LM


class Author(Model):
    def __init__(self) -> None:
        self.lm = LM()

    @walk
    def speak(self, prompt: Int64[Tensor, "T"], kv: KV) -> Iterator[Text]:
        s = loop(steps=9, token=self.lm.prefill(prompt, kv))
        for _ in s:
            s.token = self.lm.decode(s.token, kv)
        s.stop_when(self.lm.is_end(s.token))  # mistake
        yield Text(s.token)

"""A field of the request is mistyped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mstar import KV, Int64, Model, Tensor, Text, loop, walk
from tests.walk.toy_components import LM


@dataclass
class Sampling:
    max_tokens: int = 40
    temperature: float = 0.7


class Author(Model):
    def __init__(self) -> None:
        self.lm = LM()

    @walk
    def speak(self, prompt: Int64[Tensor, "T"], kv: KV, sampling: Sampling) -> Iterator[Text]:
        s = loop(steps=sampling.max_token, token=self.lm.prefill(prompt, kv))  # mistake
        for _ in s:
            s.token = self.lm.decode(s.token, kv)
        yield Text(s.token)

"""The whole request is used as a tensor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mstar import KV, Int64, Model, Tensor, Text, walk
from tests.walk.toy_components import LM


@dataclass
class Request:
    prompt: Int64[Tensor, "T"]
    limit: int


class Author(Model):
    def __init__(self) -> None:
        self.lm = LM()

    @walk
    def speak(self, request: Request, kv: KV) -> Iterator[Text]:
        yield Text(self.lm.prefill(request, kv))  # mistake

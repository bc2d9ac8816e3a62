"""A walk without any annotation."""

from __future__ import annotations

from mstar import Model, Text, walk
from tests.walk.toy_components import LM


class Author(Model):
    def __init__(self) -> None:
        self.lm = LM()

    @walk  # mistake
    def speak(self, prompt):
        yield Text(self.lm.prefill(prompt, self.lm.kv()))

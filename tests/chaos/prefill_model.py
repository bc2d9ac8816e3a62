"""A model that reads a long prompt in chunks on one worker and continues on another, with parts sent ahead."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from mstar import Component, Int64, Model, State, Tensor, Text, loop, op, ragged, walk
from mstar.walk.batching import ONE_ROW, Layout, rows

PLACEMENT = '[place]\nreader = "a"\n[walks.write]\nreader = "b"'
PROMPT_LENGTH = 1_500
"""Three chunks of the default `max_batched_tokens`."""


@dataclass(frozen=True)
class PrefillRequest:
    """Seed of the prompt, and the length of the answer."""

    seed: int
    steps: int = 20


class Notes(State):
    """All tokens read. Each chunk is sent ahead; the receiver drops it, as a full cache would."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    def export_ahead(self, to: str) -> Any:
        """What was read so far."""
        return [*self.tokens] or None


class Reader(Component):
    """Hashes what it reads."""

    @op
    def prompt(self, request: PrefillRequest) -> Int64[Tensor, "T"]:
        """A long prompt."""
        return np.random.default_rng(request.seed).integers(0, 256, PROMPT_LENGTH)

    @op(batch=ragged("T"), chunked=True)
    def read(self, tokens: Int64[Tensor, "T"], notes: Notes, layout: Layout = ONE_ROW) -> Int64[Tensor, "1"]:
        """Read tokens, and return the next one."""
        parts = np.split(np.asarray(tokens), np.cumsum(layout.lengths)[:-1])
        for each, part in zip(rows(notes), parts, strict=True):
            each.tokens += part.tolist()
        return np.array([[_next(each.tokens)] for each in rows(notes)], np.int64)


def _next(tokens: list[int]) -> int:
    return hashlib.blake2b(bytes(tokens), digest_size=1).digest()[0]


class Prefill(Model):
    """Two walks over one state, on two workers."""

    def __init__(self) -> None:
        self.reader = Reader()

    @walk
    def begin(self, request: PrefillRequest, notes: Notes) -> Int64[Tensor, "1"]:
        """Read the prompt."""
        return self.reader.read(self.reader.prompt(request), notes)

    @walk
    def write(self, first: Int64[Tensor, "1"], request: PrefillRequest, notes: Notes) -> Iterator[Text]:
        """Write the answer."""
        s = loop(steps=request.steps, token=first)
        for _ in s:
            yield Text(s.token)
            s.token = self.reader.read(s.token, notes)

    async def route(self, request: PrefillRequest) -> None:
        """Read, then write."""
        notes = self.reader.state(Notes)
        await self.write(await self.begin(request, notes), request, notes)


def requests() -> list[PrefillRequest]:
    """For an oracle."""
    return [PrefillRequest(1), PrefillRequest(2)]

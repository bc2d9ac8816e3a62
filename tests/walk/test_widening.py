"""Sizes that only an op knows may differ where values join: in carries, arms and streams."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from mstar import Component, Int64, Latents, Model, Stream, Tensor, WalkError, choose, loop, op, walk
from mstar.graph import ir
from mstar.testing.parity import parity


class Pages(Component):
    @op
    def find(self, query: int) -> Int64[Tensor, "P"]:
        return np.arange(query % 4 + 1)

    @op
    def next(self, pages: Int64[Tensor, "P"], query: int) -> Int64[Tensor, "P"]:
        return pages * 3 + query

    @op
    def both(self, a: Int64[Tensor, "P"], b: Int64[Tensor, "P"]) -> int:
        return int((a * b).sum())

    @op
    def total(self, pages: Int64[Tensor, "P"]) -> int:
        return int(pages.sum()) + len(pages)

    @op
    def is_odd(self, x: int) -> bool:
        return x % 2 == 1


class Reader(Model):
    def __init__(self) -> None:
        self.pages = Pages()

    @walk
    def carried(self, n: int) -> Iterator[Latents]:
        s = loop(steps=n, hits=self.pages.find(n))
        for step in s:
            yield Latents(self.pages.total(s.hits))
            s.hits = self.pages.find(step)
        yield Latents(self.pages.total(s.hits))

    @walk
    def kept(self, n: int) -> Iterator[Latents]:
        s = loop(steps=n, hits=self.pages.find(n))
        for step in s:
            s.hits = self.pages.next(s.hits, step)
        yield Latents(s.hits)

    @walk
    def by_turns(self, n: int) -> Iterator[Latents]:
        s = loop(steps=n, one=self.pages.find(n), other=self.pages.find(n))
        for step in s:
            s.one, s.other = s.other, self.pages.find(step)
        yield Latents(self.pages.total(s.one))

    @walk
    def chosen(self, n: int) -> Iterator[Latents]:
        hits = choose(self.pages.is_odd(n), lambda: self.pages.find(n), lambda: self.pages.find(7))
        yield Latents(self.pages.total(hits))

    @walk
    def streamed(self, n: int) -> Iterator[Latents]:
        items = Stream("items")
        items.put(self.pages.find(n))
        for step in loop(steps=n):
            items.put(self.pages.find(step))
        end = self.pages.find(2)
        for _ in loop(steps=5):
            yield Latents(self.pages.total(items.get(default=end)))

    async def route(self, request: tuple[str, int]) -> None:
        name, n = request
        await getattr(self, name)(n)


NAMES = ("carried", "kept", "by_turns", "chosen", "streamed")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [0, 1, 4])
def test_walks_with_sizes_that_differ_are_served_as_they_run(name, n):
    parity(Reader(), (name, n), schedules=3)


def types(graph):
    loops = [node for node in graph.body if isinstance(node, ir.Loop)]
    return [[str(carry.inner.type) for carry in node.carry] for node in loops]


def test_only_a_carry_that_changes_its_size_gets_one_of_its_own():
    graphs = Reader().graphs()
    assert types(graphs["kept"]) == [["int64[P#1]"]]
    ((carried,),) = types(graphs["carried"])
    assert carried not in ("int64[P#1]", "int64[P#2]")
    ((one, other),) = types(graphs["by_turns"])
    assert len({one, other, "int64[P#1]", "int64[P#2]"}) == 4


def test_a_widened_size_equals_no_other():
    class Wrong(Model):
        def __init__(self) -> None:
            self.pages = Pages()

        @walk
        def go(self, n: int) -> Iterator[Latents]:
            first = self.pages.find(n)
            s = loop(steps=n, hits=first)
            for step in s:
                yield Latents(self.pages.both(first, s.hits))
                s.hits = self.pages.find(step)

    with pytest.raises(WalkError, match=r"dimension `P` is P#1 in another argument, but P#\d in"):
        Wrong().graphs()

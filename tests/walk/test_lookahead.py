"""Lookaheads in an eager route: what commit and drop mean, and which walks and states are refused."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator

import pytest

from mstar import Component, Model, RouteError, State, Text, View, lookahead, op, walk
from mstar.testing.parity import parity


class Memory(State):
    def __init__(self) -> None:
        self.seen: list[int] = []


class Part(Component):
    def __init__(self) -> None:
        self.calls = 0

    @op
    def add(self, numbers: list[int], memory: Memory) -> int:
        self.calls += 1
        memory.seen.extend(numbers)
        return sum(memory.seen)

    @op
    def count(self, memory: View[Memory]) -> int:
        return len(memory.seen)

    @op(idempotent=False)
    def move(self, x: int) -> int:
        return x


class Routed(Model):
    """Walks, and a route that a test gives."""

    def __init__(self, route=None) -> None:
        self.part = Part()
        self.given = route

    @walk
    def add(self, numbers: list[int], memory: Memory) -> int:
        return self.part.add(numbers, memory)

    @walk
    def count(self, memory: Memory) -> int:
        return self.part.count(memory)

    @walk
    def say(self, x: int) -> Iterator[Text]:
        yield Text(x)

    @walk
    def move(self, x: int) -> int:
        return self.part.move(x)

    async def route(self, request):
        return await self.given(self, request)


async def commits_and_drops(model, numbers):
    memory = model.part.state(Memory)
    total = await model.add([1], memory)
    fork, other = memory.fork(), memory.fork()
    kept = lookahead(model.add(numbers, fork))
    dropped = lookahead(model.add([100], other))
    total += 1000 * await model.add([7], memory)
    counted = await kept.commit(), await model.count(fork), await model.count(memory)
    dropped.drop()
    dropped.drop()
    return total, *counted, await model.count(other)


# ---------------------------------------------------------------- meaning
def test_commit_gives_the_result_and_changes_the_fork_and_drop_changes_nothing():
    assert Routed(commits_and_drops).run([2, 3]).result == (8001, 6, 3, 2, 1)


def test_eager_and_local_runs_are_equal():
    parity(Routed(commits_and_drops), [2, 3], schedules=6)


def test_a_dropped_walk_never_runs():
    async def route(model, _):
        lookahead(model.add([1], model.part.state(Memory))).drop()
        lookahead(model.add([2], model.part.state(Memory)))  # dropped at the end of the route

    model = Routed(route)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.run(None)
        gc.collect()
    assert model.part.calls == 0


def test_a_state_can_be_used_again_after_commit_and_drop():
    async def route(model, _):
        memory = model.part.state(Memory)
        lookahead(model.add([5], memory)).drop()
        handle = lookahead(model.add([6], memory))
        assert await handle.commit() == 6
        return await model.add([1], memory)

    assert Routed(route).run(None).result == 7


def test_its_arguments_are_those_of_the_offer():
    async def route(model, numbers):
        handle = lookahead(model.add(numbers, model.part.state(Memory)))
        numbers.append(100)
        return await handle.commit()

    assert Routed(route).run([1]).result == 1


# ---------------------------------------------------------------- mistakes
def refusal(route):
    """What the route is told."""
    with pytest.raises(RouteError) as error:
        Routed(route).run(None)
    return str(error.value)


def test_a_walk_with_emissions_is_refused():
    async def route(model, _):
        lookahead(model.say(1))

    text = refusal(route)
    assert "lookahead walk `say` emits Text at tests/walk/test_lookahead.py:" in text
    assert "fix: return the value" in text


def test_a_walk_with_an_op_that_cannot_run_twice_is_refused():
    async def route(model, _):
        lookahead(model.move(1))

    text = refusal(route)
    assert "lookahead walk `move` calls part.move" in text
    assert "idempotent=False" in text


def test_a_state_of_an_open_lookahead_belongs_to_it():
    async def awaits(model, _):
        memory = model.part.state(Memory)
        lookahead(model.add([1], memory))
        await model.count(memory)

    async def offers(model, _):
        memory = model.part.state(Memory)
        lookahead(model.add([1], memory))
        lookahead(model.count(memory))

    for route in (awaits, offers):
        text = refusal(route)
        assert "walk `count` got a state that a lookahead of tests/walk/test_lookahead.py:" in text
        assert "has as `memory`" in text
        assert "fix: pass state.fork() to the lookahead" in text


def test_a_lookahead_is_committed_once():
    async def twice(model, _):
        handle = lookahead(model.count(model.part.state(Memory)))
        await handle.commit()
        await handle.commit()

    async def after_drop(model, _):
        handle = lookahead(model.count(model.part.state(Memory)))
        handle.drop()
        await handle.commit()

    for route in (twice, after_drop):
        assert "was committed or dropped before" in refusal(route)


def test_only_routes_offer_walks():
    model = Routed()
    with pytest.raises(RouteError, match=r"outside of a route\n  fix: call self.count\(...\).run\(\)"):
        lookahead(model.count(Memory()))


def test_a_walk_that_fails_fails_at_its_commit_only():
    async def drops(model, _):
        lookahead(model.add(["x"], model.part.state(Memory))).drop()
        return "dropped"

    async def commits(model, _):
        await lookahead(model.add(["x"], model.part.state(Memory))).commit()

    assert Routed(drops).run(None).result == "dropped"
    with pytest.raises(TypeError):
        Routed(commits).run(None)

"""Models, walks and routes run eagerly: what they give, and what they say when misused."""

from __future__ import annotations

import gc
import re
import warnings
from collections.abc import Iterator

import pytest

from mstar import KV, Component, Latents, Model, RouteError, State, Text, WalkError, WalkNotRun, loop, op, walk
from mstar.walk.model import RouteRun


class Tally(State):
    def __init__(self) -> None:
        self.seen: list[int] = []


class Part(Component):
    @op
    def double(self, x: int) -> int:
        return x * 2

    @op
    def note(self, x: int, tally: Tally) -> None:
        tally.seen.append(x)

    @op
    def seen(self, tally: Tally) -> str:
        return str(tally.seen)


class Single(Model):
    """One walk, no route."""

    def __init__(self) -> None:
        self.part = Part()

    @walk
    def count(self, steps: int, start: int = 1) -> Iterator[Text]:
        s = loop(steps=steps, x=start)
        for _ in s:
            s.x = self.part.double(s.x)
            yield Text(s.x)
        return s.x


class Routed(Single):
    """Two walks, and a route that a test gives."""

    def __init__(self, route=None) -> None:
        super().__init__()
        self.given = route

    @walk
    def note(self, x: int, tally: Tally) -> str:
        self.part.note(x, tally)
        return self.part.seen(tally)

    async def route(self, request):
        return await self.given(self, request)


class NoRoute(Single):
    @walk
    def other(self, x: int) -> int:
        return self.part.double(x)


def here(offset=0):
    """The line of the caller, as messages show it."""
    import sys

    return f"tests/walk/test_model.py:{sys._getframe(1).f_lineno + offset}"


# ---------------------------------------------------------------- walks
def test_a_walk_is_iterated_for_its_emissions():
    assert [emission.value for emission in Single().count(3)] == [2, 4, 8]


def test_a_walk_is_run_for_its_result():
    call = Single().count(2, start=5)
    assert call.run() == 20
    assert [emission.value for emission in call.emissions] == [10, 20]
    assert call.arguments == {"steps": 2, "start": 5}
    assert NoRoute().other(4).run() == 8


def test_a_call_binds_its_arguments_at_once():
    with pytest.raises(TypeError, match="missing a required argument: 'steps'"):
        Single().count()


def test_a_dropped_call_warns_with_the_line_that_made_it():
    line = here(2)
    with pytest.warns(WalkNotRun) as caught:
        Single().count(3)
    assert [str(one.message) for one in caught] == [
        f"{line}: walk `count` was called but never run\n"
        "  fix: await self.count(...) in a route; elsewhere iterate over it or call .run()"
    ]


def test_a_call_that_was_started_does_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        next(iter(Single().count(3)))
        Single().count(0).run()
        gc.collect()


def test_emissions_are_compared_by_identity():
    assert Text(1) != Text(1)
    assert Latents(3).clock == ()


# ---------------------------------------------------------------- routes
def test_a_model_with_one_walk_needs_no_route():
    outcome = Single().run({"steps": 2})
    assert [emission.value for emission in outcome.emissions] == [2, 4]
    assert outcome.result == 4


@pytest.mark.parametrize("request_", [{"steps": 1}, 7])
def test_without_a_route_two_walks_cannot_be_chosen_from(request_):
    with pytest.raises(RouteError) as caught:
        NoRoute().run(request_)
    assert str(caught.value) == (
        "NoRoute has no route to choose between its walks `count`, `other`\n"
        "  fix: async def route(self, request): await self.count(...)"
    )


def test_without_a_route_a_request_is_a_mapping():
    with pytest.raises(RouteError, match=re.escape("Single has no route to choose between its walks `count`")):
        Single().run(7)


def test_a_model_without_walks_says_so():
    with pytest.raises(RouteError, match=re.escape("Model has no route to choose between its walks nothing")):
        Model().run({})


def run(route, request=None):
    return Routed(route).run(request)


def test_a_route_awaits_walks_and_branches_on_what_they_give():
    async def route(self, request):
        first = await self.count(request)
        if first > 4:
            first = await self.count(1, start=first)
        return first

    outcome = run(route, 3)
    assert [emission.value for emission in outcome.emissions] == [2, 4, 8, 16]
    assert outcome.result == 16
    assert run(route, 1).result == 2


def test_a_route_keeps_states_between_walks():
    async def route(self, request):
        tally = self.part.state(Tally)
        await self.note(1, tally)
        other = tally.fork()
        await self.note(2, tally)
        return await self.note(3, other), await self.note(4, tally)

    assert run(route).result == ("[1, 3]", "[1, 2, 4]")


def test_one_state_is_not_given_twice():
    class Two(Single):
        @walk
        def both(self, one: Tally, two: Tally) -> None:
            self.part.note(1, one)
            self.part.note(2, two)

    tally = Tally()
    with pytest.raises(RouteError) as caught:
        Two().both(tally, tally)
    assert str(caught.value) == (
        f"{here(-2)}: walk `both` got one state for two inputs\n  fix: pass state.fork() for one of them"
    )
    assert Two().both(tally, tally.fork()).run() is None


def test_a_route_that_drops_a_walk():
    async def route(self, request):
        self.count(3)

    with pytest.raises(RouteError) as caught:
        run(route)
    line = f"tests/walk/test_model.py:{route.__code__.co_firstlineno + 1}"
    assert str(caught.value) == (
        f"{line}: the route called walk `count` but did not await it\n  fix: await self.count(...)"
    )


def test_a_route_may_await_a_walk_later():
    async def route(self, request):
        later = self.count(1)
        await self.count(2)
        return await later

    assert [emission.value for emission in run(route).emissions] == [2, 4, 2]


def test_a_route_that_iterates_a_walk():
    async def route(self, request):
        return [emission.value for emission in self.count(3)]

    with pytest.raises(RouteError) as caught:
        run(route)
    line = f"tests/walk/test_model.py:{route.__code__.co_firstlineno + 1}"
    assert str(caught.value) == f"{line}: a route iterated walk `count`\n  fix: await self.count(...)"


class Foreign:
    def __await__(self):
        yield 5


def test_a_route_that_awaits_something_else():
    async def route(self, request):
        await Foreign()

    with pytest.raises(RouteError) as caught:
        run(route)
    fix = "await only walks and self.next_input()"
    assert str(caught.value) == f"a route awaited a int\n  fix: {fix}"


def test_a_route_that_calls_an_op():
    async def route(self, request):
        return self.part.double(3)

    with pytest.raises(RouteError) as caught:
        run(route)
    line = f"tests/walk/test_model.py:{route.__code__.co_firstlineno + 1}"
    assert str(caught.value) == (
        f"{line}: the route called the op part.double\n"
        "  fix: call the op inside a walk, and await that walk; ops run on workers"
    )


def test_a_route_is_driven_from_outside():
    async def route(self, request):
        return await self.count(1) + await self.count(2)

    made = []
    drive = RouteRun(Routed(route), None, lambda component, kind: made.append((component.name, kind)))
    first = drive.advance(None)
    assert (first.name, first.arguments) == ("count", {"steps": 1, "start": 1})
    second = drive.advance(10)
    assert second.arguments["steps"] == 2
    assert not drive.is_done
    assert drive.advance(5) is None
    assert (drive.is_done, drive.result, made) == (True, 15, [])


def test_a_route_makes_states_where_its_driver_says():
    async def route(self, request):
        return self.part.kv(), self.part.state(Tally)

    drive = RouteRun(Routed(route), None, lambda component, kind: (component.name, kind))
    drive.advance(None)
    assert drive.result == (("part", KV), ("part", Tally))


def test_an_error_in_a_route_is_the_authors():
    async def route(self, request):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run(route)


# ---------------------------------------------------------------- components of a model
def test_components_are_named_by_their_attribute():
    model = Single()
    assert {name: part.name for name, part in model.components().items()} == {"part": "part"}
    model.part = model.part
    with pytest.raises(
        ValueError, match="this component is already the attribute `part`\n  fix: create another component for `again`"
    ):
        model.again = model.part


def test_walks_are_in_the_order_they_were_written():
    assert list(Routed.walks()) == ["count", "note"]
    assert Single.walks()["count"].__name__ == "count"


def test_a_walk_may_be_overridden():
    class Other(Single):
        @walk
        def count(self, steps: int) -> int:
            return self.part.double(steps)

    assert list(Other.walks()) == ["count"]
    assert Other().count(4).run() == 8


def test_what_a_model_does_not_have():
    with pytest.raises(AttributeError, match=re.escape("Single has no attribute 'prt' (did you mean `part`?)")):
        Single().prt  # noqa: B018
    expected = "Part has no attribute 'dubble' (did you mean `double`?); its ops are `double`, `note`, `seen`"
    with pytest.raises(AttributeError, match=re.escape(expected)):
        Single().part.dubble  # noqa: B018


def test_state_kinds_are_those_of_the_ops():
    assert Part.state_kinds() == {"KV": KV, "Tally": Tally}
    assert isinstance(Part().kv(), KV)
    assert Part().state(Tally).seen == []


def test_graphs_are_by_name():
    assert list(NoRoute().graphs()) == ["count", "other"]


def test_a_walk_error_holds_its_problems():
    class Wrong(Model):
        @walk
        def speak(self, x: int) -> int:
            return x + 1

    with pytest.raises(WalkError) as caught:
        Wrong().graphs()
    (problem,) = caught.value.problems
    assert caught.value.subject == "Wrong"
    assert str(caught.value) == f"Wrong: 1 problem\n{problem}"

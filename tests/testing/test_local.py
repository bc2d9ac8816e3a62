"""LocalRuntime: batches across requests, a schedule that a seed repeats, states that a route holds, and being stuck."""

from collections import Counter
from collections.abc import Iterator

import pytest

from mstar import Latents, Model, RouteError, Stream, loop, walk
from mstar.testing.local_runtime import DeadlockError, LocalRuntime
from mstar.testing.parity import first_difference, parity
from mstar.walk.tracer import trace
from tests.plan.plan_harness import IntOps, Memory, example, make_placement


def batches(name, copies=3, **options):
    """What ran when several copies of an example's requests are served at once."""
    model, requests = example(name)
    runtime = LocalRuntime(model, **options)
    runtime.run_all(requests * copies)
    return runtime.batches


class StateRoutes(Model):
    """States that a route makes, forks, passes on and gets back."""

    def __init__(self):
        self.a = IntOps()

    @walk
    def note(self, x: int, memory: Memory) -> None:
        self.a.note(x, memory)

    @walk
    def look(self, memory: Memory) -> list[int]:
        return self.a.recall(memory)

    @walk
    def make(self, x: int) -> Memory:
        memory = self.a.state(Memory)
        self.a.note(x, memory)
        return memory

    @walk
    def give(self, x: int, memory: Memory) -> Memory:
        self.a.note(x, memory)
        return memory

    @walk
    def both(self, one: Memory, two: Memory) -> tuple[list[int], list[int]]:
        self.a.note(1, one)
        self.a.note(2, two)
        return self.a.recall(one), self.a.recall(two)

    @walk
    def same(self, x: int) -> int:
        return x

    @walk
    def seen_and_total(self, memory: Memory) -> tuple[list[int], int]:
        return self.a.recall(memory), self.a.tell(1, memory)

    async def route(self, request):
        return await getattr(self, f"about_{request}")(self.a.state(Memory))

    async def about_forks(self, memory):
        await self.note(1, memory)
        other = memory.fork()
        await self.note(2, memory)
        await self.note(3, other)
        return await self.look(memory), await self.look(other)

    async def about_made(self, memory):
        made = await self.make(4)
        await self.note(5, made)
        return await self.look(made)

    async def about_given(self, memory):
        given = await self.give(1, memory)
        await self.note(2, memory)
        return await self.look(given)

    async def about_twice(self, memory):
        return await self.both(memory, memory)

    async def about_little(self, memory):
        """Walks that end as they start, before and after one that does not."""
        first = await self.same(await self.same(7))
        await self.note(first, memory)
        return await self.same(first), await self.look(memory)

    async def about_apart(self, memory):
        return await self.seen_and_total(memory), await self.look(memory)

    async def about_nothing(self, memory):
        return "nothing"


# ---------------------------------------------------------------- batches
def test_calls_of_different_requests_share_batches():
    sizes = Counter(size for name, size in batches("orpheus") if name == "lm.decode")
    assert max(sizes) > 1


def test_calls_inside_one_request_share_batches():
    model, requests = example("bagel")
    runtime = LocalRuntime(model, seed=1)
    runtime.run(requests[0])
    assert max(size for name, size in runtime.batches if name == "lm.flow") > 1


@pytest.mark.parametrize("largest", [1, 2, 3])
def test_no_batch_is_larger_than_allowed(largest):
    ran = batches("longform_asr", max_batch_size=largest)
    assert max(size for _, size in ran) == largest


def test_every_call_runs_once_however_it_is_batched():
    def calls(**options):
        total = Counter()
        for name, size in batches("rag", 2, **options):
            total[name] += size
        return total

    assert calls(seed=0) == calls(seed=5, max_batch_size=2) == calls(seed=9, min_stream_buffers=True)


def test_a_batch_is_named_by_its_key():
    class Times(Model):
        def __init__(self):
            self.a = IntOps()

        @walk
        def go(self, x: int) -> tuple[int, int]:
            return self.a.times(x, by=2), self.a.times(x, by=3)

    runtime = LocalRuntime(Times())
    assert [outcome.result for outcome in runtime.run_all([{"x": 1}, {"x": 5}])] == [(2, 3), (10, 15)]
    total = Counter()
    for name, size in runtime.batches:
        total[name] += size
    assert total == {"a.times[by=2]": 2, "a.times[by=3]": 2}


# ---------------------------------------------------------------- schedules
@pytest.mark.parametrize("name", ["orpheus", "vjepa2_ac"])
def test_the_same_seed_gives_the_same_schedule(name):
    assert batches(name, 2, seed=3) == batches(name, 2, seed=3)


def test_different_seeds_give_different_schedules():
    assert len({tuple(batches("rag", 2, seed=seed)) for seed in range(4)}) == 4


def test_a_schedule_does_not_change_what_is_served():
    model, requests = example("orpheus")
    placement = make_placement(lm="w0", lm_prefill="w1", snac=["w1", "w2"])
    first = LocalRuntime(model, placement, seed=0).run_all(requests)
    other = LocalRuntime(model, placement, seed=8, min_stream_buffers=True).run_all(requests)
    assert [first_difference(one, two) for one, two in zip(first, other, strict=True)] == [None] * len(requests)


def test_a_runtime_serves_again():
    model, requests = example("noop")
    runtime = LocalRuntime(model)
    assert first_difference(runtime.run(requests[0]), runtime.run(requests[0])) is None


def test_no_requests_are_served_at_once():
    model, _ = example("noop")
    assert LocalRuntime(model).run_all([]) == []


# ---------------------------------------------------------------- states that a route holds
@pytest.mark.parametrize(
    ("about", "result"),
    [("forks", ([1, 2], [1, 3])), ("made", [4, 5]), ("little", (7, [7])), ("nothing", "nothing")],
)
def test_a_route_holds_states(about, result):
    assert LocalRuntime(StateRoutes()).run(about).result == result
    parity(StateRoutes(), about, schedules=4)


def test_workers_do_not_share_the_state_that_a_route_gives_them():
    """One reads it while the other changes it: each has its own."""
    placement = make_placement(a="w0", a_recall="w1")
    results = [LocalRuntime(StateRoutes(), placement, seed=seed).run("apart").result for seed in range(12)]
    assert results == [(([], 1), [1])] * 12


def test_a_state_that_comes_back_is_the_one_that_went_in():
    parity(StateRoutes(), "given", schedules=1)


def test_one_state_for_two_parameters_is_refused():
    with pytest.raises(RouteError, match="one state for two inputs"):
        LocalRuntime(StateRoutes()).run("twice")
    with pytest.raises(RouteError, match="one state for two inputs"):
        StateRoutes().run("twice")


# ---------------------------------------------------------------- being stuck
class SelfWaiting(Model):
    """A walk that the tracer refuses: it reads a stream only when the loop that fills it has ended."""

    def __init__(self):
        self.a = IntOps()

    @walk
    def go(self, n: int) -> Iterator[Latents]:
        items = Stream("items")
        s = loop(steps=n, x=0)
        for _ in s:
            s.x = self.a.inc(s.x)
            items.put(s.x)
        t = loop(steps=n, x=s.x)
        for _ in t:
            t.x = self.a.add(t.x, items.get(default=n))
        yield Latents(t.x)

    def graphs(self):
        graph, problems = trace(self.walks()["go"], self)
        assert len(problems) == 1
        assert "needs %x.2, the result of the code that fills it" in problems[0].message
        return {"go": graph}


def test_a_walk_that_waits_for_itself_is_stuck():
    with pytest.raises(DeadlockError, match=r"^nothing can run in walks \['go'\]$"):
        LocalRuntime(SelfWaiting(), min_stream_buffers=True).run({"n": 3})


def test_it_is_not_stuck_while_the_stream_has_room():
    assert first_difference(SelfWaiting().run({"n": 3}), LocalRuntime(SelfWaiting()).run({"n": 3})) is None

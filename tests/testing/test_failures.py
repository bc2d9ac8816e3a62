"""A request that fails does so alone: as it fails eagerly, while all others are served as they run."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mstar import Component, Int64, Latents, Model, Outcome, ParityError, Stream, Tensor, each, loop, op, walk, windows
from mstar.errors import BadShape, NotFinite
from mstar.testing.local_runtime import LocalRuntime
from mstar.testing.parity import first_difference, parity_all
from tests.engine.toy_components import (
    FAILS_IN_BATCH,
    GIVES_NAN,
    NAMES_ROW,
    POISON,
    STYLES,
    FailingOps,
    NumberLog,
    PagedComponent,
    PagedLog,
    Poison,
    int_array,
)
from tests.plan.plan_harness import IntOps, make_placement


class FaultInjector(Component):
    """Slips something into what is read."""

    @op
    def inject(self, x: Int64[Tensor, "T"], dose: int, step: int, when: int) -> Int64[Tensor, "T"]:
        return np.concatenate([x[:-1], [dose]]) if step == when else x


class FaultyReader(Model):
    """Reads the same numbers again and again into its notes; one step may be dosed."""

    def __init__(self, style):
        self.part = FailingOps()
        self.dose = FaultInjector()
        self.style = style

    @walk
    def go(self, x: Int64[Tensor, "T"], steps: int, dose: int, when: int) -> Iterator[Latents]:
        notes = self.part.state(NumberLog)
        s = loop(steps=steps)
        for step in s:
            yield Latents(getattr(self.part, self.style)(self.dose.inject(x, dose, step, when), notes))


def request(*x, steps=4, dose=0, when=-1):
    return {"x": int_array(*x), "steps": steps, "dose": dose, "when": when}


def eager(model, wanted):
    try:
        return model.run(wanted)
    except Exception as error:  # noqa: BLE001 - to be compared
        return Outcome([], error=error)


def check(model, requests, **how):
    """Serve requests at once; each must end as it does eagerly."""
    outcomes = LocalRuntime(model, **how).run_all(requests)
    for wanted, outcome in zip(requests, outcomes, strict=True):
        assert first_difference(eager(model, wanted), outcome) is None
    return outcomes


GOOD = [request(number, 2 * number, steps=2 + number) for number in range(7)]


# ---------------------------------------------------------------- one of eight
@pytest.mark.parametrize("when", [0, 2])
@pytest.mark.parametrize(("dose", "error"), [(POISON, Poison), (NAMES_ROW, Poison), (GIVES_NAN, NotFinite)])
@pytest.mark.parametrize("style", STYLES)
def test_a_poisonous_request_among_seven_good_ones(style, dose, error, when):
    for seed in range(3):
        outcomes = check(FaultyReader(style), [*GOOD[:3], request(5, 5, dose=dose, when=when), *GOOD[3:]], seed=seed)
        assert [type(outcome.error) for outcome in outcomes] == [type(None)] * 3 + [error] + [type(None)] * 4
        assert (outcomes[3].emissions, outcomes[3].result) == ([], None)


@pytest.mark.parametrize("style", STYLES[1:])
def test_a_request_of_a_bad_shape(style):
    bad = GOOD[0] | {"x": np.zeros((2, 2), np.int64)}
    outcomes = check(FaultyReader(style), [GOOD[1], bad, GOOD[2]])
    assert isinstance(outcomes[1].error, BadShape)


FAULTS = st.sampled_from([0, 0, POISON, NAMES_ROW, GIVES_NAN, FAILS_IN_BATCH])
REQUESTS = st.builds(
    lambda x, steps, dose, when: request(*x, steps=steps, dose=dose, when=when),
    st.lists(st.integers(1, 9), min_size=1, max_size=3),
    st.integers(0, 4),
    FAULTS,
    st.integers(0, 3),
)


@settings(max_examples=30, deadline=None)
@given(st.lists(REQUESTS, max_size=8), st.sampled_from(STYLES), st.integers(0, 1 << 30), st.integers(1, 8))
def test_whatever_fails_every_request_ends_as_it_does_alone(requests, style, seed, largest):
    check(FaultyReader(style), requests, seed=seed, max_batch_size=largest)


# ---------------------------------------------------------------- what a failed request leaves
class Wide(Model):
    """Calls side by side, a stream and two workers: much is on its way when one call fails."""

    def __init__(self, pages=32):
        self.a = IntOps()
        self.paged = PagedComponent(pages)

    @walk
    def go(self, xs: list[int], x: Int64[Tensor, "T"]) -> Iterator[Latents]:
        notes = self.paged.state(PagedLog)
        items = Stream("items")
        s = loop(steps=5, y=self.a.fold(xs))
        for _ in s:
            items.put(s.y)
            s.y = self.a.inc(s.y)
        for window in windows(items, size=2, stride=1):
            yield Latents(self.a.fold(window))
        e = each(xs)
        for item in e:
            own = notes.fork()
            _, read, _ = self.paged.read(x, own)
            e.collect(read=read, item=self.a.inc(item))
        yield Latents(self.a.fold(e.item))


SPREAD = make_placement(a="w0", a_fold="w1", paged=["w0", "w2"])


@pytest.mark.parametrize("seed", range(6))
def test_nothing_of_a_failed_request_is_left(seed):
    model = Wide()
    good, bad = {"xs": [1, 2, 3], "x": int_array(4, 5)}, {"xs": [1, 2, 3], "x": int_array(4, POISON)}
    wanted = model.run(good)
    gc.disable()  # a state in a cycle would be freed some time, and its pages with it: too late for the others
    try:
        runtime = LocalRuntime(model, SPREAD, seed=seed, min_stream_buffers=True, max_batched_tokens=3)
        outcomes = runtime.run_all([bad, good, bad, good])
        assert model.paged.pool.free_pages == 32
    finally:
        gc.enable()
    assert [isinstance(outcome.error, Poison) for outcome in outcomes] == [True, False, True, False]
    assert first_difference(wanted, outcomes[1]) is first_difference(wanted, outcomes[3]) is None
    assert not any(runtime._ready.values())
    assert not runtime._partial_jobs
    assert first_difference(wanted, runtime.run(good)) is None


class LateFailure(Component):
    @op
    def same(self, x: Int64[Tensor, "T"], dose: int) -> Int64[Tensor, "T"]:
        if dose:
            raise Poison("too late")
        return x


class WaitsForFailure(Model):
    """A state at one worker waits for what fails at another."""

    def __init__(self):
        self.paged = PagedComponent(8)
        self.late = LateFailure()

    @walk
    def go(self, x: Int64[Tensor, "T"], dose: int) -> Int64[Tensor, "T"]:
        notes = self.paged.state(PagedLog)
        self.paged.read(x, notes)
        _, read, _ = self.paged.read(self.late.same(x, dose), notes)
        return read


@pytest.mark.parametrize("seed", range(6))
def test_a_state_that_waits_for_what_fails_elsewhere_is_freed(seed):
    model = WaitsForFailure()
    gc.disable()
    try:
        runtime = LocalRuntime(model, make_placement(paged="w0", late="w1"), seed=seed)
        outcome = runtime.run({"x": int_array(1, 2), "dose": 1})
        assert model.paged.pool.free_pages == 8
    finally:
        gc.enable()
    assert isinstance(outcome.error, Poison)


class Routed(FaultyReader):
    """Two walks one after the other, with a third called early."""

    def __init__(self):
        super().__init__("stack")
        self.ended = []

    async def route(self, doses):
        third = self.go(**request(3))
        try:
            await self.go(**request(1, dose=doses[0], when=0))
            await self.go(**request(2, dose=doses[1], when=1))
            return await third
        finally:
            self.ended.append(doses)


@pytest.mark.parametrize("doses", [(0, 0), (POISON, 0), (0, POISON)])
def test_a_route_ends_with_its_walk(doses):
    model = Routed()
    served, other = LocalRuntime(model).run_all([doses, (0, 0)])
    assert model.ended == [doses, (0, 0)], "as soon as the walk has failed, not when all is over"
    assert other.error is None
    assert len(other.emissions) == 12
    failed = next((number for number, dose in enumerate(doses) if dose), 3)
    assert len(served.emissions) == 4 * failed, "what walks emitted that had ended"
    assert isinstance(served.error, Poison) is any(doses)


# ---------------------------------------------------------------- memory and pieces
class PagedReader(Model):
    """Reads a prompt, then what it gave, token by token."""

    def __init__(self, pages):
        self.paged = PagedComponent(pages)

    @walk
    def go(self, x: Int64[Tensor, "T"], steps: int) -> Iterator[Latents]:
        notes = self.paged.state(PagedLog)
        token, read, _ = self.paged.read(x, notes)
        yield Latents(read)
        s = loop(steps=steps, token=token)
        for _ in s:
            s.token, _, _ = self.paged.read(s.token, notes)
            yield Latents(s.token)


PROMPTS = [{"x": np.arange(length), "steps": 3} for length in (1, 9, 4, 0, 12, 2, 7, 5)]


def test_requests_that_want_more_memory_than_there_is_are_all_served():
    model = PagedReader(pages=8)
    needed = sum(-(-(len(prompt["x"]) + 3) // 2) for prompt in PROMPTS)
    assert needed >= 2 * 8
    parity_all(model, PROMPTS, schedules=6)
    assert model.paged.pool.free_pages == 8
    assert model.paged.evicted, "some had to leave"


def test_a_request_that_never_fits_fails_alone():
    model = PagedReader(pages=8)
    outcomes = LocalRuntime(model).run_all([*PROMPTS[:3], {"x": np.arange(17), "steps": 1}])
    assert [type(outcome.error).__name__ for outcome in outcomes] == ["NoneType"] * 3 + ["OutOfPages"]


def test_a_budget_holds():
    model = PagedReader(pages=64)
    wanted = [model.run(prompt) for prompt in PROMPTS]
    model.paged.batch_positions.clear()
    outcomes = LocalRuntime(model, max_batched_tokens=4).run_all(PROMPTS)
    assert [first_difference(want, outcome) for want, outcome in zip(wanted, outcomes, strict=True)] == [None] * 8
    assert max(model.paged.batch_positions) == 4


# ---------------------------------------------------------------- parity
def test_parity_compares_failures_and_then_raises_the_eager_one():
    with pytest.raises(Poison, match=r"^-1 was read$"):
        parity_all(FaultyReader("rag"), [*GOOD, request(1, 2, dose=POISON, when=1)])


class FlakyOp(Component):
    """Fails every third call, for any request."""

    count = 0

    @op
    def run(self, x: int) -> int:
        self.count += 1
        if self.count % 3 == 0:
            raise Poison("called too often")
        return x


class FlakyModel(Model):
    def __init__(self):
        self.moody = FlakyOp()

    @walk
    def go(self, x: int) -> int:
        return self.moody.run(x)


def test_parity_finds_what_fails_only_when_served_and_what_does_not():
    what = r"request 0 of FlakyModel: served error Poison\('called too often'\), eager error None"
    with pytest.raises(ParityError, match=what):
        parity_all(FlakyModel(), [{"x": 1}, {"x": 2}])
    asks = FlakyModel()
    asks.moody.count = 2
    with pytest.raises(ParityError, match=r"request 0 of FlakyModel: served error None, eager error Poison"):
        parity_all(asks, [{"x": 1}])


def test_failures_that_differ():
    one, other = Outcome([], error=Poison("a")), Outcome([], error=Poison("b"))
    assert first_difference(one, Outcome([], error=Poison("a"))) is None
    assert first_difference(one, other) == "served error Poison('b'), eager error Poison('a')"
    assert first_difference(one, Outcome([], error=ValueError("a"))) is not None

"""Rehearsals: real cores, virtual time, and costs out of a book."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, cast

import numpy as np
import pytest

from mstar.config import Options
from mstar.engine.jobs import UNFINISHED, Done, Job
from mstar.plan.compile import plan
from mstar.plan.deployment import Deployed
from mstar.plan.placement import Entry, Placement
from mstar.plan.tables import BatchKey
from mstar.sim.book import Book, ByBook, NotRecorded, everything, record, rehearse
from mstar.sim.rehearsal import HOP, Rehearsal
from mstar.walk.batching import ONE_ROW, Layout, ragged, rows, stacked
from mstar.walk.component import Component, op
from mstar.walk.control import loop
from mstar.walk.emissions import Audio
from mstar.walk.model import Model, walk
from mstar.walk.states import State
from mstar.walk.types import Float32, Int64, Tensor
from mstar.wire.pace import Pace
from mstar.worker.commands import Batch, Ran, StateRef
from mstar.worker.costs import Costs
from mstar.worker.order import Able, Chosen
from tests.examples.test_examples import NAMES, load, model_of

RATE = 100


@dataclass
class Coming:
    at: float
    ask: Any
    model: str = "model"
    pace: Pace = field(default_factory=Pace)


class Past(State):
    def __init__(self) -> None:
        self.said: list[int] = []

    def fork(self) -> Past:
        copy = Past()
        copy.said = [*self.said]
        return copy


class Teller(Component):
    """Makes one number of the numbers before."""

    @op
    def read(self, seed: int, past: Past) -> Int64[Tensor, "1"]:
        past.said.append(seed)
        return cast("Any", np.array([seed], np.int64))

    @op(batch=stacked)
    def tell(self, number: Int64[Tensor, "1"], past: Past) -> Int64[Tensor, "1"]:
        time.sleep(0.002)  # as long for many as for one
        for one, each in zip(number, rows(past), strict=True):
            each.said.append(int(one[0]))
        return cast("Any", np.array([[sum(each.said) % 97] for each in rows(past)], np.int64))


class Horn(Component):
    """Sounds for as many hundredths of a second as a number says."""

    @op
    def blow(self, number: Int64[Tensor, "1"]) -> Float32[Tensor, "S"]:
        time.sleep(0.001 if number[0] % 2 else 0.003)
        return cast("Any", np.zeros(1 + int(number[0]), np.float32))


class Signals(Model):
    def __init__(self) -> None:
        self.teller, self.horn = Teller(), Horn()

    @walk
    def signal(self, seed: int, steps: int) -> Iterator[Audio]:
        past = self.teller.state(Past)
        s = loop(steps=steps, number=self.teller.read(seed, past))
        for _ in s:
            s.number = self.teller.tell(s.number, past)
            yield Audio(self.horn.blow(s.number), rate=RATE)


TELL, BLOW = BatchKey("teller", "tell"), BatchKey("horn", "blow")


@pytest.fixture(scope="module")
def model() -> Signals:
    return Signals()


@pytest.fixture(scope="module")
def book(model: Signals) -> Book:
    return record(model, [{"seed": 3, "steps": 4}, {"seed": 8, "steps": 4}])


@pytest.fixture
def even(book: Book) -> Book:
    """The same calls, and each takes a hundredth of a second, whoever is there."""
    return replace(book, seconds=dict.fromkeys(book.seconds, 0.01), crowds=Costs())


def deployed(model: Model, placement: Placement | None = None) -> dict[str, Deployed]:
    return {"model": Deployed(model, plan(model.graphs(), placement))}


def lengths(seed: int, steps: int) -> list[float]:
    """For how long each signal sounds, by the arithmetic of the teller."""
    said, number, found = [seed], seed, []
    for _ in range(steps):
        said.append(number)
        number = sum(said) % 97
        found.append((1 + number) / RATE)
    return found


def test_a_recorded_ask_gives_what_it_gave(model: Signals, book: Book):
    (receipt,) = rehearse(deployed(model), {"model": book}, [Coming(0.0, {"seed": 8, "steps": 4})])
    assert receipt.status == "ok"
    assert [seconds for _, seconds in receipt.chunks] == lengths(8, 4)


def test_time_passes_as_the_book_says(model: Signals, even: Book):
    arrivals = [Coming(1.0, {"seed": 3, "steps": 4})]
    (receipt,) = rehearse(deployed(model), {"model": even}, arrivals, hop_s=0.001)
    # to the conductor, to the worker, and back to the client; a call to read and two for each signal, each reported
    assert [at for at, _ in receipt.chunks] == pytest.approx([1.003 + 0.011 * calls for calls in (3, 5, 7, 9)])
    assert receipt.ended == pytest.approx(1.003 + 0.099 + 0.001)  # its conductor has heard of it too


def test_an_engine_runs_one_batch_after_the_other(model: Signals, even: Book):
    arrivals = [Coming(0.0, {"seed": 3, "steps": 4}) for _ in range(5)]
    receipts = rehearse(deployed(model), {"model": even}, arrivals)
    assert 5 * 0.09 < max(receipt.ended for receipt in receipts) <= 5 * 0.09 + (45 + 4) * HOP
    everywhere = Entry(tuple(f"w{i}" for i in range(5)))
    spread = Placement({"teller": everywhere, "horn": everywhere})
    receipts = rehearse(deployed(model, spread), {"model": even}, arrivals)
    assert [receipt.ended for receipt in receipts] == pytest.approx([0.09 + (9 + 4) * HOP] * 5)


def test_who_shares_a_batch_takes_less_time(even: Book):
    """As much less as crowds have shown; between two sizes of crowds, something between."""
    even.crowds.learn((str(TELL), 0), 1, 1.0)
    even.crowds.learn((str(TELL), 0), 5, 2.0)
    tell, blow = (next(call for call in even.seconds if call[0] == key) for key in (TELL, BLOW))
    assert [even.time([tell] * count) for count in (1, 3, 5)] == pytest.approx([0.01, 0.015, 0.02])
    assert [even.time([blow] * count) for count in (1, 3, 5)] == pytest.approx([0.01, 0.03, 0.05])


def test_states_move_and_are_let_go(model: Signals, even: Book):
    placement = Placement({"teller.read": Entry(("a",)), "teller.tell": Entry(("b",)), "horn": Entry(("c",))})
    engines: list[ByBook] = []

    def engine() -> ByBook:
        engines.append(ByBook({"model": even}))
        return engines[-1]

    seeds = [3, 8] * 10
    arrivals = [Coming(0.01 * i, {"seed": seed, "steps": 4}) for i, seed in enumerate(seeds)]
    receipts = Rehearsal(deployed(model, placement), engine).play(arrivals)
    assert [[seconds for _, seconds in one.chunks] for one in receipts] == [lengths(seed, 4) for seed in seeds]
    assert [engine.states for engine in engines] == [{}, {}, {}]


def test_the_same_traffic_gives_the_same(model: Signals, even: Book):
    def receipts() -> list[Any]:
        arrivals = [Coming(0.03 * i, {"seed": (3, 8)[i % 3 % 2], "steps": 4}) for i in range(30)]
        return [(one.chunks, one.ended) for one in rehearse(deployed(model), {"model": even}, arrivals)]

    assert receipts() == receipts()


def test_who_is_refused_is_told_when_to_come_back(model: Signals, even: Book):
    arrivals = [Coming(0.0, {"seed": 3, "steps": 4}) for _ in range(3)]
    options = Options(max_live=1, queue_bound=1)
    *_, receipt = rehearse(deployed(model), {"model": even}, arrivals, options=options)
    assert (receipt.status, receipt.chunks) == ("429", [])
    assert receipt.retry_after > 0
    assert receipt.ended == pytest.approx(2 * HOP)


class LastCome:
    """Whoever came last goes first."""

    def choose(self, now: float, able: Able, costs: Costs, most: Any) -> Chosen:
        key = max(able, key=lambda key: max(waiter.tour.number for waiter in able[key]))
        return key, [max(able[key], key=lambda waiter: waiter.tour.number)]


def test_another_rule_gives_another_order(model: Signals, even: Book):
    arrivals = [Coming(0.001 * i, {"seed": 3, "steps": 4}) for i in range(4)]
    receipts = rehearse(deployed(model), {"model": even}, arrivals, order=LastCome())
    ends = [receipt.ended for receipt in receipts]
    assert ends[1:] == sorted(ends[1:], reverse=True)  # the first one was alone when it began


def test_what_was_not_recorded_is_named(model: Signals, even: Book):
    arrivals = [Coming(0.0, {"seed": 4, "steps": 4})]
    with pytest.raises(NotRecorded, match=r"teller\.read was not recorded with .*\n  fix: record an ask"):
        rehearse(deployed(model), {"model": even}, arrivals)


def test_a_call_of_which_nothing_is_written_down_is_run(model: Signals, even: Book):
    """As long a time as its op usually takes passes; it must not need a state."""

    def matters(op: str, arguments: Mapping[str, Any]) -> Hashable | None:
        return None if op == "horn.blow" else everything(op, arguments)

    book = replace(even, matters=matters, usual={BLOW: 0.1})
    (receipt,) = rehearse(deployed(model), {"model": book}, [Coming(0.0, {"seed": 8, "steps": 2})])
    assert [seconds for _, seconds in receipt.chunks] == lengths(8, 2)
    assert receipt.chunks[-1][0] == pytest.approx(3 * 0.01 + 2 * 0.1 + (5 + 3) * HOP)
    with pytest.raises(NotRecorded, match=r"teller\.read uses a state"):
        rehearse(
            deployed(model), {"model": replace(even, matters=lambda *_: None)}, [Coming(0.0, {"seed": 8, "steps": 2})]
        )


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", NAMES)
def test_an_example_gives_as_much_as_when_it_is_run(name: str):
    """Twenty times at once, and with whatever walks, states and streams it has."""
    module = load(name)
    model, asks = model_of(module), module.requests()
    receipts = rehearse(deployed(model), {"model": record(model, asks)}, [Coming(0.0, ask) for ask in asks * 20])
    counts = [len(model_of(module).run(ask).emissions) for ask in asks]
    assert {receipt.status for receipt in receipts} == {"ok"}
    assert [len(receipt.chunks) for receipt in receipts] == counts * 20


class Reader(Component):
    @op(batch=ragged("T"), in_pieces=True)
    def read(self, text: Int64[Tensor, "T"], past: Past, layout: Layout = ONE_ROW) -> None: ...


def test_a_long_call_is_run_in_pieces():
    """As far as its batch is allowed to, and no further than the budget lets it."""
    key, reader = BatchKey("reader", "read"), Reader()
    call = (key, "long", (7,))
    book = Book({key: (reader, reader.ops()["read"])}, lambda *_: "long", {call: ()}, {call: 0.1})
    job = Job({"text": np.zeros(100, np.int64), "past": StateRef(1, [])})
    engine = ByBook({"model": book}, token_budget=60)
    engine.states[1] = 7

    def run(allowed: float) -> tuple[Any, float]:
        ran = engine.execute(Batch(1, "model", key, [job], [], None, allowed))
        assert isinstance(ran, Ran)
        return ran.results[0], ran.seconds

    assert run(0.03) == (UNFINISHED, pytest.approx(0.03))
    assert run(0.0) == (UNFINISHED, pytest.approx(0.016))  # a few positions all the same
    assert engine.states == {1: 7}
    assert run(inf) == (Done(()), pytest.approx(0.054))
    assert engine.states != {1: 7}


def test_an_ask_that_fails_is_not_recorded(model: Signals):
    with pytest.raises(NotRecorded, match="1 of 1 asks ended failed"):
        record(model, [{"seed": "three", "steps": 1}])


@pytest.mark.slow  # measured without coverage
def test_fifty_streams_take_a_twentieth_of_their_time(model: Signals, even: Book):
    """They come at once, and it takes 4.5 s to serve them."""
    arrivals = [Coming(0.0, {"seed": (3, 8)[i % 2], "steps": 4}) for i in range(50)]

    def spent() -> float:
        begun = time.process_time()
        receipts = rehearse(deployed(model), {"model": even}, arrivals)
        assert {receipt.status for receipt in receipts} == {"ok"}
        return time.process_time() - begun

    assert min(spent() for _ in range(3)) < 4.5 / 20


def test_a_book_holds_what_calls_took(book: Book):
    blown = {int(book.gave[call][0].shape[0]) - 1: seconds for call, seconds in book.seconds.items() if call[0] == BLOW}
    assert all((0.001 if number % 2 else 0.003) <= seconds < 0.5 for number, seconds in blown.items())
    tell = [call for call in book.seconds if call[0].op == "tell"]
    assert book.time(tell[:1] * 8) < 4 * book.time(tell[:1])  # they share a batch
    blow = [call for call in book.seconds if call[0] == BLOW]
    assert book.time(blow[:1] * 8) == pytest.approx(8 * book.time(blow[:1]))  # they do not

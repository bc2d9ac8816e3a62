"""Streams of a running request: back-pressure, two streams at once, readers that stop early, windows."""

from collections.abc import Iterator

import pytest

from mstar import Latents, Model, Stream, each, loop, walk, windows
from mstar.plan.compile import MIN_STREAM_BOUND_ITEMS
from tests.plan.plan_harness import IntOps, Memory, WalkHarness, make_placement


class Pipes(Model):
    """A producer `a` and a consumer `b`, in many shapes."""

    def __init__(self):
        self.a, self.b = IntOps(), IntOps()

    @walk
    def pipe(self, n: int, reads: int) -> Iterator[Latents]:
        items = Stream("items")
        for step in loop(steps=n):
            items.put(self.a.inc(step))
        for _ in loop(steps=reads):
            yield Latents(self.b.inc(items.get(default=n)))

    @walk
    def crossed(self, n: int, reads: int) -> Iterator[Latents]:
        """One stream is filled to its end before the other begins; the reader takes them in turns."""
        left, right = Stream("left"), Stream("right")
        s = loop(steps=n, x=0)
        for _ in s:
            s.x = self.a.inc(s.x)
            left.put(s.x)
        t = loop(steps=n, x=s.x)
        for _ in t:
            t.x = self.a.inc(t.x)
            right.put(t.x)
        for _ in loop(steps=reads):
            yield Latents(self.b.add(right.get(default=n), left.get(default=n)))

    @walk
    def late(self, n: int) -> Iterator[Latents]:
        """The same, but the reader has something to do first, and takes from the stream that is filled first last."""
        left, right = Stream("left"), Stream("right")
        s = loop(steps=n, x=0)
        for _ in s:
            s.x = self.a.inc(s.x)
            left.put(s.x)
        t = loop(steps=n, x=s.x)
        for _ in t:
            t.x = self.a.inc(t.x)
            right.put(t.x)
        for step in loop(steps=n):
            later = right.get(default=self.b.inc(step))
            yield Latents(self.b.add(later, left.get(default=later)))

    @walk
    def sliding(self, n: int) -> Iterator[Latents]:
        items = Stream("items")
        for step in loop(steps=n):
            items.put(self.a.inc(step))
        w = windows(items, size=3, stride=2, context=1, first=1, flush=True)
        for window in w:
            yield Latents(self.b.add(self.b.fold(window), w.fresh))

    @walk
    def whole(self, n: int, memory: Memory) -> Iterator[Latents]:
        items = Stream("items")
        items.put(self.a.inc(n))
        for step in loop(steps=n):
            items.put(self.a.inc(step))
        for window in windows(items, size=2):
            self.b.note(1, memory)
            yield Latents(self.b.fold(window))

    @walk
    def both(self, n: int) -> Iterator[Latents]:
        """Two readers of one stream, of different speed."""
        items = Stream("items")
        for step in loop(steps=n):
            items.put(self.a.inc(step))
        for window in windows(items, size=4):
            yield Latents(self.a.fold(window))
        s = loop(steps=n, x=0)
        for _ in s:
            s.x = self.b.add(s.x, items.get(default=0))

    @walk
    def elsewhere(self, n: int) -> Iterator[Latents]:
        """A windows body at another seat than the reader, which sends it each window."""
        items = Stream("items")
        for step in loop(steps=n):
            items.put(self.a.inc(step))
        for window in windows(items, size=2, flush=True):
            yield Latents(self.b.inc(self.a.fold(window)))

    @walk
    def unread(self, n: int) -> Iterator[Latents]:
        """Windows that are counted, not looked at."""
        items = Stream("items")
        for step in loop(steps=n):
            items.put(self.a.inc(step))
        w = windows(items, size=2, flush=True)
        for _ in w:
            yield Latents(self.b.inc(w.fresh))

    @walk
    def inside(self, n: int) -> tuple[list[int], int]:
        """A stream for each body of an each."""
        e = each(self.a.upto(n))
        for item in e:
            items = Stream("items")
            for step in loop(steps=item):
                items.put(self.a.inc(step))
            s = loop(steps=3, x=item)
            for _ in s:
                s.x = self.b.add(s.x, items.get(default=100))
            e.collect(x=s.x)
        return e.x, n

    @walk
    def in_turns(self, n: int) -> Iterator[Latents]:
        """Two gets of one stream in one body."""
        items = Stream("items")
        for step in loop(steps=n):
            items.put(self.a.inc(step))
        for _ in loop(steps=n):
            yield Latents(self.b.fold(self.b.upto(items.get(default=n))))
            yield Latents(items.get(default=n))

    @walk
    def passed_on(self, n: int, reads: int) -> Iterator[Latents]:
        """What is read goes to the client as it is."""
        items = Stream("items")
        for step in loop(steps=n):
            items.put(self.a.inc(step))
        for _ in loop(steps=reads):
            yield Latents(items.get(default=n))


class Relay(Model):
    """Several nodes of one body get from the same stream, one after the other."""

    def __init__(self):
        self.a, self.b = IntOps(), IntOps()

    @walk
    def first_and_rest(self, n: int, reads: int) -> Iterator[Latents]:
        items = Stream("items")
        for step in loop(steps=n):
            items.put(self.a.inc(step))
        yield Latents(items.get(default=n))
        for _ in loop(steps=reads):
            yield Latents(self.b.inc(items.get(default=n)))

    @walk
    def two_then_one(self, n: int, reads: int) -> Iterator[Latents]:
        """A region reads two streams; when it has let one go, another reads on in the other."""
        left, right = Stream("left"), Stream("right")
        for step in loop(steps=n):
            left.put(self.a.inc(step))
            right.put(self.a.times(step, by=2))
        s = loop(steps=reads, x=0)
        for _ in s:
            s.x = self.b.add(self.b.add(left.get(default=n), right.get(default=n)), s.x)
        t = loop(steps=n, x=s.x)
        for _ in t:
            t.x = self.b.add(t.x, right.get(default=n))
            yield Latents(t.x)


SPLIT = make_placement(a="w0", b="w1")
BOTH = pytest.mark.parametrize("placement", [None, SPLIT], ids=["one seat", "two seats"])
TIGHT = pytest.mark.parametrize("is_tight", [False, True], ids=["loose", "tight"])


def eager(name, *inputs):
    call = getattr(Pipes(), name)(*inputs)
    call.run()
    return [emission.value for emission in call.emissions]


def check(name, *inputs, placement, is_tight):
    stage = WalkHarness(Pipes(), placement, walk=name, is_tight=is_tight).start(*inputs).finish()
    assert stage.emitted == eager(name, *inputs)
    return stage


# ---------------------------------------------------------------- back-pressure
def test_a_put_waits_at_the_bound_and_goes_on_after_a_release():
    stage = WalkHarness(Pipes(), SPLIT, walk="pipe", is_tight=True).start(4, 9)
    assert stage.calls_at(0) == 2  # the second has been made, and waits to be put
    assert stage.pending_messages(0, 1) == ["STREAM_ITEM"]
    stage.deliver(0, 1)
    assert stage.pending_messages(1, 0) == ["STREAM_CONSUMED"]
    assert stage.calls_at(0) == 0  # the credit has not arrived
    stage.deliver(1, 0)
    assert stage.pending_messages(0, 1) == ["STREAM_ITEM"]
    assert stage.ready(0) == ["a.inc"]
    stage.finish()
    assert stage.emitted == eager("pipe", 4, 9)


def test_a_loose_stream_holds_its_bound():
    stage = WalkHarness(Pipes(), SPLIT, walk="pipe").start(100, 100)
    assert stage.calls_at(0) == MIN_STREAM_BOUND_ITEMS + 1
    assert stage.pending_messages(0, 1) == ["STREAM_ITEM"] * MIN_STREAM_BOUND_ITEMS
    stage.finish()
    assert stage.emitted == eager("pipe", 100, 100)


def test_a_producer_on_the_same_seat_waits_too():
    stage = WalkHarness(Pipes(), walk="pipe", is_tight=True).start(9, 9)
    made = 0
    while "a.inc" in stage.ready():
        stage.call("a.inc")
        made += 1
    assert made == 3  # one is being read, one is in the stream, one waits
    stage.finish()
    assert stage.emitted == eager("pipe", 9, 9)


def test_items_may_come_before_the_reader_has_started():
    stage = WalkHarness(Pipes(), SPLIT, walk="pipe")
    stage.runs[0].start([3, 5])
    stage.calls_at(0)
    stage.deliver(0, 1)
    assert stage.runs[1].pending() == ["readers: [(0, ())]"]
    stage.runs[1].start([3, 5])
    stage.collect_messages(stage.runs[1])
    stage.finish()
    assert stage.emitted == eager("pipe", 3, 5)


def test_a_release_may_come_before_the_stream_is_open():
    stage = WalkHarness(Pipes(), SPLIT, walk="pipe")
    stage.runs[1].start([3, 0])  # reads nothing: it lets the stream go at once
    stage.collect_messages(stage.runs[1])
    assert stage.pending_messages(1, 0) == ["STREAM_CONSUMED"]
    stage.deliver(1, 0)
    assert stage.runs[0].pending() == ["writers: [(0, ())]"]
    stage.runs[0].start([3, 0])
    stage.finish()
    assert stage.emitted == []


# ---------------------------------------------------------------- decision 0007
@BOTH
@pytest.mark.parametrize("reads", [0, 3, 5, 8])
def test_two_streams_read_in_another_order_than_they_are_filled(reads, placement):
    check("crossed", 5, reads, placement=placement, is_tight=True)


def test_a_stream_is_allowed_more_than_its_bound_while_its_reader_waits_for_another():
    stage = WalkHarness(Pipes(), SPLIT, walk="crossed", is_tight=True).start(4, 4)
    stage.calls_at(0)
    assert stage.pending_messages(0, 1) == ["STREAM_ITEM"]
    sent = 0
    while not stage.ready(1):
        stage.deliver(0, 1)
        stage.deliver(1, 0)
        sent += stage.calls_at(0)
    assert sent >= 3
    left = next(reader for (_, _), reader in stage.runs[1].readers.items() if len(reader.items) == 3)
    assert left.items == [2, 3, 4]  # none was read but the first, and the bound is 1
    stage.finish()


@BOTH
def test_a_stream_that_is_full_before_its_reader_waits_for_another_goes_on_too(placement):
    stage = WalkHarness(Pipes(), placement, walk="late", is_tight=True).start(4)
    reading = len(stage.runs) - 1
    while "a.inc" in stage.ready():
        stage.call("a.inc")
    stage.deliver(0, reading)
    assert stage.ready() == (["b.inc"] if placement is None else [])  # the producer is held up
    stage.call("b.inc", reading)  # now the reader waits for the other stream
    stage.deliver(reading, 0)
    assert stage.ready() == ["a.inc"]
    stage.finish()
    assert stage.emitted == eager("late", 4)


# ---------------------------------------------------------------- readers
@BOTH
@TIGHT
@pytest.mark.parametrize("reads", [0, 1, 2])
def test_a_reader_that_stops_early_lets_its_producer_finish(reads, placement, is_tight):
    stage = check("pipe", 50, reads, placement=placement, is_tight=is_tight)
    assert len(stage.emitted) == reads


@BOTH
@TIGHT
def test_after_the_end_of_a_stream_a_reader_gets_its_default(placement, is_tight):
    assert check("pipe", 2, 4, placement=placement, is_tight=is_tight).emitted == [2, 3, 3, 3]


def test_items_for_a_reader_that_let_go_are_dropped():
    stage = WalkHarness(Pipes(), SPLIT, walk="pipe", is_tight=False).start(5, 1)
    stage.calls_at(0)
    assert stage.pending_messages(0, 1) == ["STREAM_ITEM"] * 5 + ["STREAM_CLOSED"]
    stage.deliver(0, 1, 1)
    assert stage.calls_at(1) == 1
    assert stage.runs[1].is_done
    stage.deliver(0, 1, 2)
    (reader,) = stage.runs[1].readers.values()
    assert (reader.items, reader.total) == ([], 3)
    stage.finish()


@BOTH
@TIGHT
@pytest.mark.parametrize("length", [0, 1, 4, 9])
def test_two_readers_of_one_stream(length, placement, is_tight):
    check("both", length, placement=placement, is_tight=is_tight)


@BOTH
@TIGHT
@pytest.mark.parametrize("length", [0, 1, 5])
def test_a_stream_for_each_body(length, placement, is_tight):
    stage = WalkHarness(Pipes(), placement, walk="inside", is_tight=is_tight).start(length).finish()
    assert stage.outputs == [*Pipes().inside(length).run()]


@BOTH
@TIGHT
@pytest.mark.parametrize("length", [0, 1, 2, 7])
def test_two_gets_take_turns(length, placement, is_tight):
    check("in_turns", length, placement=placement, is_tight=is_tight)


@BOTH
@TIGHT
@pytest.mark.parametrize("reads", [0, 2, 5, 9])
def test_items_that_no_op_uses(reads, placement, is_tight):
    stage = check("passed_on", 5, reads, placement=placement, is_tight=is_tight)
    assert len(stage.runs) == 1  # nothing but the producer needs a seat


@BOTH
@TIGHT
@pytest.mark.parametrize("name", ["first_and_rest", "two_then_one"])
@pytest.mark.parametrize("reads", [0, 1, 3, 9])
def test_one_node_reads_on_where_another_stopped(reads, name, placement, is_tight):
    stage = WalkHarness(Relay(), placement, walk=name, is_tight=is_tight).start(6, reads).finish()
    call = getattr(Relay(), name)(6, reads)
    call.run()
    assert stage.emitted == [emission.value for emission in call.emissions]


# ---------------------------------------------------------------- windows
@BOTH
@TIGHT
@pytest.mark.parametrize("length", [*range(8), 40])
def test_windows_slide_start_small_and_flush(length, placement, is_tight):
    check("sliding", length, placement=placement, is_tight=is_tight)


def test_windows_are_what_they_should_be():
    stage = WalkHarness(Pipes(), walk="sliding").start(6).finish()
    # [1] alone, then up to four items two apart; what is left at the end makes the last. Plus how many are fresh.
    assert stage.emitted == [1 + 1, 123 + 2, 2345 + 2, 456 + 1]


@BOTH
@TIGHT
@pytest.mark.parametrize("length", [0, 1, 2, 5])
def test_windows_that_do_not_fill_are_dropped_without_flush(length, placement, is_tight):
    stage = WalkHarness(Pipes(), placement, walk="whole", is_tight=is_tight).start(length, Memory()).finish()
    assert stage.emitted == eager("whole", length, Memory())
    assert stage.states[1].seen == [1] * ((length + 1) // 2)


@TIGHT
@pytest.mark.parametrize("walk_name", ["elsewhere", "unread"])
@pytest.mark.parametrize(
    "placement", [None, SPLIT, make_placement(a="w0", a_fold="w1", a_inc="w2", b="w1", b_inc="w0")]
)
@pytest.mark.parametrize("length", [0, 1, 2, 7])
def test_windows_whose_bodies_are_elsewhere(length, placement, walk_name, is_tight):
    check(walk_name, length, placement=placement, is_tight=is_tight)


def test_a_seat_receives_each_window_flag_early_or_late():
    stage = WalkHarness(Pipes(), SPLIT, walk="elsewhere").start(4)
    stage.calls_at(0)
    assert stage.runs[0].is_done
    kinds = stage.pending_messages(0, 1)
    assert kinds.count("VALUE") == 5  # two windows, each a flag and a value, and the final flag
    stage.deliver(0, 1)
    assert stage.ready(1) == ["b.inc"]
    assert len(stage.runs[1].early_values) == 3
    stage.finish()
    assert stage.emitted == eager("elsewhere", 4)


def test_a_seat_waits_for_the_window_flag():
    stage = WalkHarness(Pipes(), SPLIT, walk="elsewhere").start(2)
    assert stage.runs[1].pending() == [f"expected: {sorted(stage.runs[1].expected)}"]
    assert len(stage.runs[1].expected) == 1
    stage.calls_at(0)
    for _ in range(3):
        assert not stage.runs[1].is_done
        stage.deliver(0, 1, 1)
        stage.calls_at(1)
    assert stage.runs[1].is_done
    stage.finish()

"""A request's progress through its seats, driven by hand: calls, messages in any order, regions, carries, states."""

from collections.abc import Iterator

import pytest

from mstar import Latents, Model, choose, each, loop, walk
from mstar.plan.runtime.messages import value_sent
from mstar.plan.runtime.run import PartitionRun, columns, complete
from tests.plan.plan_harness import IntOps, Memory, WalkHarness, make_placement


class Duo(Model):
    """Two components, so that walks can be on two seats."""

    def __init__(self):
        self.a, self.b = IntOps(), IntOps()

    @walk
    def chain(self, x: int) -> int:
        return self.b.inc(self.a.inc(x))

    @walk
    def meet(self, n: int) -> int:
        s = loop(steps=n, x=0, y=0, z=0)
        for step in s:
            s.x, s.y = self.a.inc(s.x), self.b.add(s.y, step)
            s.z = self.b.times(self.b.add(self.b.add(s.x, s.y), s.z), by=3)
        return s.z

    @walk
    def swap(self, n: int, x: int, y: int) -> tuple[int, int]:
        s = loop(steps=n, x=x, y=self.a.inc(y))
        for _ in s:
            s.x, s.y = s.y, s.x
        return s.x, self.b.inc(s.y)

    @walk
    def flagged(self, n: int) -> int:
        s = loop(steps=n, x=0, done=False)
        for _ in s:
            s.stop_when(s.done)
            s.x = self.a.inc(s.x)
            s.done = self.b.is_big(s.x)
        return s.x

    @walk
    def kept(self, n: int) -> tuple[list[int], list[int], int]:
        s = loop(steps=n, x=5)
        for step in s:
            s.collect(before=s.x, at=step)
            s.x = self.b.inc(self.a.inc(s.x))
        return s.before, s.at, s.x

    @walk
    def every(self, n: int) -> tuple[list[int], list[int], int]:
        e = each(self.a.upto(n))
        for item in e:
            e.collect(item=self.b.inc(item), at=self.a.add(item, e.index))
        return e.item, e.at, self.b.fold(e.item)

    @walk
    def pick(self, x: int) -> tuple[int, int]:
        one, two = choose(self.a.is_big(x), lambda: self.b.pair(self.a.inc(x)), lambda: (self.a.inc(x), self.a.inc(x)))
        return one, self.b.inc(two)

    @walk
    def same(self, x: int) -> tuple[int, int]:
        return x, x

    @walk
    def nothing(self, x: int) -> None:
        self.a.inc(x)

    @walk
    def idle(self, x: int) -> None:
        pass

    @walk
    def constant(self, x: int) -> tuple[int, int]:
        return choose(self.a.is_big(x), 7, 8), self.b.add(x, 4)

    @walk
    def every_of_every(self, n: int) -> list[list[int]]:
        e = each(self.a.upto(n))
        for item in e:
            f = each(self.b.upto(item))
            for inner in f:
                f.collect(x=self.a.add(inner, item))
            e.collect(xs=f.x)
        return e.xs

    @walk
    def steps_of_steps(self, n: int) -> Iterator[Latents]:
        s = loop(steps=n, x=0)
        for step in s:
            t = loop(steps=step, x=s.x)
            for inner in t:
                t.x = self.b.add(self.a.add(t.x, inner), step)
                t.stop_when(self.a.is_big(inner))
            s.x = t.x
            yield Latents(s.x)


SPLIT = make_placement(a="w0", b="w1")
BOTH = pytest.mark.parametrize("placement", [None, SPLIT], ids=["one seat", "two seats"])


def eager(name, *inputs):
    """What a walk gives when it is simply run."""
    call = getattr(Duo(), name)(*inputs)
    result = call.run()
    return [*result] if isinstance(result, tuple) else [] if result is None else [result]


def run_walk(name, *inputs, placement=None):
    return WalkHarness(Duo(), placement, walk=name).start(*inputs).finish()


# ---------------------------------------------------------------- calls
def test_a_call_is_ready_when_its_arguments_are_there():
    stage = WalkHarness(Duo(), walk="chain").start(1)
    assert stage.ready() == ["a.inc"]
    assert stage.call("a.inc") == (2,)
    assert stage.ready() == ["b.inc"]
    assert not stage.runs[0].is_done
    stage.call("b.inc")
    assert stage.runs[0].is_done
    assert stage.outputs == [3]
    assert stage.ready() == []


def test_calls_that_do_not_need_each_other_are_ready_together():
    stage = WalkHarness(Duo(), walk="meet").start(2)
    assert stage.ready() == ["a.inc", "b.add"]
    stage.call("b.add")
    assert stage.ready() == ["a.inc"]
    stage.call("a.inc")
    assert stage.ready() == ["b.add"]


def test_what_a_call_passes_has_its_constants_and_static_arguments():
    stage = WalkHarness(Duo(), walk="constant").start(2)
    (frame, instruction) = next(call for call in stage.runs[0].ready if stage.name(call) == "b.add")
    assert frame.arguments(instruction) == {"x": 2, "y": 4}
    stage = WalkHarness(Duo(), walk="meet").start(1)
    for name in ("a.inc", "b.add", "b.add", "b.add"):
        stage.call(name)
    (frame, instruction) = stage.runs[0].ready[0]
    assert frame.arguments(instruction) == {"x": 1, "by": 3}


def test_calls_of_two_requests_complete_as_one_batch():
    one, two = WalkHarness(Duo(), walk="chain"), WalkHarness(Duo(), walk="chain")
    two.runs[0] = PartitionRun(one.plan.programs[0], two, [])
    one.start(1)
    two.start(10)
    batch = [one.runs[0].ready.pop(), two.runs[0].ready.pop()]
    assert columns(batch) == {"x": [1, 10]}
    complete(batch, [(2,), (11,)])
    batch = [two.runs[0].ready.pop(), one.runs[0].ready.pop()]
    assert columns(batch) == {"x": [11, 2]}
    complete(batch, [(12,), (3,)])
    assert (one.outputs, two.outputs) == ([3], [12])


def test_different_calls_of_one_op_share_columns():
    stage = WalkHarness(Duo(), walk="constant").start(2)
    other = WalkHarness(Duo(), walk="meet").start(2)
    batch = [
        next(call for call in stage.runs[0].ready if stage.name(call) == "b.add"),
        next(call for call in other.runs[0].ready if other.name(call) == "b.add"),
    ]
    assert columns(batch) == {"x": [2, 0], "y": [4, 0]}


def test_a_walk_may_give_an_input_twice_or_nothing():
    assert run_walk("same", 4).outputs == [4, 4]
    assert run_walk("nothing", 4).outputs == []


def test_a_walk_without_anything_to_do_is_done_before_it_starts():
    stage = WalkHarness(Duo(), SPLIT, walk="idle")
    assert [run.is_done for run in stage.runs] == [True]
    stage.start(1).finish()
    assert stage.outputs == []


# ---------------------------------------------------------------- messages
def test_a_value_crosses_in_one_message():
    stage = WalkHarness(Duo(), SPLIT, walk="chain").start(1)
    assert (stage.ready(0), stage.ready(1)) == (["a.inc"], [])
    stage.call("a.inc")
    assert stage.runs[0].is_done
    assert [*stage.channels[0, 1]] == [value_sent(1, stage.channels[0, 1][0].target, (), 2)]
    stage.deliver(0, 1)
    assert stage.ready(1) == ["b.inc"]
    stage.finish()
    assert stage.outputs == [3]


def test_a_seat_runs_ahead_of_one_that_receives_nothing():
    stage = WalkHarness(Duo(), SPLIT, walk="meet").start(4)
    assert stage.calls_at(0) == 4
    assert stage.runs[0].is_done
    assert stage.pending_messages(0, 1) == ["VALUE"] * 4
    assert [message.path for message in stage.channels[0, 1]] == [(0,), (1,), (2,), (3,)]
    stage.finish()
    assert stage.outputs == eager("meet", 4)


def test_values_may_come_long_before_their_iteration():
    stage = WalkHarness(Duo(), SPLIT, walk="meet").start(4)
    stage.calls_at(0)
    stage.deliver(0, 1)
    assert len(stage.runs[1].early_values) == 3  # the first one was waited for
    assert stage.runs[1].pending() == [f"early_values: {sorted(stage.runs[1].early_values)}"]
    stage.finish()
    assert stage.outputs == eager("meet", 4)


def test_values_may_come_before_the_seat_has_started():
    stage = WalkHarness(Duo(), SPLIT, walk="meet")
    stage.runs[0].start([3])
    stage.collect_messages(stage.runs[0])
    stage.calls_at(0)
    stage.deliver(0, 1)
    assert stage.ready(1) == []
    stage.runs[1].start([3])
    stage.finish()
    assert stage.outputs == eager("meet", 3)


class Trio(Model):
    """One seat that hears from two others."""

    def __init__(self):
        self.a, self.b, self.c = IntOps(), IntOps(), IntOps()

    @walk
    def go(self, n: int) -> int:
        s = loop(steps=n, x=0, y=0, z=0)
        for _ in s:
            s.x, s.y = self.a.inc(s.x), self.b.add(s.y, 10)
            s.z = self.c.times(self.c.add(s.x, self.c.add(s.y, s.z)), by=3)
        return s.z

    @walk
    def stops(self, n: int) -> tuple[int, int]:
        s = loop(steps=n, x=0, y=0)
        for _ in s:
            s.x, s.y = self.a.inc(s.x), self.b.add(s.y, 10)
            s.stop_when(self.c.is_big(s.x))
        return s.x, s.y


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_messages_of_different_seats_may_overtake_each_other(first, count):
    """Everything from one seat comes before anything from the other."""
    stage = WalkHarness(Trio(), make_placement(a="w0", b="w1", c="w2")).start(4)
    for source in (0, 1):
        assert stage.calls_at(source) == 4
    stage.deliver(first, 2)
    assert stage.ready(2) == (["c.add"] if first else [])  # the value of b completes the arguments
    stage.deliver(1 - first, 2, count)
    assert stage.calls_at(2) == 3 * count + (0 if count == 4 or not first else 1)
    stage.finish()
    assert stage.outputs == [Trio().go(4).run()]


def test_a_seat_waits_for_the_stop_flag_of_another():
    stage = WalkHarness(Trio(), make_placement(a="w0", b="w1", c="w2"), walk="stops").start(5)
    for _ in range(2):
        assert (stage.calls_at(0), stage.calls_at(1)) == (1, 1)  # whether there is one more is decided by c
        assert not stage.runs[0].is_done
        stage.deliver(0, 2)
        assert stage.calls_at(2) == 1
        stage.deliver(2, 0)
        stage.deliver(2, 1)
    stage.finish()
    assert stage.outputs == [3, 30]


# ---------------------------------------------------------------- loops
@BOTH
@pytest.mark.parametrize("steps", [0, -2])
def test_a_loop_of_no_steps_gives_what_it_started_with(steps, placement):
    assert run_walk("kept", steps, placement=placement).outputs == [[], [], 5]
    assert run_walk("meet", steps, placement=placement).outputs == [0]


@BOTH
@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_two_carries_swap(steps, placement):
    stage = run_walk("swap", steps, 1, 2, placement=placement)
    assert stage.outputs == eager("swap", steps, 1, 2)
    assert stage.outputs == ([3, 2] if steps % 2 else [1, 4])


@BOTH
@pytest.mark.parametrize(("steps", "last"), [(2, 2), (3, 3), (4, 4), (9, 4)])
def test_a_stop_flag_that_is_carried_ends_the_loop_one_iteration_later(steps, last, placement):
    assert eager("flagged", steps) == [last]
    assert run_walk("flagged", steps, placement=placement).outputs == [last]


@BOTH
def test_what_is_collected_is_the_value_before_the_carry(placement):
    assert run_walk("kept", 3, placement=placement).outputs == [[5, 7, 9], [0, 1, 2], 11]


@BOTH
@pytest.mark.parametrize("steps", [0, 1, 6])
def test_loops_in_loops(steps, placement):
    stage = run_walk("steps_of_steps", steps, placement=placement)
    call = Duo().steps_of_steps(steps)
    call.run()
    assert stage.emitted == [emission.value for emission in call.emissions]


# ---------------------------------------------------------------- eaches and choices
@BOTH
@pytest.mark.parametrize("count", [0, 1, 4])
def test_an_each_collects_in_order(count, placement):
    assert run_walk("every", count, placement=placement).outputs == eager("every", count)


def test_bodies_of_an_each_end_in_any_order():
    stage = WalkHarness(Duo(), walk="every").start(3)
    stage.call("a.upto")
    assert stage.ready() == ["a.add"] * 3 + ["b.inc"] * 3
    stage.runs[0].ready.reverse()
    stage.call("b.inc")
    stage.runs[0].ready.reverse()
    stage.finish()
    assert stage.outputs == eager("every", 3)


@BOTH
@pytest.mark.parametrize("count", [0, 1, 4])
def test_eaches_in_eaches(count, placement):
    assert run_walk("every_of_every", count, placement=placement).outputs == eager("every_of_every", count)


@BOTH
@pytest.mark.parametrize("x", [1, 3])
def test_only_the_chosen_arm_runs(x, placement):
    stage = WalkHarness(Duo(), placement, walk="pick").start(x)
    stage.call("a.is_big")
    assert stage.ready() == (["a.inc"] if x >= 3 else ["a.inc", "a.inc"])
    stage.finish()
    assert stage.outputs == eager("pick", x)


@BOTH
@pytest.mark.parametrize("x", [1, 3])
def test_an_arm_may_be_a_constant(x, placement):
    assert run_walk("constant", x, placement=placement).outputs == eager("constant", x)


# ---------------------------------------------------------------- states
class StateWalks(Model):
    """A component whose ops can be on several workers, all on the same states."""

    def __init__(self):
        self.a = IntOps()

    @walk
    def back(self, memory: Memory) -> tuple[int, int]:
        one = self.a.tell(1, memory)
        self.a.note(2, memory)
        return one, self.a.tell(3, memory)

    @walk
    def turns(self, n: int, memory: Memory) -> int:
        s = loop(steps=n, x=0)
        for step in s:
            s.x = self.a.tell(step, memory)
            self.a.note(s.x, memory)
        return s.x

    @walk
    def fork(self, memory: Memory) -> tuple[list[int], list[int]]:
        self.a.tell(1, memory)
        other = memory.fork()
        self.a.note(2, memory)
        self.a.tell(3, other)
        return self.a.recall(memory), self.a.recall(other)

    @walk
    def beside(self, memory: Memory) -> tuple[list[int], list[int], int]:
        self.a.tell(1, memory)
        first, second = self.a.recall(memory), self.a.recall(memory)
        return first, second, self.a.tell(2, memory)

    @walk
    def late(self, memory: Memory) -> tuple[list[int], int, int]:
        one = self.a.tell(1, memory)
        seen = self.a.recall(memory)
        return seen, one, self.a.tell(2, memory)

    @walk
    def fresh(self, x: int) -> list[int]:
        memory = self.a.state(Memory)
        self.a.note(x, memory)
        choose(self.a.is_big(x), lambda: self.a.note(9, memory), lambda: None)
        return self.a.recall(memory)


APART = make_placement(a="w0", a_note="w1", a_recall="w2")


@pytest.mark.parametrize(
    "placement", [None, make_placement(a="w0", a_note="w1", a_recall="w1")], ids=["one seat", "two seats"]
)
def test_a_state_extended_elsewhere_comes_back(placement):
    stage = WalkHarness(StateWalks(), placement, walk="back").start(Memory()).finish()
    assert stage.outputs == [1, 3]
    assert {index: state.seen for index, state in stage.states.items()} == {0: [1, 2, 3]}
    assert stage.forked == (2 if placement else 0)  # there and back


@pytest.mark.parametrize("placement", [None, APART], ids=["one seat", "apart"])
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_state_goes_back_and_forth_in_a_loop(steps, placement):
    want = Memory()
    result = StateWalks().turns(steps, want).run()
    stage = WalkHarness(StateWalks(), placement, walk="turns").start(steps, Memory()).finish()
    assert stage.outputs == [result]
    assert [state.seen for state in stage.states.values()] == [want.seen]


@pytest.mark.parametrize("placement", [None, APART, make_placement(a=["w0", "w1"], a_tell="w1")])
def test_a_fork_goes_its_own_way(placement):
    stage = WalkHarness(StateWalks(), placement, walk="fork").start(Memory()).finish()
    assert stage.outputs == [[1, 2], [1, 3]]
    assert stage.states[0].seen == [1, 2]


def test_a_state_is_read_side_by_side_before_it_changes():
    stage = WalkHarness(StateWalks(), walk="beside").start(Memory())
    stage.call("a.tell")
    assert stage.ready() == ["a.recall", "a.recall"]  # and no tell: it waits for both
    stage.call("a.recall")
    assert stage.ready() == ["a.recall"]
    stage.call("a.recall")
    assert stage.ready() == ["a.tell"]
    stage.finish()
    assert stage.outputs == [[1], [1], 2]


def test_a_reader_elsewhere_sees_the_state_as_it_was_sent():
    """It reads a copy, so the owner may go on, and what the reader sees does not change under it."""
    stage = WalkHarness(StateWalks(), make_placement(a="w0", a_recall="w1"), walk="late").start(Memory())
    home, away = stage.seat("w0"), stage.seat("w1")
    stage.call("a.tell", home)
    stage.call("a.tell", home)
    assert stage.runs[home].is_done
    stage.deliver(home, away)
    assert stage.call("a.recall", away) == ([1],)
    stage.finish()
    assert stage.states[0].seen == [1, 2]


@pytest.mark.parametrize("placement", [None, APART], ids=["one seat", "apart"])
@pytest.mark.parametrize(("x", "seen"), [(1, [1]), (3, [3, 9])])
def test_a_state_made_in_the_walk_may_change_in_an_arm(x, seen, placement):
    stage = WalkHarness(StateWalks(), placement, walk="fresh").start(x).finish()
    assert stage.created == [("a", "Memory")]
    assert stage.outputs == [seen]
    assert stage.states == {}

"""Rank 0 and another rank: they run the same steps, fail together, and end if they do not agree."""

import socket
import threading

import numpy as np
import pytest

from mstar import Component, Float, Tensor, op
from mstar.engine.engine import Engine
from mstar.engine.jobs import Job, JobDone, JobFailed
from mstar.errors import DeviceFailed, NotSerializable, OutOfPages
from mstar.walk.states import State
from mstar.worker.channel import Channel
from mstar.worker.ranks.follower import Follower, RanksDiffer
from mstar.worker.ranks.leader import LeaderExecutor


class Pages(State):
    """A state in a memory with room for some of them."""

    is_evictable = True

    def __init__(self, owner):
        self.owner, self.total = owner, 0.0
        owner.take_room()

    def __del__(self):
        if self.is_resident:
            self.owner.room += 1

    def fork(self):
        forked = Pages(self.owner)
        forked.total = self.total
        return forked

    def snapshot(self):
        return self.total

    def rollback(self, snapshot):
        self.total = snapshot

    def export(self):
        return self.total

    def evict(self):
        self.is_resident = False
        self.owner.room += 1


class Adder(Component):
    """Adds numbers to a state, and writes down what it did."""

    name, runs_on_ranks = "adder", True

    def __init__(self, room=2):
        self.room, self.log, self.fails_alone = room, [], False

    def take_room(self):
        if not self.room:
            raise OutOfPages("no room")
        self.room -= 1

    def make_state(self, kind):
        return Pages(self)

    def load_state(self, kind, exported):
        state = Pages(self)
        state.total = exported
        return state

    def restore(self, states):
        for state in states:
            self.take_room()
            state.is_resident = True

    @op
    def add(self, amount: Float[Tensor, "1"], total: Pages, note: object) -> Float[Tensor, "1"]:
        total.total += float(amount[0])
        self.log.append((note, total.total, total.tenant, self.room))
        if amount[0] < 0 or self.fails_alone:
            raise ValueError("negative")
        return np.array([total.total])


@pytest.fixture
def ranks():
    """Rank 0's engine and component, rank 1's component, and how rank 1 ended."""
    ours, theirs = socket.socketpair()
    first, second, ends = Adder(), Adder(), []
    ours, theirs = Channel(ours), Channel(theirs)
    follower = Follower({"m.adder": second}, theirs)

    def follow():
        try:
            follower.run()
            ends.append(None)
        except (DeviceFailed, RanksDiffer) as error:
            ends.append(error)
        theirs.close()

    thread = threading.Thread(target=follow)
    thread.start()
    executor = LeaderExecutor({"m.adder": first}, [ours])

    def finish():
        ours.close()
        thread.join(10)
        return ends[0]

    yield Engine(executor=executor), first, second, finish
    finish()


def add(engine, component, state, amount, note="note"):
    (result,) = engine.run(
        component, component.ops()["add"], [Job({"amount": np.array([amount]), "total": state, "note": note})]
    )
    return result


def kind(component):
    return component.state_kinds()["Pages"]


def test_every_rank_runs_the_same_steps(ranks):
    engine, first, second, finish = ranks
    one = engine.new_state(first, kind(first), "tenant")
    assert add(engine, first, one, 1.5).values[0] == 1.5
    two = engine.fork(one)
    add(engine, first, two, 2.0)
    exported = engine.export(two)
    del one, two
    three = engine.load(first, kind(first), exported, "other")
    assert add(engine, first, three, 1.0).values[0] == 4.5
    assert finish() is None
    assert first.log == second.log
    assert [tenant for _, _, tenant, _ in first.log] == ["tenant", "", "other"]


def test_states_are_evicted_and_restored_on_every_rank(ranks):
    engine, first, second, finish = ranks
    states = [engine.new_state(first, kind(first)) for _ in range(2)]
    states.append(engine.load(first, kind(first), 7.0))
    for turn in range(6):
        assert isinstance(add(engine, first, states[turn % 3], 1.0), JobDone)
    assert engine.export(states[0]) == 2.0
    assert engine.take_evicted()
    assert finish() is None
    assert first.log == second.log
    assert first.room == second.room == 0


def test_a_call_that_fails_on_every_rank_fails_alone(ranks):
    engine, first, second, finish = ranks
    state = engine.new_state(first, kind(first))
    assert isinstance(add(engine, first, state, -1.0), JobFailed)
    assert add(engine, first, state, 3.0).values[0] == 3.0, "the failed call is rolled back"
    assert finish() is None
    assert first.log == second.log


def test_an_argument_that_cannot_be_sent_fails_alone(ranks):
    engine, first, _second, finish = ranks
    state = engine.new_state(first, kind(first))
    failed = add(engine, first, state, 1.0, note=threading.Lock())
    assert isinstance(failed.error, NotSerializable)
    assert add(engine, first, state, 3.0).values[0] == 3.0
    assert finish() is None


def test_a_failure_of_another_rank_only_ends_the_group(ranks):
    engine, first, second, finish = ranks
    state = engine.new_state(first, kind(first))
    second.fails_alone = True

    def add_until_it_is_noticed():
        while True:
            add(engine, first, state, 1.0)

    with pytest.raises(DeviceFailed, match="a rank of this worker"):
        add_until_it_is_noticed()
    assert isinstance(finish(), RanksDiffer)


def test_a_failure_of_rank_0_only_ends_the_group(ranks):
    engine, first, _second, finish = ranks
    state = engine.new_state(first, kind(first))
    first.fails_alone = True
    with pytest.raises(DeviceFailed, match=r"did not confirm the failure of a step \(ValueError\)"):
        add(engine, first, state, 1.0)
    end = finish()
    assert isinstance(end, RanksDiffer)
    assert "the error of a step is none on this rank and ValueError on rank 0" in str(end)


def test_components_without_ranks_run_on_rank_0_only(ranks):
    engine, _first, second, finish = ranks
    alone = Adder()
    state = engine.new_state(alone, kind(alone))
    assert add(engine, alone, engine.fork(state), 2.0, note=threading.Lock()).values[0] == 2.0
    assert engine.export(state) == 0.0
    assert finish() is None
    assert second.log == []

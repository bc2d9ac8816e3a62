"""References to states: numbering, owners, and freeing after the last reference."""

from types import SimpleNamespace

from mstar.worker.commands import CreateState, ExportedState, Fork, Free, LoadState
from mstar.worker.outbox import Outbox
from mstar.worker.state_table import StateTable
from tests.worker.worker_harness import CONDUCTOR


def make_table():
    outbox = Outbox(CONDUCTOR)
    return StateTable(outbox), outbox, SimpleNamespace(is_preempted=False)


def test_each_state_is_a_command_for_the_engine_with_its_own_number():
    states, outbox, owner = make_table()
    exported = ExportedState("a", "Memory", None)
    created = states.create(owner, "m", "a", "Memory", "tenant")
    forked = states.fork(None, created)
    loaded = states.load(owner, "m", exported, "tenant")
    assert [created.number, forked.number, loaded.number] == [1, 2, 3]
    assert outbox.take() == [
        CreateState(1, "m", "a", "Memory", "tenant"),
        Fork(1, 2),
        LoadState(3, "m", exported, "tenant"),
    ]
    assert len(states) == 3


def test_a_state_is_freed_after_its_last_reference():
    states, outbox, owner = make_table()
    first, second = (states.create(owner, "m", "a", "Memory", "") for _ in range(2))
    same = first
    outbox.take()
    del first
    states.free_dropped()
    assert outbox.take() == []
    del same
    states.free_dropped()
    assert outbox.take() == [Free((1,))]
    assert len(states) == 1
    states.free_dropped()
    assert outbox.take() == [], "a state is freed once"
    assert second.number == 2


def test_an_evicted_state_preempts_its_owner():
    states, _, owner = make_table()
    other = SimpleNamespace(is_preempted=False)
    held = [states.create(owner, "m", "a", "Memory", ""), states.create(other, "m", "a", "Memory", "")]
    held.append(states.fork(None, held[1]))
    states.preempt_owners([held[0].number, held[2].number, 99])
    assert owner.is_preempted
    assert not other.is_preempted, "a fork that the route holds has no owner"

"""References to states: numbering, owners, and freeing after the last reference."""

from types import SimpleNamespace

from mstar.worker.commands import CreateState, ExportedState, Fork, Free, LoadState
from mstar.worker.outbox import Outbox
from mstar.worker.state_table import StateTable
from tests.worker.worker_harness import CONDUCTOR


def make_table():
    outbox = Outbox(CONDUCTOR)
    return StateTable(outbox), outbox, make_owner()


def make_owner():
    return SimpleNamespace(lookahead=None, is_preempted=False, is_over=False)


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
    other = make_owner()
    held = [states.create(owner, "m", "a", "Memory", ""), states.create(other, "m", "a", "Memory", "")]
    held.append(states.fork(None, held[1]))
    states.preempt_owners([held[0].number, held[2].number, 99])
    assert owner.is_preempted
    assert not other.is_preempted, "a fork that the route holds has no owner"
    assert states.preempted_owners() == [owner]


def test_owners_that_resume_or_end_are_not_preempted():
    states, _, _ = make_table()
    owners = [make_owner() for _ in range(4)]
    held = [states.create(owner, "m", "a", "Memory", "") for owner in owners]
    owners[0].is_over = True
    states.preempt_owners([state.number for state in held] * 2)
    owners[1].is_preempted = False
    owners[2].is_over = True
    assert states.preempted_owners() == [owners[3]]
    states.preempt_owners([held[1].number])
    assert states.preempted_owners() == [owners[3], owners[1]]

"""Targets of a replica group: the steps and the example of its docstring, on plain numbers."""

import pytest

from mstar.conductor.scaling.replica_group import GroupLoad, ReplicaGroup

DELAY_S = 5.0


def group_of(replicas, min_replicas=1, workers=("a", "b", "c")):
    return ReplicaGroup(workers, min_replicas, {"talk"}, target=replicas)


def run(group, seconds, load, *, start_s=0.0, is_requested=True, at=0.0):
    """Update the target every 0.2 s; return the clock at the end."""
    for step in range(round(seconds / 0.2) + 1):
        now = at + step * 0.2
        if is_requested:
            group.last_requested_at = now
        group.update_target(now, load, DELAY_S)
        group.scale_down(now, DELAY_S, start_s)
    return now


@pytest.mark.parametrize(
    "load",
    [
        GroupLoad(replicas=1, utilization=0.91, walks=1),
        GroupLoad(replicas=1, queued_batches=3, walks=1),
        GroupLoad(replicas=1, has_queued_requests=True),
    ],
    ids=["utilization", "backlog", "queued requests"],
)
def test_overload_scales_up_after_a_fifth_of_the_delay(load):
    group = group_of(1)
    run(group, 0.8, load)
    assert group.target == 1
    run(group, 0.4, load, at=1.0)
    assert group.target == 2


def test_the_example_of_the_docstring():
    group = group_of(1)
    end = run(group, 1.2, GroupLoad(replicas=1, utilization=1.2, walks=1))
    assert group.target == 2
    end = run(group, 4.8, GroupLoad(replicas=2, utilization=0.5, walks=1), at=end + 0.2)
    assert group.target == 2
    run(group, 0.4, GroupLoad(replicas=2, utilization=0.5, walks=1), at=end + 0.2)
    assert group.target == 1


def test_a_high_utilization_scales_up_by_more_than_one():
    group = group_of(1)
    run(group, 1.2, GroupLoad(replicas=1, utilization=2.0, walks=2))
    assert group.target == 3


def test_it_waits_for_a_replica_that_starts():
    group = group_of(1)
    run(group, 4.0, GroupLoad(replicas=1, utilization=1.2, walks=1, is_starting=True))
    assert group.target == 1


def test_slow_starts_delay_scaling_down():
    group = group_of(2)
    run(group, 14.0, GroupLoad(replicas=2), start_s=5.0)
    assert group.target == 2
    run(group, 1.6, GroupLoad(replicas=2), start_s=5.0, at=14.2)
    assert group.target == 1


def test_the_last_replica_stays_while_it_is_requested():
    group = group_of(1, min_replicas=0)
    end = run(group, 60.0, GroupLoad(replicas=1))
    assert group.target == 1
    end = run(group, 9.6, GroupLoad(replicas=1), is_requested=False, at=end + 0.2)
    assert group.target == 1
    run(group, 0.6, GroupLoad(replicas=1), is_requested=False, at=end + 0.2)
    assert group.target == 0


def test_an_unloaded_group_has_no_replicas_unless_it_is_requested():
    group = group_of(2)
    group.is_unloaded = True
    run(group, 0.0, GroupLoad(replicas=2))
    assert group.target == 2
    run(group, 0.0, GroupLoad(replicas=2), is_requested=False, at=1.0)
    assert group.target == 0

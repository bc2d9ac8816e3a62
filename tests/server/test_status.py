"""Readiness of models from the states of their worker processes."""

import pytest

from mstar.plan.tables import Plans
from mstar.server.status import ModelReadiness, WorkerProcessStatus, component_devices, model_readiness

UP, STARTING, DOWN, STOPPED = (WorkerProcessStatus(state) for state in ("up", "starting", "down", "stopped"))
FAILING = WorkerProcessStatus("restarting", failed_starts=6, next_start_in_s=12.4)
TRYING = WorkerProcessStatus("restarting", failed_starts=6)


def readiness(*groups, is_conductor_up=True, **statuses):
    plans = Plans({}, (), tuple(statuses), tuple((tuple(group), 1) for group in groups))
    return model_readiness(plans, statuses, is_conductor_up=is_conductor_up)


@pytest.mark.parametrize(
    ("a", "b", "state"),
    [
        (UP, UP, "ready"),
        (UP, FAILING, "ready"),
        (UP, STOPPED, "ready"),
        (STARTING, STOPPED, "loading"),
        (DOWN, STARTING, "loading"),
        (STARTING, FAILING, "loading"),
        (FAILING, FAILING, "failing"),
        (STOPPED, TRYING, "failing"),
        (STOPPED, STOPPED, "unloaded"),
    ],
)
def test_a_group_needs_one_worker_that_is_up(a, b, state):
    assert readiness("ab", a=a, b=b).state == state


def test_every_group_needs_a_worker():
    result = readiness("ab", "c", a=UP, b=DOWN, c=FAILING)
    assert result == ModelReadiness("failing", {"c": "restarting, 6 failed attempts, next attempt in 12 s"})
    assert (result.is_ready, result.is_missing) == (False, True)
    assert readiness("a", a=TRYING).workers == {"a": "restarting, 6 failed attempts, starting now"}


def test_an_unloaded_model_is_neither_ready_nor_missing():
    result = readiness("a", a=STOPPED)
    assert (result.is_ready, result.is_missing) == (False, False)


def test_a_model_without_a_conductor_is_not_ready():
    assert readiness("a", a=UP, is_conductor_up=False) == ModelReadiness("no conductor", {})


def test_a_worker_without_a_status_counts_as_up():
    assert readiness("a").is_ready


def test_the_devices_of_a_model_are_those_of_workers_that_are_up():
    loaded = {"a.lm": "cuda:0", "a.codec": "cpu", "a.b.lm": "cuda:1"}
    statuses = {
        "one": WorkerProcessStatus("up", devices=loaded),
        "two": WorkerProcessStatus("down", devices={"a.lm": "cuda:1"}),
        "three": WorkerProcessStatus("up", devices={"other.lm": "cpu"}),
    }
    assert component_devices("a", ["lm", "codec"], statuses) == {"one": {"lm": "cuda:0", "codec": "cpu"}}
    assert component_devices("a.b", ["lm"], statuses) == {"one": {"lm": "cuda:1"}}

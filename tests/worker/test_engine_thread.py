"""EngineThread: states are created, forked, loaded, exported and freed in the order of the commands."""

import queue
import threading
import time
from types import SimpleNamespace

import pytest

from mstar import Component, Model, op
from mstar.engine.engine import Engine
from mstar.engine.jobs import Job
from mstar.worker.commands import Batch, CreateState, Export, ExportedState, Fork, Free, LoadState
from mstar.worker.engine_thread import EngineThread
from tests.worker.worker_harness import Walks

TIMEOUT_S = 10.0


class EngineHarness:
    """An engine thread and the reports that it sends."""

    def __init__(self):
        self.reports = queue.SimpleQueue()
        self.thread = EngineThread({"m": Walks()}, Engine(), self.reports.put, threading.Lock())
        self.thread.start()

    def export(self, state, *commands):
        """Execute commands, then export a state."""
        self.thread.submit([*commands, Export(state, 7, "b.0")], may_run_inline=False)
        report = self.reports.get(timeout=TIMEOUT_S)
        assert report.ticket == 7
        return report.result


@pytest.fixture
def engine():
    harness = EngineHarness()
    yield harness
    harness.thread.stop()


@pytest.mark.parametrize("state", [1, 2], ids=["created", "forked"])
def test_a_state_belongs_to_the_tenant_of_its_request(engine, state):
    exported = engine.export(state, CreateState(1, "m", "a", "Memory", "acme"), Fork(1, 2))
    assert (exported.component, exported.kind, exported.data["tenant"]) == ("a", "Memory", "acme")


def test_a_loaded_state_keeps_its_tenant(engine):
    exported = engine.export(1, LoadState(1, "m", ExportedState("a", "Memory", {}), "acme"))
    assert exported.data["tenant"] == "acme"


def test_a_freed_state_is_gone(engine):
    engine.export(2, CreateState(1, "m", "a", "Memory", ""), Fork(1, 2), Free((1,)))
    assert engine.thread.stats() == {"engine_states": 1}


class Counter(Component):
    @op
    def inc(self, x: int) -> int:
        return x + 1


class Counting(Model):
    def __init__(self) -> None:
        self.counter = Counter()


class Spinner(Component):
    @op
    def spin(self, cpu_s: float) -> None:
        time.sleep(0.2)  # not CPU time
        until = time.thread_time() + cpu_s
        while time.thread_time() < until:
            pass


class Spinning(Model):
    def __init__(self) -> None:
        self.spinner = Spinner()


@pytest.mark.parametrize("is_inline", [True, False])
def test_the_cpu_time_inside_ops_is_counted(is_inline):
    reports = queue.SimpleQueue()
    thread = EngineThread({"m": Spinning()}, Engine(), reports.put, threading.Lock())
    thread.start()
    key = SimpleNamespace(component="spinner", op="spin")
    batch = Batch(1, "m", key, [Job({"cpu_s": 0.03})], [], 0.0)
    if not thread.submit([batch], may_run_inline=is_inline):
        reports.get(timeout=TIMEOUT_S)
    thread.stop()
    assert 0.03 <= thread.op_cpu_s < 0.15


def test_the_cost_of_a_batch_on_a_device_is_reported_when_the_device_has_finished():
    from mstar.nn.device_timer import busy_device
    from mstar.nn.pretend_gpu import pretend_gpu

    model = Counting()
    thread = EngineThread({"m": model}, Engine(), print, threading.Lock())

    def run(number):
        key = SimpleNamespace(component="counter", op="inc")
        return thread._run_batch(Batch(number, "m", key, [Job({"x": 1})], [], None))

    assert run(1).costs is None, "a CPU has no events"
    model.counter.device = pretend_gpu()
    with busy_device():
        late = [run(number) for number in (2, 3)]
    assert [report.costs for report in late] == [(), ()]
    report = run(4)
    costs = dict(report.costs)
    assert [*costs] == [2, 3, 4]
    assert all(seconds > 0 for seconds in costs.values())
    assert report.seconds == costs[4]
    assert [*dict(run(5).costs)] == [5]

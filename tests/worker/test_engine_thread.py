"""EngineThread: states are created, forked, loaded, exported and freed in the order of the commands."""

import queue
import threading

import pytest

from mstar.engine.engine import Engine
from mstar.worker.commands import CreateState, Export, ExportedState, Fork, Free, LoadState
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
        self.thread.submit([*commands, Export(state, 7)], may_run_inline=False)
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

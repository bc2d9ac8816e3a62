"""Long batches: named in the log, in metrics and in `mstar top` while they run."""

import logging
import re
import threading
import time

import numpy as np
import pytest

from mstar import Component, Int64, Model, Tensor, op, walk
from mstar.frontend.actor import FrontendActor
from mstar.launch.in_process import InProcessLauncher
from mstar.plan.compile import plan
from mstar.plan.planned_model import PlannedModel
from mstar.wire.messages import Peer
from mstar.worker import batch_watchdog
from mstar.worker.batch_watchdog import BatchWatchdog, RunningBatch


def lines(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "mstar.worker"]


def batch(seconds, number=1, expected_s=0.0):
    return RunningBatch(number, "m", "lm", "decode", seconds, expected_s, ("r1",))


def test_a_long_batch_is_logged_ever_more_rarely(caplog):
    watchdog = BatchWatchdog()
    for seconds in range(100):
        watchdog.check(batch(float(seconds)))
    assert lines(caplog) == [f"op lm.decode has run for {seconds} s" for seconds in (10, 20, 40, 80)]
    assert caplog.records[0].fields == {"model": "m", "op": "lm.decode", "seconds": 10.0, "rids": ["r1"]}


def test_each_batch_is_watched_anew(caplog):
    watchdog = BatchWatchdog()
    for running in (batch(11.0), batch(5.0, number=2), None, batch(12.0, number=2)):
        watchdog.check(running)
    assert lines(caplog) == ["op lm.decode has run for 11 s", "op lm.decode has run for 12 s"]


def test_a_batch_that_usually_takes_long_is_not_logged_early(caplog):
    watchdog = BatchWatchdog()
    for seconds in (11.0, 49.0, 51.0):
        watchdog.check(batch(seconds, expected_s=5.0))
    assert lines(caplog) == ["op lm.decode has run for 51 s"]


class Endless(Component):
    def __init__(self) -> None:
        self.is_released = threading.Event()

    @op
    def spin(self) -> Int64[Tensor, "1"]:
        self.is_released.wait()
        return np.zeros(1, np.int64)


class Stuck(Model):
    def __init__(self) -> None:
        self.endless = Endless()

    @walk
    def play(self) -> Int64[Tensor, "1"]:
        return self.endless.spin()


def test_a_running_op_is_named(monkeypatch, caplog):
    monkeypatch.setattr(batch_watchdog, "LONG_BATCH_S", 0.2)
    model = Stuck()
    with InProcessLauncher({"stuck": PlannedModel(model, plan(model.graphs(), None))}) as launcher:
        frontend = FrontendActor(launcher.actor_loop, Peer("front", 0), launcher.conductors)
        launcher.add_frontend(frontend)
        stream = frontend.open_stream("stuck", {})
        try:
            deadline = time.monotonic() + 20
            while not lines(caplog) and time.monotonic() < deadline:
                time.sleep(0.02)
            (totals,) = frontend.query_stats(Peer("local", 0)).result(5).ops
        finally:
            model.endless.is_released.set()
        assert [*stream] == []
        (after,) = frontend.query_stats(Peer("local", 0)).result(5).ops
    assert re.fullmatch(r"op endless\.spin has run for \d s", lines(caplog)[0])
    assert caplog.records[-1].levelno == logging.WARNING
    assert (totals.component, totals.op) == ("endless", "spin")
    assert totals.running_s == pytest.approx(0.2, abs=10)
    assert totals.running_s > 0
    assert after.running_s == 0

"""Durations by events of a device: known when the device has finished, without a wait, and learned as costs."""

import time

import pytest
import torch

from mstar.engine.engine import Engine
from mstar.engine.jobs import Job, JobDone
from mstar.nn.device_timer import busy_device, start_timer
from mstar.nn.lm.causal_lm import CausalLM
from mstar.nn.pretend_gpu import PretendGraph, count_traffic, pretend_gpu
from mstar.requests import Sampling
from mstar.walk.states import KV
from tests.nn.lm.model_families import new_network


def test_a_duration_is_known_when_the_device_has_finished():
    with count_traffic() as traffic:
        with busy_device():
            timer = start_timer(pretend_gpu())
            time.sleep(0.02)
            timer.stop()
            assert timer.seconds() is None
        assert 0.02 <= timer.seconds() < 5
    assert sum(traffic.events.values()) == 2
    assert not traffic.syncs


def test_a_device_without_events_has_no_timer():
    assert start_timer(torch.device("cpu")) is None
    assert start_timer(torch.device("meta")) is None


def test_a_captured_graph_has_no_events():
    with PretendGraph(), pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
        start_timer(pretend_gpu())


def test_the_cost_of_a_position_is_that_of_the_device():
    lm = CausalLM(lambda: new_network("llama"), eos_token_id=2, pages=256, page_size=4)
    lm.name, lm.device = "lm", pretend_gpu()
    lm.prepare()
    engine, op = Engine(), lm.ops()["next_token"]

    def job():
        return Job({"tokens": torch.arange(5), "kv": engine.new_state(lm, KV), "sampling": Sampling()})

    with busy_device():
        engine.run(lm, op, [job()])
    assert not engine._position_cost_s, "the device has not finished"
    with count_traffic() as traffic:
        results = engine.run(lm, op, [job(), job()])
    assert all(isinstance(result, JobDone) for result in results)
    assert engine._position_cost_s["lm", "next_token"] > 0
    assert not engine._timers
    assert sum(traffic.events.values()) == 2
    assert not any("device_timer" in line for line in traffic.syncs), "a duration is not waited for"

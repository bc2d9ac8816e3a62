"""A worker of a twin: the real engine, with ops that load nothing and last as long as they are told."""

import pytest

from mstar import KV, Component, Int64, State, Tensor, op
from mstar.config import OpSeconds
from mstar.engine.engine import Engine
from mstar.engine.jobs import Job, JobDone, JobFailed
from mstar.engine.twin.op_times import OpTimes
from mstar.engine.twin.twin_executor import TwinComponent, TwinExecutor, TwinState
from mstar.walk.twin import TwinSizes


class Memory(State):
    """A state that needs the network."""

    def __init__(self):
        raise AssertionError("a twin must not create it")


class Network(Component):
    weights = ("a file",)

    def prepare(self):
        raise AssertionError("a twin must not load weights")

    @op
    def think(self, tokens: Int64[Tensor, "T"], memory: Memory) -> int:
        raise AssertionError("a twin must not compute")

    @op
    def think_of(self, text: str, kv: KV) -> str:
        raise AssertionError("a twin must not compute")

    def prepare_twin(self, sizes):
        return {"think_of": lambda component, text, kv: text.upper()}


class Rules(Component):
    """It has no weights."""

    @op
    def is_long(self, text: str) -> bool:
        if not text:
            raise ValueError("empty")
        return len(text) > 3


def engine_of(waited, *components, **seconds):
    times = OpTimes({}, {name.replace("__", "."): OpSeconds(batch_s=value) for name, value in seconds.items()})
    prepared = {each: TwinComponent.prepare(each, TwinSizes(), times) for each in components}
    return Engine(executor=TwinExecutor(prepared, waited.append))


def test_ops_load_and_compute_nothing_and_last_as_long_as_set():
    network, waited = Network(), []
    network.name = "network"
    engine = engine_of(waited, network, network__think_of=2.0)
    state = engine.new_state(network, KV)
    (result,) = engine.run(network, Network.ops()["think_of"], [Job({"text": "yes", "kv": state})])
    assert result == JobDone(("YES",))
    assert waited == [pytest.approx(2.0, abs=0.1)]


def test_an_op_without_a_body_is_synthetic_and_its_states_hold_nothing():
    class Bare(Network):
        def prepare_twin(self, sizes):
            return {}

    bare = Bare()
    engine = engine_of([], bare)
    memory = engine.new_state(bare, Memory)
    assert isinstance(memory, TwinState)
    assert isinstance(engine.load(bare, Memory, engine.export(memory)), TwinState)
    (result,) = engine.run(bare, Bare.ops()["think"], [Job({"tokens": None, "memory": memory})])
    assert result == JobDone((1,))


def test_a_component_without_weights_runs_its_own_ops_and_fails_as_usual():
    rules = Rules()
    assert rules.prepare_twin(TwinSizes()) == rules.own_bodies()
    engine = engine_of([], rules)
    results = engine.run(rules, Rules.ops()["is_long"], [Job({"text": text}) for text in ("long text", "", "no")])
    assert results[0] == JobDone((True,))
    assert isinstance(results[1], JobFailed)
    assert results[2] == JobDone((False,))

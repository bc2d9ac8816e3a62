"""All examples in real processes under all kinds of placements: parity with eager runs."""

import itertools
import json
import random
from contextlib import contextmanager

import pytest

from mstar.graph import ir
from mstar.launch.in_process import InProcessLauncher
from mstar.launch.local_launcher import LocalLauncher
from mstar.plan.compile import plan
from mstar.plan.planned_model import PlannedModel
from mstar.testing.parity import random_placement
from tests.integration.deployment_clients import TARGETS, Oracle, add_frontend, run_clients

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
CROWD = 32
FIRST = ("prefill", "see", "encode", "read")
"""Ops of the prefill phase."""


@pytest.fixture(scope="module")
def oracles():
    return {name: Oracle.from_file(target) for name, target in TARGETS.items()}


def ops(model):
    calls = (node for graph in model.graphs().values() for node in ir.flat(graph.body) if isinstance(node, ir.Call))
    return sorted({(node.component, node.op) for node in calls})


def placement_toml(place, walks=()):
    """Text of a placement file; its values have the same syntax in TOML and JSON."""

    def lines(entries):
        return "".join(f"{json.dumps(key)} = {entry}\n" for key, entry in entries.items())

    return f"[place]\n{lines(place)}" + "".join(
        f"[walks.{name}]\n{lines(rules)}" for name, rules in dict(walks).items()
    )


def one_each(model):
    """One worker per component."""
    components = dict.fromkeys(component for component, _ in ops(model))
    return placement_toml({component: json.dumps(f"w{number}") for number, component in enumerate(components)})


def split(model):
    """Prefill on one worker, decode on the other."""
    return placement_toml({f"{part}.{op}": json.dumps("reads" if op in FIRST else "writes") for part, op in ops(model)})


def replicas(model):
    """Two replicas of everything."""
    return placement_toml({component: '["a", "b"]' for component, _ in ops(model)})


def mixed(model):
    """Random mix: single ops, replicas, spread states, per-walk rules, on at least three workers."""

    def entry(one):
        return f"{{ workers = {json.dumps(one.workers)}, spread = {json.dumps(one.spread)} }}"

    placements = (random_placement(model.graphs(), random.Random(seed)) for seed in itertools.count())
    has_all = (one for one in placements if one.walks and any(entry.spread for entry in one.place.values()))
    placement = next(one for one in has_all if len(one.workers()) > 2)
    walks = {name: {key: entry(one) for key, one in entries.items()} for name, entries in placement.walks.items()}
    return placement_toml({key: entry(one) for key, one in placement.place.items()}, walks)


@contextmanager
def serve_in_process(oracles):
    models = {name: oracle.model for name, oracle in oracles.items()}
    with InProcessLauncher(
        {name: PlannedModel(model, plan(model.graphs())) for name, model in models.items()}
    ) as deployment:
        yield deployment


def serve_in_processes(placement):
    @contextmanager
    def launched(oracles):
        texts = {name: placement(oracle.model) for name, oracle in oracles.items()}
        with LocalLauncher(TARGETS, texts, standby=False) as local:
            yield local
            assert not local.recent_exits

    return launched


@pytest.mark.parametrize(
    "deployment",
    [
        pytest.param(serve_in_process, id="one process"),
        pytest.param(serve_in_processes(mixed), id="mixed"),
        pytest.param(serve_in_processes(lambda _: ""), id="one worker", marks=pytest.mark.nightly),
        *[
            pytest.param(serve_in_processes(each), id=each.__name__, marks=pytest.mark.nightly)
            for each in (one_each, split, replicas)
        ],
    ],
)
def test_every_example_is_served_as_it_is_computed(deployment, oracles):
    with deployment(oracles) as running:
        front_end = add_frontend(running)
        for name, oracle in oracles.items():
            run_clients(front_end, name, oracle, CROWD)

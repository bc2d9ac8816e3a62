"""Every example, in real processes, under every kind of placement: what is served is what is computed eagerly."""

import itertools
import json
import random
from contextlib import contextmanager

import pytest

from mstar.graph import ir
from mstar.launch.local import Local
from mstar.launch.together import Together
from mstar.plan.compile import plan
from mstar.plan.deployment import Deployed
from mstar.testing.parity import random_placement
from tests.served.parts import TARGETS, Oracle, crowd, front

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
CROWD = 32
FIRST = ("prefill", "see", "encode", "read")
"""Ops that come before writing begins."""


@pytest.fixture(scope="module")
def oracles():
    return {name: Oracle.of(target) for name, target in TARGETS.items()}


def ops(model):
    calls = (node for graph in model.graphs().values() for node in ir.flat(graph.body) if isinstance(node, ir.Call))
    return sorted({(node.component, node.op) for node in calls})


def written(place, walks=()):
    """A placement file; what is written for workers in TOML is what is written in JSON."""

    def lines(entries):
        return "".join(f"{json.dumps(key)} = {entry}\n" for key, entry in entries.items())

    return f"[place]\n{lines(place)}" + "".join(
        f"[walks.{name}]\n{lines(found)}" for name, found in dict(walks).items()
    )


def one_each(model):
    """A worker for each component."""
    components = dict.fromkeys(component for component, _ in ops(model))
    return written({component: json.dumps(f"w{number}") for number, component in enumerate(components)})


def split(model):
    """Reading on one worker, writing on the other."""
    return written({f"{part}.{op}": json.dumps("reads" if op in FIRST else "writes") for part, op in ops(model)})


def replicas(model):
    """Two workers that have everything."""
    return written({component: '["a", "b"]' for component, _ in ops(model)})


def mixed(model):
    """Anything: single ops, replicas, spread states, walks of their own, on three workers or more."""

    def entry(one):
        return f"{{ workers = {json.dumps(one.workers)}, spread = {json.dumps(one.spread)} }}"

    drawn = (random_placement(model.graphs(), random.Random(seed)) for seed in itertools.count())
    has_all = (one for one in drawn if one.walks and any(entry.spread for entry in one.place.values()))
    found = next(one for one in has_all if len(one.workers()) > 2)
    walks = {name: {key: entry(one) for key, one in entries.items()} for name, entries in found.walks.items()}
    return written({key: entry(one) for key, one in found.place.items()}, walks)


@contextmanager
def together(oracles):
    models = {name: oracle.model for name, oracle in oracles.items()}
    with Together({name: Deployed(model, plan(model.graphs())) for name, model in models.items()}) as deployment:
        yield deployment


def processes(placement):
    @contextmanager
    def launched(oracles):
        texts = {name: placement(oracle.model) for name, oracle in oracles.items()}
        with Local(TARGETS, texts, spare=False) as local:
            yield local
            assert not local.deaths

    return launched


@pytest.mark.parametrize(
    "deployment",
    [
        pytest.param(together, id="one process"),
        pytest.param(processes(lambda _: ""), id="one worker"),
        *[pytest.param(processes(each), id=each.__name__) for each in (one_each, split, replicas, mixed)],
    ],
)
def test_every_example_is_served_as_it_is_computed(deployment, oracles):
    with deployment(oracles) as running:
        front_end = front(running)
        for name, oracle in oracles.items():
            crowd(front_end, name, oracle, CROWD)

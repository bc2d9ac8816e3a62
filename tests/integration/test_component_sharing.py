"""Workers of one process share components: exclusive execution and tenants of states."""

import time

from mstar import KV, Component, Model, Text, op, walk
from mstar.launch.in_process import InProcessLauncher
from mstar.plan.compile import plan
from mstar.plan.placement import Placement, PlacementRule
from mstar.plan.planned_model import PlannedModel
from tests.integration.deployment_clients import add_frontend


class ExclusiveOp(Component):
    """An op that detects concurrent execution."""

    def __init__(self):
        self.active = 0

    @op
    def run(self, number: int, kv: KV) -> str:
        self.active += 1
        time.sleep(0.002)
        active_calls, self.active = self.active, 0
        return f"{kv.tenant} {number}" if active_calls == 1 else "crowded"


class SharedModel(Model):
    def __init__(self):
        self.component = ExclusiveOp()

    @walk
    def count(self, number: int):
        yield Text(self.component.run(number, self.component.kv()))


def test_workers_of_one_process_share_a_component_exclusively():
    model = SharedModel()
    placement = Placement({"component": PlacementRule(("a", "b"))})
    with InProcessLauncher({"m": PlannedModel(model, plan(model.graphs(), placement))}) as deployment:
        front_end = add_frontend(deployment)
        names = [f"tenant{number % 3}" for number in range(24)]
        streams = [front_end.open_stream("m", {"number": n}, tenant=name) for n, name in enumerate(names)]
        texts = [[emission.value for emission in stream] for stream in streams]
    assert texts == [[f"{name} {n}"] for n, name in enumerate(names)]

"""What workers of one process share: components, which only one of them uses at a time, and what is whose."""

import time

from mstar import KV, Component, Model, Text, op, walk
from mstar.launch.in_process import InProcessLauncher
from mstar.plan.compile import plan
from mstar.plan.placement import Placement, PlacementRule
from mstar.plan.planned_model import PlannedModel
from tests.integration.deployment_clients import add_frontend


class ExclusiveOp(Component):
    """For one at a time: who finds somebody there says so."""

    def __init__(self):
        self.active = 0

    @op
    def run(self, number: int, kv: KV) -> str:
        self.active += 1
        time.sleep(0.002)
        found, self.active = self.active, 0
        return f"{kv.tenant} {number}" if found == 1 else "crowded"


class SharedModel(Model):
    def __init__(self):
        self.component = ExclusiveOp()

    @walk
    def run(self, number: int):
        yield Text(self.component.run(number, self.component.kv()))


def test_workers_of_one_process_use_a_component_one_at_a_time_and_know_whose_a_state_is():
    model = SharedModel()
    two = Placement({"desk": PlacementRule(("a", "b"))})
    with InProcessLauncher({"office": PlannedModel(model, plan(model.graphs(), two))}) as deployment:
        front_end = add_frontend(deployment)
        names = [f"tenant{number % 3}" for number in range(24)]
        streams = [front_end.open_stream("office", {"number": n}, tenant=name) for n, name in enumerate(names)]
        told = [[emission.value for emission in stream] for stream in streams]
    assert told == [[f"{name} {n}"] for n, name in enumerate(names)]

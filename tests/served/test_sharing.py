"""What workers of one process share: components, which only one of them uses at a time, and what is whose."""

import time

from mstar import KV, Component, Model, Text, op, walk
from mstar.launch.together import Together
from mstar.plan.compile import plan
from mstar.plan.deployment import Deployed
from mstar.plan.placement import Entry, Placement
from tests.served.parts import front


class Desk(Component):
    """For one at a time: who finds somebody there says so."""

    def __init__(self):
        self.inside = 0

    @op
    def sit(self, number: int, kv: KV) -> str:
        self.inside += 1
        time.sleep(0.002)
        found, self.inside = self.inside, 0
        return f"{kv.tenant} {number}" if found == 1 else "crowded"


class Office(Model):
    def __init__(self):
        self.desk = Desk()

    @walk
    def work(self, number: int):
        yield Text(self.desk.sit(number, self.desk.kv()))


def test_workers_of_one_process_use_a_component_one_at_a_time_and_know_whose_a_state_is():
    model = Office()
    two = Placement({"desk": Entry(("a", "b"))})
    with Together({"office": Deployed(model, plan(model.graphs(), two))}) as deployment:
        front_end = front(deployment)
        names = [f"tenant{number % 3}" for number in range(24)]
        streams = [front_end.open("office", {"number": n}, tenant=name) for n, name in enumerate(names)]
        told = [[emission.value for emission in stream] for stream in streams]
    assert told == [[f"{name} {n}"] for n, name in enumerate(names)]

"""Thread count of a component's ops."""

import torch

from mstar import Component, op
from mstar.engine.engine import Engine
from mstar.engine.jobs import Job, JobDone


class Counting(Component):
    """Tells how many threads there are."""

    @op
    def count(self) -> int:
        return torch.get_num_threads()


def test_each_component_has_its_own_number():
    before = torch.get_num_threads()
    one, two, any_number = Counting(), Counting(), Counting()
    one.threads, two.threads = 1, 2
    engine, the_op = Engine(), Counting.ops()["count"]
    counts = [engine.run(each, the_op, [Job({})])[0] for each in (one, two, one, any_number)]
    torch.set_num_threads(before)
    assert counts == [JobDone((count,)) for count in (1, 2, 1, 1)]

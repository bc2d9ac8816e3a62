"""In-process launcher: graceful shutdown."""

from mstar.launch.in_process import InProcessLauncher
from mstar.plan.compile import plan
from mstar.plan.planned_model import PlannedModel
from tests.chaos.faulty_models import TrapRequest, Traps
from tests.integration.deployment_clients import Client, add_frontend
from tests.launch.launcher_harness import wait_until


def test_running_requests_finish_before_the_engines_stop():
    model = Traps()
    with InProcessLauncher({"m": PlannedModel(model, plan(model.graphs()))}) as deployment:
        client = Client(add_frontend(deployment), "m", TrapRequest(7, steps=50))
        wait_until(lambda: client.output_counts)
    assert client.end is not None
    assert client.end.status == "ok"

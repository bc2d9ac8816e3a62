"""Emissions lost with a worker after their walk has finished are made again."""

import pytest

from mstar.config import RuntimeConfig
from mstar.frontend.actor import FrontendActor
from mstar.frontend.core import MAX_UNREADABLE
from mstar.launch.in_process import InProcessLauncher
from mstar.plan.compile import plan
from mstar.plan.planned_model import PlannedModel
from mstar.wire.frame import UnreadableValue
from mstar.wire.messages import Emit, Peer, PeerDead, Value
from tests.chaos.faulty_models import TrapRequest, TwoTraps
from tests.integration.deployment_clients import Client, Oracle

WINDOW = 16


class LossyFrontend(FrontendActor):
    """Front end that loses the tenth emission: its worker dies, or its bytes are unreadable."""

    def __init__(self, launcher, *, is_read=False, times=1):
        super().__init__(launcher.actor_loop, Peer("front", 0), launcher.conductors)
        self._is_read = is_read
        self._times = times

    def receive(self, now, sender, message):
        if isinstance(message, Emit) and message.index == 10 and self._times:
            self._times -= 1
            if not self._is_read:
                super().receive(now, sender, PeerDead(Peer("w", 0)))
                return
            message.value = Value(UnreadableValue("its arena is gone"))
        super().receive(now, sender, message)


@pytest.fixture
def launcher():
    with InProcessLauncher(
        {"m": PlannedModel(TwoTraps(), plan(TwoTraps().graphs()))},
        options=RuntimeConfig(max_undelivered_outputs=WINDOW),
    ) as launcher:
        yield launcher


@pytest.mark.parametrize(("steps", "is_read"), [(12, False), (2 * WINDOW, False), (12, True)])
def test_lost_emissions_are_made_again(launcher, steps, is_read):
    """In the first of two walks, also with more steps than a client can lag behind."""
    front_end = LossyFrontend(launcher, is_read=is_read)
    launcher.add_frontend(front_end)
    oracle = Oracle(TwoTraps(), [TrapRequest(7, steps=steps)])
    oracle.check(Client(front_end, "m", oracle.requests[0]).wait(5), 0)


def test_permanently_unreadable_emissions_fail_the_request(launcher):
    front_end = LossyFrontend(launcher, is_read=True, times=MAX_UNREADABLE + 1)
    launcher.add_frontend(front_end)
    end = Client(front_end, "m", TrapRequest(7, steps=12)).wait(5).end
    assert (end.status, end.error_type, end.error_message) == ("failed", "Unreadable", "its arena is gone")

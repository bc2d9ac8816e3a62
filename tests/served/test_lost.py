"""Emissions that are lost with a worker, after the walk that made them has ended: they are made again."""

import pytest

from mstar.config import Options
from mstar.launch.together import Together
from mstar.plan.compile import plan
from mstar.plan.deployment import Deployed
from mstar.server.front import FrontEnd
from mstar.server.streams import MISSED
from mstar.wire.frame import Unreadable
from mstar.wire.messages import Emit, Forget, Peer, Value
from tests.chaos.models import Ask, Twice
from tests.served.parts import Client, Oracle

WINDOW = 16


class Lossy(FrontEnd):
    """A front end to which the tenth emission does not come: a worker is lost with it, or with what it points to."""

    def __init__(self, together, *, is_read=False, times=1):
        super().__init__(together.node, Peer("front", 0), together.conductors)
        self._is_read = is_read
        self._times = times

    def receive(self, now, sender, message):
        if isinstance(message, Emit) and message.index == 10 and self._times:
            self._times -= 1
            if not self._is_read:
                super().receive(now, sender, Forget(Peer("w", 0)))
                return
            message.value = Value(Unreadable("its arena is gone"))
        super().receive(now, sender, message)


@pytest.fixture
def together():
    with Together({"m": Deployed(Twice(), plan(Twice().graphs()))}, options=Options(window=WINDOW)) as together:
        yield together


@pytest.mark.parametrize(("steps", "is_read"), [(12, False), (2 * WINDOW, False), (12, True)])
def test_what_was_lost_is_made_again(together, steps, is_read):
    """Of the first of two walks; of more steps than a client may be behind, so that the second waits for the first."""
    front_end = Lossy(together, is_read=is_read)
    together.add(front_end)
    oracle = Oracle(Twice(), [Ask(7, steps=steps)])
    oracle.judge(Client(front_end, "m", oracle.requests[0]).wait(5), 0)


def test_what_can_never_be_read_is_given_up(together):
    front_end = Lossy(together, is_read=True, times=MISSED + 1)
    together.add(front_end)
    end = Client(front_end, "m", Ask(7, steps=12)).wait(5).end
    assert (end.status, end.error, end.text) == ("failed", "Unreadable", "its arena is gone")

"""What is served is what the model computes eagerly; what cannot be served is told so, at once and by name."""

import random
import time

import pytest

from mstar.conductor.core import SILENCE
from mstar.config import Options
from mstar.launch.local import Local
from mstar.launch.together import Together
from mstar.plan.compile import plan
from mstar.plan.deployment import Deployed
from mstar.testing.parity import random_placement
from mstar.wire.messages import Finished, Peer, Refused
from tests.chaos.models import Ask, Traps
from tests.served.parts import EXAMPLES, TARGETS, Client, Oracle, crowd, front


def deployed(model, placement=None):
    return {"m": Deployed(model, plan(model.graphs(), placement))}


@pytest.mark.parametrize("name", TARGETS)
def test_every_example_in_one_process_under_a_random_placement(name):
    oracle = Oracle.of(TARGETS[name])
    placement = random_placement(oracle.model.graphs(), random.Random(name))
    with Together(deployed(oracle.model, placement)) as together:
        crowd(front(together), "m", oracle, 8)


def test_orpheus_in_processes_under_its_placement():
    oracle = Oracle.of(TARGETS["orpheus"])
    placement = EXAMPLES / "placements" / "orpheus.toml"
    with Local({"orpheus": TARGETS["orpheus"]}, {"orpheus": placement}, spare=False) as local:
        crowd(front(local), "orpheus", oracle, 8)
        assert not local.deaths


@pytest.fixture
def traps():
    """A model that fails as it is asked to, in one process; one request runs at a time, one more may wait."""
    with Together(deployed(Traps()), options=Options(max_live=1, queue_bound=1)) as together:
        yield together, front(together)


@pytest.mark.parametrize("trap", ["raise", "route"])
def test_what_an_author_raises_is_what_a_client_is_told(traps, trap):
    ask = Ask(7, steps=5, trap=trap, at=3)
    with pytest.raises((ValueError, KeyError)) as eager:
        Traps().run(ask)
    end = Client(traps[1], "m", ask).wait().end
    assert (end.status, end.error, end.text) == ("failed", type(eager.value).__name__, str(eager.value))


def test_nobody_is_given_up_because_all_were_held_up(traps):
    begun, times = time.monotonic(), 10_000_000
    while time.monotonic() - begun < SILENCE:
        begun, times = time.monotonic(), 2 * times
        sum(range(times))  # one call of the interpreter's own: no other thread runs beside it
    time.sleep(0.1)
    assert Client(traps[1], "m", Ask(7, steps=3)).wait().end.status == "ok"


def test_an_unknown_model_is_refused(traps):
    end = Client(traps[1], "n", Ask(7)).wait().end
    assert isinstance(end, Refused)
    assert (end.status, end.why) == (404, "no model is called 'n'")


def test_one_too_many_is_refused_with_a_time_to_come_again(traps):
    clients = [Client(traps[1], "m", Ask(key, steps=20)) for key in range(3)]
    end = clients[2].wait().end
    assert isinstance(end, Refused)
    assert end.status == 429
    assert end.retry_after > 0
    assert [client.wait().end.status for client in clients[:2]] == ["ok", "ok"]


def test_a_request_that_takes_too_long_is_ended(traps):
    client = Client(traps[1], "m", Ask(7, steps=10_000), patience=0.1).wait()
    assert isinstance(client.end, Finished)
    assert (client.end.status, client.end.error) == ("deadline", "Deadline")
    assert 0.1 < client.seconds < 2


def test_nothing_is_left_of_a_request_that_nobody_wants(traps):
    together, front_end = traps
    client = Client(front_end, "m", Ask(7, steps=10_000))
    while len(client.log) < 3:
        time.sleep(0.002)
    client.close()
    Client(front_end, "m", Ask(8, steps=2)).wait()  # its turn has come, so the other one is over
    assert client.end is None
    for peer in (front_end.peer, together.conductor, Peer("local", 0)):
        stock = front_end.take_stock(peer).result(1.0)
        assert not any(n for what, n in stock.items() if what not in ("workers", "arrived")), stock

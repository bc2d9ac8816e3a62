"""Multi-turn client input, served in one process: same outputs as an eager run, with any interruptions."""

import pytest

from mstar import ClientInput
from mstar.launch.in_process import InProcessLauncher
from mstar.plan.compile import plan
from mstar.plan.placement import parse_placement
from mstar.plan.planned_model import PlannedModel
from mstar.sim.models import Chat, SimRequest
from mstar.walk.client_input import NEVER_INTERRUPTS
from mstar.wire.frame import UnreadableValue
from mstar.wire.messages import RequestFinished
from tests.integration.deployment_clients import add_frontend

PLACEMENTS = [{}, {"lm": "a", "voice": "b"}, {"lm": ["a", "b"], "voice": ["b", "c"]}]


@pytest.fixture(params=PLACEMENTS)
def front_end(request):
    model = Chat()
    placement = parse_placement({"place": request.param}) if request.param else None
    with InProcessLauncher({"chat": PlannedModel(model, plan(model.graphs(), placement))}) as deployment:
        yield add_frontend(deployment)


class MultiTurnClient:
    """A multi-turn request with its inputs, compared with an eager run."""

    def __init__(self, front_end, request):
        self.request, self.front_end = request, front_end
        self.stream = front_end.open_stream("chat", request, timeout_s=30.0)
        self.received, self.answers, self.sent, self.walks = {}, [], [], 0

    def read(self, limit=None):
        """Read outputs until the turn ends, or a maximum number of them."""
        for event in self.stream.turn(timeout=10.0):
            self.received.setdefault(event.kind, []).append(event.value)
            limit = None if limit is None else limit - 1
            if limit == 0:
                return
        self.answers.append(self.stream.turn_result)

    def send(self, value, *, interrupts):
        """Send an input, during or after the answer."""
        self.stream.send_input(value)
        counts = {kind: len(values) for kind, values in self.received.items()}
        if interrupts:
            self.read()  # outputs in flight before the interruption, and maybe the first one after it
            counts = self.front_end._core._streams[self.stream.rid].inputs[len(self.sent)].received_counts
        self.walks += 2
        self.sent.append(ClientInput(value, self.walks - 1 if interrupts else NEVER_INTERRUPTS, counts))

    def check(self):
        """Close the input and compare with the eager run."""
        self.stream.send_input(None)
        self.read()
        assert isinstance(self.stream.end, RequestFinished)
        assert self.stream.end.status == "ok"
        expected, kinds = Chat().run(self.request, self.sent), {}
        for emission in expected.emissions:
            kinds.setdefault(type(emission).__name__, []).append(emission.value)
        assert self.received == kinds
        assert self.stream.result == expected.result
        assert self.answers[:-1] == expected.answers


def test_a_client_sends_input_after_each_answer(front_end):
    client = MultiTurnClient(front_end, SimRequest(3, steps=4))
    for token in (11, 12, 13):
        client.read()
        client.send(token, interrupts=False)
    client.read()
    client.check()


def test_a_client_interrupts_answers(front_end):
    client = MultiTurnClient(front_end, SimRequest(4, steps=400))
    for token in (21, 22, 23):
        client.read(limit=7)
        client.send(token, interrupts=True)
    assert sum(map(len, client.received.values())) < 400
    client.read(limit=5)
    client.send(24, interrupts=True)
    client.read()
    client.check()


def test_many_multi_turn_clients_at_once(front_end):
    clients = [MultiTurnClient(front_end, SimRequest(key, steps=100)) for key in range(8)]
    for turn in range(3):
        for number, client in enumerate(clients):
            client.read(limit=3 + number if number % 2 else None)
            client.send(turn, interrupts=bool(number % 2))
    for client in clients:
        client.read()
        client.check()


def test_an_unreadable_input_fails_the_request(front_end):
    client = MultiTurnClient(front_end, SimRequest(6, steps=3))
    client.read()
    client.stream.send_input(UnreadableValue("its arena is gone"))
    assert [*client.stream.turn(timeout=10.0)] == []
    assert (client.stream.end.status, client.stream.end.error_message) == ("failed", "its arena is gone")


def test_a_silent_client_ends_its_input(front_end):
    stream = front_end.open_stream("chat", SimRequest(5, steps=3))
    texts = [event.value for event in stream.events(timeout=10.0) if event.kind == "Text"]
    assert texts == [
        emission.value for emission in Chat().run(SimRequest(5, steps=3)).emissions if type(emission).__name__ == "Text"
    ]
    assert stream.result == 1

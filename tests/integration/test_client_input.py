"""What clients say to requests that run, served in one process: = eager, whatever is cut and whenever."""

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
    with InProcessLauncher({"chat": PlannedModel(model, plan(model.graphs(), placement))}) as together:
        yield add_frontend(together)


class MultiTurnClient:
    """A request, what its client says, and what the eager run makes of the same."""

    def __init__(self, front_end, ask):
        self.request, self.front_end = ask, front_end
        self.stream = front_end.open_stream("chat", ask, timeout_s=30.0)
        self.received, self.answers, self.sent, self.walks = {}, [], [], 0

    def read(self, most=None):
        """What comes, until it waits; or only so much."""
        for news in self.stream.turn(timeout=10.0):
            self.received.setdefault(news.kind, []).append(news.value)
            most = None if most is None else most - 1
            if most == 0:
                return
        self.answers.append(self.stream.turn_result)

    def send(self, value, *, interrupts):
        """Say something, while it is answered or after."""
        self.stream.send_input(value)
        counts = {kind: len(values) for kind, values in self.received.items()}
        if interrupts:
            self.read()  # what was on its way until the cut, and perhaps the first of what came after it
            counts = self.front_end._core._streams[self.stream.rid].inputs[len(self.sent)].counts
        self.walks += 2
        self.sent.append(ClientInput(value, self.walks - 1 if interrupts else NEVER_INTERRUPTS, counts))

    def check(self):
        """Say no more; it was all as it should be."""
        self.stream.send_input(None)
        self.read()
        assert isinstance(self.stream.end, RequestFinished)
        assert self.stream.end.status == "ok"
        want, kinds = Chat().run(self.request, self.sent), {}
        for emission in want.emissions:
            kinds.setdefault(type(emission).__name__, []).append(emission.value)
        assert self.received == kinds
        assert self.stream.result == want.result
        assert self.answers[:-1] == want.answers


def test_a_client_sends_input_after_each_answer(front_end):
    talk = MultiTurnClient(front_end, SimRequest(3, steps=4))
    for word in (11, 12, 13):
        talk.read()
        talk.send(word, interrupts=False)
    talk.read()
    talk.check()


def test_a_client_interrupts_answers(front_end):
    talk = MultiTurnClient(front_end, SimRequest(4, steps=400))
    for word in (21, 22, 23):
        talk.read(most=7)
        talk.send(word, interrupts=True)
    assert sum(map(len, talk.received.values())) < 400
    talk.read(most=5)
    talk.send(24, interrupts=True)
    talk.read()
    talk.check()


def test_many_multi_turn_clients_at_once(front_end):
    talks = [MultiTurnClient(front_end, SimRequest(key, steps=100)) for key in range(8)]
    for turn in range(3):
        for number, talk in enumerate(talks):
            talk.read(most=3 + number if number % 2 else None)
            talk.send(turn, interrupts=bool(number % 2))
    for talk in talks:
        talk.read()
        talk.check()


def test_what_cannot_be_read_ends_the_request(front_end):
    talk = MultiTurnClient(front_end, SimRequest(6, steps=3))
    talk.read()
    talk.stream.send_input(UnreadableValue("its arena is gone"))
    assert [*talk.stream.turn(timeout=10.0)] == []
    assert (talk.stream.end.status, talk.stream.end.error_message) == ("failed", "its arena is gone")


def test_a_silent_client_ends_its_input(front_end):
    stream = front_end.open_stream("chat", SimRequest(5, steps=3))
    got = [news.value for news in stream.events(timeout=10.0) if news.kind == "Text"]
    assert got == [one.value for one in Chat().run(SimRequest(5, steps=3)).emissions if type(one).__name__ == "Text"]
    assert stream.result == 1

"""What clients say: a route hears it in order, and a walk that it cuts leaves no trace but what the client had."""

import pytest

from mstar import ClientInput, Model, RouteError
from mstar.sim.models import Chat, SimRequest
from mstar.testing.parity import parity, parity_all
from mstar.walk.client_input import InputLog, emission_totals_after

ASK = SimRequest(key=5, steps=6)


def values(outcome, kind):
    return [one.value for one in outcome.emissions if type(one).__name__ == kind]


# ---------------------------------------------------------------- eagerly
def test_a_route_gets_client_input_in_order_and_then_the_end():
    received = []

    class Listens(Model):
        async def route(self, request):
            while (value := await self.next_input(answer=len(received))) is not None:
                received.append(value)
            return await self.next_input(answer="still")

    outcome = Listens().run(0, [ClientInput("a"), ClientInput("b")])
    assert (received, outcome.result, outcome.answers) == (["a", "b"], None, [0, 1, 2, "still"])


def test_a_walk_that_is_not_interrupted_finishes():
    alone, after = Chat().run(ASK), Chat().run(ASK, [ClientInput(7, walk=2)])
    assert len(values(alone, "Text")) == 6
    assert values(after, "Text")[:6] == values(alone, "Text")
    assert values(after, "Text")[6:] != values(alone, "Text")


def test_an_interruption_keeps_delivered_output_and_rolls_back_states():
    cut = Chat().run(ASK, [ClientInput(7, walk=1, counts={"Text": 2})])
    at_once = Chat().run(ASK, [ClientInput(7, walk=0)])
    whole = Chat().run(ASK)
    assert values(cut, "Text")[:2] == values(whole, "Text")[:2]
    assert values(cut, "Text")[2:] == values(at_once, "Text"), "what was cut is not remembered"
    assert cut.answers[0] == 1
    assert at_once.answers == cut.answers


def test_the_end_of_input_interrupts_nothing():
    assert values(Chat().run(ASK, [ClientInput(None, walk=0)]), "Text") == values(Chat().run(ASK), "Text")


def test_a_route_may_await_walks_and_client_input_and_nothing_else():
    class Sleeps(Model):
        async def route(self, request):
            class Other:
                def __await__(self):
                    return (yield self)

            await Other()

    with pytest.raises(RouteError, match=r"await only walks and self\.next_input"):
        Sleeps().run(0)


# ---------------------------------------------------------------- under any schedule and placement
@pytest.mark.parametrize("counts", [{}, {"Text": 1}, {"Text": 4, "Audio": 1}, {"Text": 6, "Audio": 2}])
def test_parity_of_interrupted_walks(counts):
    client_inputs = [
        ClientInput(7, walk=1, counts=counts),
        ClientInput(8, walk=5, counts={"Text": 9, "Audio": 4}),
        ClientInput(9, walk=7),
    ]
    parity(Chat(), ASK, inputs=client_inputs, schedules=12)


def test_parity_of_several_requests():
    parity_all(
        Chat(),
        [SimRequest(key, steps=key + 1) for key in range(5)],
        inputs=[ClientInput(7, walk=1, counts={"Text": 1})],
    )


# ---------------------------------------------------------------- the words themselves
def test_only_the_next_input_interrupts():
    log = InputLog([ClientInput(1, walk=4), ClientInput(2, walk=1)])
    assert log.find_interruption(3) is None
    assert log.find_interruption(4) is log.inputs[0]
    assert log.consume() == 1
    assert log.find_interruption(4) is log.inputs[1]
    assert log.consume() == 2
    assert log.find_interruption(9) is None
    assert (log.consume(), log.consumed) == (None, 2)


def test_finished_walks_are_never_rolled_back():
    assert emission_totals_after({"Text": 5, "Audio": 1}, ClientInput(1, counts={"Text": 3, "Audio": 2})) == {
        "Text": 5,
        "Audio": 2,
    }

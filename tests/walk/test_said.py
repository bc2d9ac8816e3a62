"""What clients say: a route hears it in order, and a walk that it cuts leaves no trace but what the client had."""

import pytest

from mstar import Model, RouteError, Said
from mstar.sim.models import Ask, Chat
from mstar.testing.parity import parity, parity_all
from mstar.walk.said import Ears, totals_after

ASK = Ask(key=5, steps=6)


def values(outcome, kind):
    return [one.value for one in outcome.emissions if type(one).__name__ == kind]


# ---------------------------------------------------------------- eagerly
def test_a_route_hears_what_is_said_in_order_and_then_that_no_more_is():
    heard = []

    class Listens(Model):
        async def route(self, request):
            while (said := await self.more(answer=len(heard))) is not None:
                heard.append(said)
            return await self.more(answer="still")

    outcome = Listens().run(0, [Said("a"), Said("b")])
    assert (heard, outcome.result, outcome.answers) == (["a", "b"], None, [0, 1, 2, "still"])


def test_a_walk_that_nobody_cuts_goes_on_to_its_end():
    alone, after = Chat().run(ASK), Chat().run(ASK, [Said(7, walk=2)])
    assert len(values(alone, "Text")) == 6
    assert values(after, "Text")[:6] == values(alone, "Text")
    assert values(after, "Text")[6:] != values(alone, "Text")


def test_a_cut_leaves_what_the_client_had_and_states_as_they_were():
    cut = Chat().run(ASK, [Said(7, walk=1, counts={"Text": 2})])
    at_once = Chat().run(ASK, [Said(7, walk=0)])
    whole = Chat().run(ASK)
    assert values(cut, "Text")[:2] == values(whole, "Text")[:2]
    assert values(cut, "Text")[2:] == values(at_once, "Text"), "what was cut is not remembered"
    assert cut.answers[0] == 1
    assert at_once.answers == cut.answers


def test_no_more_cuts_nothing():
    assert values(Chat().run(ASK, [Said(None, walk=0)]), "Text") == values(Chat().run(ASK), "Text")


def test_a_route_may_wait_for_walks_and_for_more_and_nothing_else():
    class Sleeps(Model):
        async def route(self, request):
            class Other:
                def __await__(self):
                    return (yield self)

            await Other()

    with pytest.raises(RouteError, match=r"await walks and self\.more"):
        Sleeps().run(0)


# ---------------------------------------------------------------- under any schedule and placement
@pytest.mark.parametrize("counts", [{}, {"Text": 1}, {"Text": 4, "Audio": 1}, {"Text": 6, "Audio": 2}])
def test_parity_of_what_is_cut(counts):
    said = [Said(7, walk=1, counts=counts), Said(8, walk=5, counts={"Text": 9, "Audio": 4}), Said(9, walk=7)]
    parity(Chat(), ASK, said=said, schedules=12)


def test_parity_of_several_requests():
    parity_all(Chat(), [Ask(key, steps=key + 1) for key in range(5)], said=[Said(7, walk=1, counts={"Text": 1})])


# ---------------------------------------------------------------- the words themselves
def test_only_what_is_next_cuts():
    ears = Ears([Said(1, walk=4), Said(2, walk=1)])
    assert ears.cutting(3) is None
    assert ears.cutting(4) is ears.said[0]
    assert ears.hear() == 1
    assert ears.cutting(4) is ears.said[1]
    assert ears.hear() == 2
    assert ears.cutting(9) is None
    assert (ears.hear(), ears.heard) == (None, 2)


def test_walks_that_had_ended_are_never_taken_back():
    assert totals_after({"Text": 5, "Audio": 1}, Said(1, counts={"Text": 3, "Audio": 2})) == {"Text": 5, "Audio": 2}

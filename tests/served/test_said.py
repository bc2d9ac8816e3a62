"""What clients say to requests that run, served in one process: = eager, whatever is cut and whenever."""

import pytest

from mstar import Said
from mstar.launch.together import Together
from mstar.plan.compile import plan
from mstar.plan.deployment import Deployed
from mstar.plan.placement import parse_placement
from mstar.sim.models import Ask, Chat
from mstar.walk.said import AWAITED
from mstar.wire.frame import Unreadable
from mstar.wire.messages import Finished
from tests.served.parts import front

PLACEMENTS = [{}, {"lm": "a", "voice": "b"}, {"lm": ["a", "b"], "voice": ["b", "c"]}]


@pytest.fixture(params=PLACEMENTS)
def front_end(request):
    model = Chat()
    placement = parse_placement({"place": request.param}) if request.param else None
    with Together({"chat": Deployed(model, plan(model.graphs(), placement))}) as together:
        yield front(together)


class Talk:
    """A request, what its client says, and what the eager run makes of the same."""

    def __init__(self, front_end, ask):
        self.ask, self.front_end = ask, front_end
        self.stream = front_end.open("chat", ask, patience=30.0)
        self.got, self.answers, self.said, self.walks = {}, [], [], 0

    def read(self, most=None):
        """What comes, until it waits; or only so much."""
        for news in self.stream.turn(timeout=10.0):
            self.got.setdefault(news.kind, []).append(news.value)
            most = None if most is None else most - 1
            if most == 0:
                return
        self.answers.append(self.stream.answer)

    def say(self, value, *, is_cut):
        """Say something, while it is answered or after."""
        self.stream.say(value)
        counts = {kind: len(values) for kind, values in self.got.items()}
        if is_cut:
            self.read()  # what was on its way until the cut, and perhaps the first of what came after it
            counts = self.front_end._core._streams[self.stream.rid].said[len(self.said)].counts
        self.walks += 2
        self.said.append(Said(value, self.walks - 1 if is_cut else AWAITED, counts))

    def check(self):
        """Say no more; it was all as it should be."""
        self.stream.say(None)
        self.read()
        assert isinstance(self.stream.end, Finished)
        assert self.stream.end.status == "ok"
        want, kinds = Chat().run(self.ask, self.said), {}
        for emission in want.emissions:
            kinds.setdefault(type(emission).__name__, []).append(emission.value)
        assert self.got == kinds
        assert self.stream.result == want.result
        assert self.answers[:-1] == want.answers


def test_a_client_says_more_when_it_was_answered(front_end):
    talk = Talk(front_end, Ask(3, steps=4))
    for word in (11, 12, 13):
        talk.read()
        talk.say(word, is_cut=False)
    talk.read()
    talk.check()


def test_a_client_cuts_answers_short(front_end):
    talk = Talk(front_end, Ask(4, steps=400))
    for word in (21, 22, 23):
        talk.read(most=7)
        talk.say(word, is_cut=True)
    assert sum(map(len, talk.got.values())) < 400
    talk.read(most=5)
    talk.say(24, is_cut=True)
    talk.read()
    talk.check()


def test_many_talk_at_the_same_time(front_end):
    talks = [Talk(front_end, Ask(key, steps=100)) for key in range(8)]
    for turn in range(3):
        for number, talk in enumerate(talks):
            talk.read(most=3 + number if number % 2 else None)
            talk.say(turn, is_cut=bool(number % 2))
    for talk in talks:
        talk.read()
        talk.check()


def test_what_cannot_be_read_ends_the_request(front_end):
    talk = Talk(front_end, Ask(6, steps=3))
    talk.read()
    talk.stream.say(Unreadable("its arena is gone"))
    assert [*talk.stream.turn(timeout=10.0)] == []
    assert (talk.stream.end.status, talk.stream.end.text) == ("failed", "its arena is gone")


def test_who_says_nothing_is_taken_to_say_no_more(front_end):
    stream = front_end.open("chat", Ask(5, steps=3))
    got = [news.value for news in stream.events(timeout=10.0) if news.kind == "Text"]
    assert got == [one.value for one in Chat().run(Ask(5, steps=3)).emissions if type(one).__name__ == "Text"]
    assert stream.result == 1

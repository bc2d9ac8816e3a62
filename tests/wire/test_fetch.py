"""Values whose bytes are on another host: their line keeps its order, and nobody else waits for them."""

import threading
import time

import pytest

from mstar.errors import NotHere
from mstar.wire import fetch
from mstar.wire.frame import Translator, Unreadable, joined
from mstar.wire.messages import Cancel, Peer, Submit, Value
from mstar.wire.node import Node
from mstar.wire.whereabouts import Whereabouts
from tests.wire.parts import KEY, Ear, Plain, eventually, running

A, B, C = Peer("a", 0), Peer("b", 0), Peer("c", 0)


class Distant(Plain):
    """A codec for which some texts are far away: it has them once the gate is open."""

    def __init__(self):
        super().__init__()
        self.gate = threading.Event()
        self.asked = []

    def unpack(self, data, sender, *, may_wait=False):
        value = super().unpack(data, sender)
        if not str(value).startswith("far"):
            return value
        if not may_wait:
            raise NotHere
        self.asked.append(value)
        self.gate.wait(20)
        if value == "far and lost":
            raise NotHere  # which it should not
        return value


class House:
    """Three nodes: b hears what a and c say."""

    def __init__(self, directory):
        self.codec = Distant()
        self.ear = Ear("b")
        self.node = self._made(directory, self.ear, self.codec)
        self.a = self._made(directory, Ear("a"), Plain())
        self.c = self._made(directory, Ear("c"), Plain())

    def _made(self, directory, ear, codec):
        node = Node(Whereabouts(directory), KEY, codec)
        node.add(ear)
        return node

    def give(self, *values, by=None):
        """Each in a frame of its own."""
        node, sender = (by, C) if by else (self.a, A)
        for value in values:
            sent = node.counters["sent"]
            node.call(lambda value=value: node.send(sender, B, Submit(str(value), "m", Value(value))))
            eventually(lambda sent=sent: node.counters["sent"] > sent)

    def heard(self, sender=A):
        return [message.request.it for who, message in self.ear.heard if who == sender]

    def threads(self):
        return [thread for thread in threading.enumerate() if thread.name.startswith("fetch from")]


@pytest.fixture
def house(tmp_path):
    made = House(tmp_path)
    with running(made.node), running(made.a), running(made.c):
        yield made
        made.codec.gate.set()
    assert made.threads() == []


def test_a_line_keeps_its_order_and_holds_up_no_other(house):
    house.give(1, "far 2", 3, "far 4", 5)
    house.ear.wait(lambda: house.heard() == [1])
    house.give("6", "7", by=house.c)
    house.ear.wait(lambda: house.heard(C) == ["6", "7"])
    assert house.heard() == [1]
    assert house.node.stock()["fetching"] == 4
    house.codec.gate.set()
    house.ear.wait(lambda: house.heard() == [1, "far 2", 3, "far 4", 5])
    eventually(lambda: house.node.stock()["fetching"] == 0)
    house.give(8)
    house.ear.wait(lambda: house.heard()[-1] == 8)
    assert len(house.threads()) == 1


def test_two_lines_wait_at_the_same_time(house):
    house.give("far 1")
    house.give("far 2", by=house.c)
    eventually(lambda: set(house.codec.asked) == {"far 1", "far 2"})
    house.codec.gate.set()
    house.ear.wait(lambda: len(house.ear.heard) == 2)


def test_what_a_life_said_that_is_over_is_dropped_and_its_thread_ends(house):
    house.give("far 1", "far 2")
    eventually(lambda: house.codec.asked == ["far 1"])
    house.node.call(lambda: house.node.forget(A))
    eventually(lambda: house.codec.forgotten == [A])
    assert house.node.stock()["fetching"] == 0
    house.codec.gate.set()
    eventually(lambda: not house.threads())
    house.give("3", by=house.c)
    house.ear.wait(lambda: house.ear.heard)
    assert (house.heard(), house.heard(C), house.codec.asked) == ([], ["3"], ["far 1"])


def test_what_cannot_be_had_costs_one_value_and_what_holds_nothing_one_payload(house):
    house.codec.gate.set()
    house.give("far and lost")
    house.ear.wait(lambda: house.ear.heard)
    (lost,) = house.heard()
    assert isinstance(lost, Unreadable)
    line = next(iter(house.node._outside._lines.values()))
    house.node.call(lambda: line.fetch.put(b"nonsense"))
    eventually(lambda: house.node.counters["undecoded"] == 1)
    house.give("on it goes")
    house.ear.wait(lambda: house.heard()[-1] == "on it goes")
    assert house.node.stock()["fetching"] == 0


def test_the_end_of_a_node_does_not_wait_long_for_what_is_on_its_way(house):
    house.give("far 1")
    eventually(lambda: house.codec.asked)
    begin = time.monotonic()
    house.node.stop()
    eventually(lambda: house.codec.is_closed)
    assert time.monotonic() - begin < fetch.JOIN_S + 1.0
    house.codec.gate.set()
    eventually(lambda: not house.threads())


def test_a_translator_says_that_a_value_is_not_here_unless_it_may_wait():
    codec = Distant()
    codec.gate.set()
    sent = Translator(codec)
    payload = joined([sent.encode(one, B) for one in (Cancel("x"), Submit("r", "m", Value("far")))])[0]
    with pytest.raises(NotHere):
        Translator(codec).decode(payload, A)
    cancel, submit = Translator(codec, may_wait=True).decode(payload, A)
    assert (cancel.rid, submit.request.it) == ("x", "far")

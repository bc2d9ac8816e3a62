"""Lookaheads served in one process: results are those of an eager run, and they run while the route waits for input."""

import threading

import pytest

from mstar import Component, Model, State, View, lookahead, op, walk
from mstar.launch.in_process import InProcessLauncher
from mstar.plan.compile import plan
from mstar.plan.placement import parse_placement
from mstar.plan.planned_model import PlannedModel
from mstar.sim.models import Foresee, SimRequest
from mstar.walk.client_input import NEVER_INTERRUPTS, ClientInput
from tests.integration.deployment_clients import add_frontend

PLACEMENTS = [{}, {"lm": "a", "voice": "b"}, {"lm": ["a", "b"], "voice": ["b", "c"]}]


def deploy(name, model, place=None):
    placement = parse_placement({"place": place}) if place else None
    return InProcessLauncher({name: PlannedModel(model, plan(model.graphs(), placement))})


def read_turn(stream):
    return [(event.kind, event.value) for event in stream.turn(timeout=10.0)]


@pytest.mark.parametrize("place", PLACEMENTS)
def test_a_conversation_is_that_of_an_eager_run(place):
    inputs = [4, 7, 9, 2]
    with deploy("foresee", Foresee(), place) as deployment:
        front_end = add_frontend(deployment)
        for key in range(4):
            stream = front_end.open_stream("foresee", SimRequest(key, steps=3), timeout_s=30.0)
            received, answers = [], []
            for value in (*inputs, None):
                received += read_turn(stream)
                answers.append(stream.turn_result)
                stream.send_input(value)
            received += read_turn(stream)
            assert stream.end.status == "ok"
            expected = Foresee().run(SimRequest(key, steps=3), [ClientInput(each, NEVER_INTERRUPTS) for each in inputs])
            assert [value for _, value in received] == [emission.value for emission in expected.emissions]
            assert (stream.result, answers[:-1]) == (expected.result, expected.answers[:-1])


class Memory(State):
    def __init__(self):
        self.seen = []


class Reader(Component):
    def __init__(self):
        self.reads = []
        self.has_guessed = threading.Event()

    @op
    def read(self, x: int, memory: Memory) -> int:
        self.reads.append(x)
        memory.seen.append(x)
        if len(self.reads) == 2:
            self.has_guessed.set()
        return sum(memory.seen)

    @op
    def total(self, memory: View[Memory]) -> int:
        return sum(memory.seen)


class Guess(Model):
    """Reads the input that it expects while it waits for the real one."""

    def __init__(self):
        self.reader = Reader()

    @walk
    def read(self, x: int, memory: Memory) -> int:
        return self.reader.read(x, memory)

    @walk
    def total(self, memory: Memory) -> int:
        return self.reader.total(memory)

    async def route(self, request: int) -> int:
        memory = self.reader.state(Memory)
        await self.read(request, memory)
        fork = memory.fork()
        guess = lookahead(self.read(5, fork))
        if await self.next_input("ready") == 5:
            return 100 * await guess.commit() + await self.total(fork)
        guess.drop()
        return 100 * await self.read(6, memory) + await self.total(memory)


@pytest.mark.parametrize(("value", "result", "reads"), [(5, 606, [1, 5]), (6, 707, [1, 5, 6])])
def test_what_was_guessed_right_ran_before_the_input(value, result, reads):
    model = Guess()
    with deploy("guess", model) as deployment:
        stream = add_frontend(deployment).open_stream("guess", 1, timeout_s=30.0)
        read_turn(stream)
        assert model.reader.has_guessed.wait(10.0)
        assert model.reader.reads == [1, 5]
        stream.send_input(value)
        read_turn(stream)
        assert (stream.end.status, stream.result) == ("ok", result)
        assert model.reader.reads == reads

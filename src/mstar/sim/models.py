"""Models for the simulator: what large ones do, on plain numbers.

Every output is a function of all inputs, of their order and of the state, so any mix-up changes what comes out. Nothing
here knows that it is simulated. A request may hold a trap that springs at a certain call; without it, the same request
gives what the trapped one would have given, so that is what its output is compared with.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from typing import Any

from mstar.conductor.model import ConductorModel
from mstar.graph import ir
from mstar.plan.compile import plan
from mstar.plan.placement import Placement, PlacementRule
from mstar.walk.client_input import INTERRUPTED
from mstar.walk.component import Component, op
from mstar.walk.control import Stream, loop, windows
from mstar.walk.emissions import Action, Audio, Text
from mstar.walk.model import Model, walk
from mstar.walk.states import State
from mstar.walk.types import View

PRIME = 2_147_483_647
HUGE_STATE_SIZE = 1_000_000
"""How much a state grows that fits nowhere."""
PLACEMENT_VARIANTS = 8
"""How many placements there are for a model and a number of workers."""


@dataclass(frozen=True, slots=True)
class SimRequest:
    """A request. Its key makes all that it gives its own."""

    key: int
    steps: int
    trap: str = ""
    """What happens to the call at which its state has `at` entries: raise, crash or huge."""
    trap_at: int = 0


class WorkerCrash(BaseException):
    """A call of an op that takes its worker with it."""


class TrapError(Exception):
    """A call of an op that fails, and would fail again."""


class DigestState(State):
    """A digest of all that went in, and how much that was."""

    def __init__(self, digest: int = 1, size: int = 0) -> None:
        self.digest = digest
        self.size = size

    def fork(self) -> DigestState:
        """A copy of two numbers."""
        return DigestState(self.digest, self.size)

    def extend(self, ask: SimRequest, *numbers: int) -> None:
        """Take numbers in, unless the request has a trap here."""
        if ask.trap and self.size == ask.trap_at:
            if ask.trap == "crash":
                raise WorkerCrash
            if ask.trap == "raise":
                raise TrapError(f"request {ask.key} at {ask.trap_at}")
            self.size += HUGE_STATE_SIZE
        self.digest = hash_numbers(self.digest, *numbers)
        self.size += 1


def hash_numbers(*numbers: int) -> int:
    """A number that depends on all of these and on their order."""
    total = 17
    for number in numbers:
        total = (total * 48_271 + number + 1) % PRIME
    return total


# ---------------------------------------------------------------- components
class ToyLM(Component):
    """Reads a request and tells one number after the other."""

    @op
    def read(self, ask: SimRequest, memory: DigestState) -> int:
        """Take the request in; the first number."""
        memory.extend(ask, ask.key)
        return hash_numbers(memory.digest, 2)

    @op
    def tell(self, token: int, memory: DigestState, ask: SimRequest) -> int:
        """Take a number in; the next one."""
        memory.extend(ask, token)
        return hash_numbers(memory.digest, token)

    @op
    def is_last(self, token: int) -> bool:
        """Whether this number ends the story."""
        return token % 23 == 0

    @op
    def weigh(self, one: View[DigestState], other: View[DigestState], token: int) -> int:
        """A number that depends on two memories."""
        return hash_numbers(one.digest, other.digest, token)

    @op
    def lean(self, token: int, memory: DigestState, ask: SimRequest, side: int) -> int:
        """What one side makes of a number."""
        memory.extend(ask, token, side)
        return hash_numbers(memory.digest, side)

    @op
    def join(self, one: int, other: int, third: int) -> int:
        """One number of three."""
        return hash_numbers(one, other, third)


class ToyVocoder(Component):
    """Turns numbers into sound, and remembers what it said before."""

    @op
    def sound(self, codes: list[int], past: DigestState, ask: SimRequest) -> tuple[int, int]:
        """The sound of a window: its length, and a number for what is in it."""
        past.extend(replace(ask, trap=""), *codes)
        return len(codes), hash_numbers(past.digest, *codes)


class ToyActuator(Component):
    """Acts on the world."""

    @op(idempotent=False)
    def move(self, key: int, aim: int) -> int:
        """Move, once."""
        return hash_numbers(key, aim)


# ---------------------------------------------------------------- models
class Talk(Model):
    """A loop with a state, a stop flag and one kind of emission."""

    def __init__(self) -> None:
        self.lm = ToyLM()

    @walk
    def talk(self, ask: SimRequest) -> Iterator[Text]:
        """Tell numbers until one is the last."""
        memory = self.lm.state(DigestState)
        s = loop(steps=ask.steps, token=self.lm.read(ask, memory))
        for _ in s:
            yield Text(s.token)
            s.token = self.lm.tell(s.token, memory, ask)
            s.stop_when(self.lm.is_last(s.token))

    async def route(self, ask: SimRequest) -> None:
        """One walk."""
        await self.talk(ask)


class Sing(Model):
    """A loop that fills a stream, windows that read it, and two kinds of emission."""

    def __init__(self) -> None:
        self.lm = ToyLM()
        self.voice = ToyVocoder()

    @walk
    def sing(self, ask: SimRequest) -> Iterator[Text | Audio]:
        """Tell numbers, and sound each window of them."""
        memory, past = self.lm.state(DigestState), self.voice.state(DigestState)
        codes = Stream("codes")
        s = loop(steps=ask.steps, token=self.lm.read(ask, memory))
        for _ in s:
            codes.put(s.token)
            yield Text(s.token)
            s.token = self.lm.tell(s.token, memory, ask)
        for window in windows(codes, size=3, stride=2, first=1, flush=True):
            length, sound = self.voice.sound(window, past, ask)
            yield Audio(self.lm.join(length, sound, ask.key), rate=8)

    async def route(self, ask: SimRequest) -> None:
        """One walk."""
        await self.sing(ask)


class Story(Model):
    """A route of several walks, with states that it holds, forks and moves, and a result that says how it goes on."""

    def __init__(self) -> None:
        self.lm = ToyLM()

    @walk
    def theme(self, ask: SimRequest) -> int:
        """A number without a state."""
        return self.lm.join(ask.key, ask.steps, 7)

    @walk
    def begin(self, ask: SimRequest, memory: DigestState) -> int:
        """Take the request in."""
        return self.lm.read(ask, memory)

    @walk
    def write(self, token: int, ask: SimRequest, memory: DigestState) -> Generator[Text, None, int]:
        """Tell some numbers; the last one."""
        s = loop(steps=ask.steps, token=token)
        for _ in s:
            s.token = self.lm.tell(s.token, memory, ask)
            yield Text(s.token)
        return s.token

    @walk
    def compare(self, one: DigestState, other: DigestState, token: int) -> int:
        """A number of two memories."""
        return self.lm.weigh(one, other, token)

    async def route(self, ask: SimRequest) -> int:
        """The first part decides how many follow."""
        theme = await self.theme(ask)
        memory = self.lm.state(DigestState)
        token = await self.begin(ask, memory)
        other = memory.fork()
        token = await self.write(hash_numbers(token, theme), ask, memory)
        for _ in range(token % 3):
            third = other.fork()
            token = await self.write(token, ask, third)
            token = await self.compare(memory, third, token)
        return await self.compare(memory, other, token)


class Guide(Model):
    """Guidance: three forks of one state, which may be on three workers."""

    def __init__(self) -> None:
        self.lm = ToyLM()

    @walk
    def guide(self, ask: SimRequest) -> Generator[Text, None, int]:
        """Each step joins what three sides say."""
        memory = self.lm.state(DigestState)
        first = self.lm.read(ask, memory)
        other, third = memory.fork(), memory.fork()
        s = loop(steps=ask.steps, token=first)
        for _ in s:
            one = self.lm.lean(s.token, memory, ask, 1)
            two = self.lm.lean(s.token, other, ask, 2)
            three = self.lm.lean(s.token, third, ask, 3)
            s.token = self.lm.join(one, two, three)
            yield Text(s.token)
        return s.token

    async def route(self, ask: SimRequest) -> int:
        """One walk."""
        return await self.guide(ask)


class Reach(Model):
    """Thinks, which may be done again, and then acts, which may not."""

    def __init__(self) -> None:
        self.lm = ToyLM()
        self.arm = ToyActuator()

    @walk
    def think(self, ask: SimRequest) -> Generator[Text, None, int]:
        """Where to reach."""
        memory = self.lm.state(DigestState)
        s = loop(steps=ask.steps, token=self.lm.read(ask, memory))
        for _ in s:
            s.token = self.lm.tell(s.token, memory, ask)
            yield Text(s.token)
        return s.token

    @walk
    def act(self, ask: SimRequest, aim: int) -> Iterator[Action]:
        """Reach there in two moves."""
        s = loop(steps=2, aim=aim)
        for _ in s:
            s.aim = self.arm.move(ask.key, s.aim)
            yield Action(s.aim, rate=2)

    async def route(self, ask: SimRequest) -> int:
        """Two walks."""
        aim = await self.think(ask)
        await self.act(ask, aim)
        return aim


class Chat(Model):
    """Waits for its client, who may cut it short; what was cut, it forgets but for what its client has heard."""

    def __init__(self) -> None:
        self.lm = ToyLM()
        self.voice = ToyVocoder()

    @walk
    def listen(self, word: int, ask: SimRequest, memory: DigestState) -> int:
        """Take in what the client said."""
        return self.lm.tell(word, memory, ask)

    @walk
    def answer(self, token: int, ask: SimRequest, memory: DigestState) -> Generator[Text | Audio, None, int]:
        """Tell some numbers, and sound each window of them."""
        codes, past = Stream("codes"), self.voice.state(DigestState)
        s = loop(steps=ask.steps, token=token)
        for _ in s:
            codes.put(s.token)
            yield Text(s.token)
            s.token = self.lm.tell(s.token, memory, ask)
        for window in windows(codes, size=2, flush=True):
            length, sound = self.voice.sound(window, past, ask)
            yield Audio(self.lm.join(length, sound, ask.key), rate=8)
        return s.token

    async def route(self, ask: SimRequest) -> int:
        """Answer until no more is said."""
        memory, turns, word = self.lm.state(DigestState), 0, ask.key
        while word is not None:
            turns += 1
            token = await self.listen(word, ask, memory)
            told = await self.answer(token, ask, memory).interruptible()
            word = await self.next_input(turns if told is INTERRUPTED else hash_numbers(turns, told))
        return turns


MODELS: dict[str, type[Model]] = {model.__name__.lower(): model for model in (Talk, Sing, Story, Guide, Reach, Chat)}


# ---------------------------------------------------------------- made once, shared by all scenarios
@functools.cache
def sim_model(name: str) -> Model:
    """The model of this name."""
    return MODELS[name]()


@functools.cache
def _graphs(name: str) -> Any:
    return sim_model(name).graphs()


@functools.cache
def planned_model(
    name: str, workers: int, variant: int, *, is_elastic: bool = False, prefix: str = "w"
) -> ConductorModel:
    """A model with its plans on so many workers, under one of the placements that there are for it.

    If it is elastic, most lines of the placement say how many of their workers run at least.
    """
    graphs = _graphs(name)
    names = [f"{prefix}{number}" for number in range(workers)]
    drawn = random.Random(f"{name}/{workers}/{variant}")
    model = sim_model(name)
    place: dict[str, PlacementRule] = {}
    for component, owner in model.components().items():
        place[component] = _random_rule(drawn, names)
        for each_op in owner.ops():
            if drawn.random() < 0.3 and _is_called(graphs, component, each_op):
                place[f"{component}.{each_op}"] = _random_rule(drawn, names)
    if is_elastic:
        place = {key: _with_replicas(drawn, entry) for key, entry in place.items()}
    return ConductorModel.from_plans(model, plan(graphs, Placement(place)))


def _with_replicas(drawn: random.Random, entry: PlacementRule) -> PlacementRule:
    least = drawn.randint(0, len(entry.workers)) if drawn.random() < 0.5 else drawn.choice((0, 1, None))
    return PlacementRule(entry.workers, entry.spread, least)


def _random_rule(drawn: random.Random, names: list[str]) -> PlacementRule:
    chosen = tuple(drawn.sample(names, drawn.randint(1, len(names))))
    return PlacementRule(chosen, drawn.random() < 0.5)


def _is_called(graphs: Any, component: str, each_op: str) -> bool:
    nodes = (node for graph in graphs.values() for node in ir.flat(graph.body))
    return any(isinstance(node, ir.Call) and (node.component, node.op) == (component, each_op) for node in nodes)

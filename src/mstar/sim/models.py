"""Toy models for the simulator: the structure of large models, on plain integers.

Every output is a hash of all inputs, their order and the state, so any mix-up changes it. Nothing here knows that it is
simulated. A request can have a trap at a certain call. Without the trap the same request gives the output that the
trapped one is compared with.
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
from mstar.walk.model import Model, lookahead, walk
from mstar.walk.states import State
from mstar.walk.types import View

PRIME = 2_147_483_647
"""Modulus of the hash."""
HUGE_STATE_SIZE = 1_000_000
"""Growth of a state that fits into no memory."""
PLACEMENT_VARIANTS = 8
"""Number of random placements for a model and a number of workers. As many more run each component on two sets."""


@dataclass(frozen=True, slots=True)
class SimRequest:
    """A request. Its key makes its outputs unique."""

    key: int
    steps: int
    trap: str = ""
    """Effect of the call at which its state has `trap_at` entries: raise, crash or huge."""
    trap_at: int = 0
    is_nondeterministic: bool = False
    """Whether each incarnation of a worker computes other values for it."""
    salt: int = 0
    """Set by the engine for a nondeterministic request; part of every hash."""


class WorkerCrash(BaseException):
    """A call that kills its worker."""


class TrapError(Exception):
    """A call that fails deterministically."""


class DigestState(State):
    """Hash and number of everything that was written to it."""

    def __init__(self, digest: int = 1, size: int = 0) -> None:
        self.digest = digest
        self.size = size

    def fork(self) -> DigestState:
        """Return a copy."""
        return DigestState(self.digest, self.size)

    def extend(self, request: SimRequest, *numbers: int) -> None:
        """Add numbers, unless the request has a trap here."""
        if request.trap and self.size == request.trap_at:
            if request.trap == "crash":
                raise WorkerCrash
            if request.trap == "raise":
                raise TrapError(f"request {request.key} at {request.trap_at}")
            self.size += HUGE_STATE_SIZE
        if request.salt:
            numbers = (*numbers, request.salt)
        self.digest = hash_numbers(self.digest, *numbers)
        self.size += 1


def hash_numbers(*numbers: int) -> int:
    """Hash numbers in order."""
    total = 17
    for number in numbers:
        total = (total * 48_271 + number + 1) % PRIME
    return total


# ---------------------------------------------------------------- components
class ToyLM(Component):
    """A toy autoregressive language model."""

    @op
    def read(self, request: SimRequest, memory: DigestState) -> int:
        """Prefill; return the first token."""
        memory.extend(request, request.key)
        return hash_numbers(memory.digest, 2)

    @op
    def tell(self, token: int, memory: DigestState, request: SimRequest) -> int:
        """Decode one step; return the next token."""
        memory.extend(request, token)
        return hash_numbers(memory.digest, token)

    @op
    def is_last(self, token: int) -> bool:
        """Return whether a token is the stop token."""
        return token % 23 == 0

    @op
    def weigh(self, first: View[DigestState], second: View[DigestState], token: int) -> int:
        """Hash two states."""
        return hash_numbers(first.digest, second.digest, token)

    @op
    def lean(self, token: int, memory: DigestState, request: SimRequest, side: int) -> int:
        """Decode one step of one guidance branch."""
        memory.extend(request, token, side)
        return hash_numbers(memory.digest, side)

    @op
    def join(self, first: int, second: int, third: int) -> int:
        """Hash three numbers."""
        return hash_numbers(first, second, third)


class ToyVocoder(Component):
    """A toy streaming vocoder with a state."""

    @op
    def sound(self, codes: list[int], past: DigestState, request: SimRequest) -> tuple[int, int]:
        """Decode a window of codes; return its length and its hash."""
        past.extend(replace(request, trap=""), *codes)
        return len(codes), hash_numbers(past.digest, *codes)


class ToyActuator(Component):
    """A toy robot with a non-idempotent op."""

    @op(idempotent=False)
    def move(self, key: int, aim: int) -> int:
        """Move. Must not run twice."""
        return hash_numbers(key, aim)


# ---------------------------------------------------------------- models
class Talk(Model):
    """A loop with a state, a stop flag and one kind of emission."""

    def __init__(self) -> None:
        self.lm = ToyLM()

    @walk
    def talk(self, request: SimRequest) -> Iterator[Text]:
        """Generate tokens until the stop token."""
        memory = self.lm.state(DigestState)
        s = loop(steps=request.steps, token=self.lm.read(request, memory))
        for _ in s:
            yield Text(s.token)
            s.token = self.lm.tell(s.token, memory, request)
            s.stop_when(self.lm.is_last(s.token))

    async def route(self, request: SimRequest) -> None:
        """One walk."""
        await self.talk(request)


class Sing(Model):
    """A loop that fills a stream, windows that read it, and two kinds of emission."""

    def __init__(self) -> None:
        self.lm = ToyLM()
        self.voice = ToyVocoder()

    @walk
    def sing(self, request: SimRequest) -> Iterator[Text | Audio]:
        """Generate tokens and decode windows of them to audio."""
        memory, past = self.lm.state(DigestState), self.voice.state(DigestState)
        codes = Stream("codes")
        s = loop(steps=request.steps, token=self.lm.read(request, memory))
        for _ in s:
            codes.put(s.token)
            yield Text(s.token)
            s.token = self.lm.tell(s.token, memory, request)
        for window in windows(codes, size=3, stride=2, first=1, flush=True):
            length, sound = self.voice.sound(window, past, request)
            yield Audio(self.lm.join(length, sound, request.key), rate=8)

    async def route(self, request: SimRequest) -> None:
        """One walk."""
        await self.sing(request)


class Story(Model):
    """A route of several walks with states that it keeps, forks and moves, and data-dependent control flow."""

    def __init__(self) -> None:
        self.lm = ToyLM()

    @walk
    def theme(self, request: SimRequest) -> int:
        """A walk without a state."""
        return self.lm.join(request.key, request.steps, 7)

    @walk
    def begin(self, request: SimRequest, memory: DigestState) -> int:
        """Prefill."""
        return self.lm.read(request, memory)

    @walk
    def write(self, token: int, request: SimRequest, memory: DigestState) -> Generator[Text, None, int]:
        """Generate tokens; return the last one."""
        s = loop(steps=request.steps, token=token)
        for _ in s:
            s.token = self.lm.tell(s.token, memory, request)
            yield Text(s.token)
        return s.token

    @walk
    def compare(self, first: DigestState, second: DigestState, token: int) -> int:
        """Hash two states."""
        return self.lm.weigh(first, second, token)

    async def route(self, request: SimRequest) -> int:
        """The first part decides the number of further parts."""
        theme = await self.theme(request)
        memory = self.lm.state(DigestState)
        token = await self.begin(request, memory)
        other = memory.fork()
        token = await self.write(hash_numbers(token, theme), request, memory)
        for _ in range(token % 3):
            third = other.fork()
            token = await self.write(token, request, third)
            token = await self.compare(memory, third, token)
        return await self.compare(memory, other, token)


class Guide(Model):
    """Guidance: three forks of one state, which can be on three workers."""

    def __init__(self) -> None:
        self.lm = ToyLM()

    @walk
    def guide(self, request: SimRequest) -> Generator[Text, None, int]:
        """Each step joins three branches."""
        memory = self.lm.state(DigestState)
        first = self.lm.read(request, memory)
        other, third = memory.fork(), memory.fork()
        s = loop(steps=request.steps, token=first)
        for _ in s:
            a = self.lm.lean(s.token, memory, request, 1)
            b = self.lm.lean(s.token, other, request, 2)
            c = self.lm.lean(s.token, third, request, 3)
            s.token = self.lm.join(a, b, c)
            yield Text(s.token)
        return s.token

    async def route(self, request: SimRequest) -> int:
        """One walk."""
        return await self.guide(request)


class Reach(Model):
    """An idempotent walk, then a non-idempotent one."""

    def __init__(self) -> None:
        self.lm = ToyLM()
        self.arm = ToyActuator()

    @walk
    def think(self, request: SimRequest) -> Generator[Text, None, int]:
        """Compute the target."""
        memory = self.lm.state(DigestState)
        s = loop(steps=request.steps, token=self.lm.read(request, memory))
        for _ in s:
            s.token = self.lm.tell(s.token, memory, request)
            yield Text(s.token)
        return s.token

    @walk
    def act(self, request: SimRequest, aim: int) -> Iterator[Action]:
        """Move in two steps."""
        s = loop(steps=2, aim=aim)
        for _ in s:
            s.aim = self.arm.move(request.key, s.aim)
            yield Action(s.aim, rate=2)

    async def route(self, request: SimRequest) -> int:
        """Two walks."""
        aim = await self.think(request)
        await self.act(request, aim)
        return aim


class Chat(Model):
    """A multi-turn model whose answers the client can interrupt."""

    def __init__(self) -> None:
        self.lm = ToyLM()
        self.voice = ToyVocoder()

    @walk
    def listen(self, word: int, request: SimRequest, memory: DigestState) -> int:
        """Add the client's input to the state."""
        return self.lm.tell(word, memory, request)

    @walk
    def answer(self, token: int, request: SimRequest, memory: DigestState) -> Generator[Text | Audio, None, int]:
        """Generate tokens and decode windows of them to audio."""
        codes, past = Stream("codes"), self.voice.state(DigestState)
        s = loop(steps=request.steps, token=token)
        for _ in s:
            codes.put(s.token)
            yield Text(s.token)
            s.token = self.lm.tell(s.token, memory, request)
        for window in windows(codes, size=2, flush=True):
            length, sound = self.voice.sound(window, past, request)
            yield Audio(self.lm.join(length, sound, request.key), rate=8)
        return s.token

    async def route(self, request: SimRequest) -> int:
        """Answer inputs until there are no more."""
        memory, turns, word = self.lm.state(DigestState), 0, request.key
        while word is not None:
            turns += 1
            token = await self.listen(word, request, memory)
            answer = await self.answer(token, request, memory).interruptible()
            word = await self.next_input(turns if answer is INTERRUPTED else hash_numbers(turns, answer))
        return turns


class Foresee(Model):
    """A route that offers walks early, on forks and new states, and commits or drops them."""

    def __init__(self) -> None:
        self.lm = ToyLM()
        self.voice = ToyVocoder()

    @walk
    def begin(self, request: SimRequest, memory: DigestState) -> int:
        """Prefill."""
        return self.lm.read(request, memory)

    @walk
    def foresee(self, token: int, request: SimRequest, memory: DigestState) -> int:
        """Generate tokens without emissions."""
        s = loop(steps=request.steps, token=token)
        for _ in s:
            s.token = self.lm.tell(s.token, memory, request)
        return s.token

    @walk
    def rehearse(self, token: int, request: SimRequest, past: DigestState) -> tuple[int, DigestState]:
        """Two components, which can be on two workers, and a new state as result."""
        memory = self.lm.state(DigestState)
        s = loop(steps=2, token=token)
        for _ in s:
            s.token = self.lm.tell(s.token, memory, request)
            s.collect(codes=s.token)
        length, sound = self.voice.sound(s.codes, past, request)
        return self.lm.join(s.token, length, sound), memory

    @walk
    def write(self, token: int, request: SimRequest, memory: DigestState) -> Generator[Text, None, int]:
        """Generate tokens; return the last one."""
        s = loop(steps=request.steps, token=token)
        for _ in s:
            s.token = self.lm.tell(s.token, memory, request)
            yield Text(s.token)
        return s.token

    async def route(self, request: SimRequest) -> int:
        """Each turn decides by its own result which of the walks it needs."""
        memory, word, turns = self.lm.state(DigestState), request.key, 0
        token = await self.begin(request, memory)
        while word is not None:
            fork, past, turns = memory.fork(), self.voice.state(DigestState), turns + 1
            likely, other = (
                lookahead(self.foresee(token, request, fork)),
                lookahead(self.rehearse(token, request, past)),
            )
            answer = await self.write(hash_numbers(token, word), request, memory).interruptible()
            token = hash_numbers(token, turns, 0 if answer is INTERRUPTED else answer)
            if token % 3:
                token, memory = hash_numbers(token, await likely.commit()), fork
            if token % 2:
                joined, extra = await other.commit()
                token = hash_numbers(joined, await self.foresee(token, request, extra))
            next_fork = memory.fork()
            early = lookahead(self.foresee(token, request, next_fork))
            word = await self.next_input(token)
            if word is not None and word % 2:
                token, memory = await early.commit(), next_fork
            likely.drop()
            early.drop()  # `other` is dropped at the end of the route
        return token


MODELS: dict[str, type[Model]] = {model.__name__.lower(): model for model in (Talk, Sing, Story, Guide, Reach, Chat)}
"""Models of which a scenario draws some."""
LOOKAHEAD_MODEL = "foresee"
"""Model of the scenarios with lookaheads."""


# ---------------------------------------------------------------- cached, shared by all scenarios
@functools.cache
def sim_model(name: str) -> Model:
    """Return the model of a name."""
    return Foresee() if name == LOOKAHEAD_MODEL else MODELS[name]()


@functools.cache
def _graphs(name: str) -> Any:
    return sim_model(name).graphs()


@functools.cache
def planned_model(
    name: str, workers: int, variant: int, *, is_elastic: bool = False, prefix: str = "w"
) -> ConductorModel:
    """Return a model with plans for a number of workers and one of its placements.

    If it is elastic, most placement rules set `min_replicas`.
    """
    graphs = _graphs(name)
    names = [f"{prefix}{number}" for number in range(workers)]
    rng = random.Random(f"{name}/{workers}/{variant}")
    model = sim_model(name)
    place: dict[str, PlacementRule] = {}
    if variant >= PLACEMENT_VARIANTS:
        return ConductorModel.from_plans(model, plan(graphs, Placement(_split_rules(rng, model, graphs, names))))
    for component, owner in model.components().items():
        place[component] = _random_rule(rng, names)
        for op_name in owner.ops():
            if rng.random() < 0.3 and _is_called(graphs, component, op_name):
                place[f"{component}.{op_name}"] = _random_rule(rng, names)
    if is_elastic:
        place = {key: _with_replicas(rng, rule) for key, rule in place.items()}
    return ConductorModel.from_plans(model, plan(graphs, Placement(place)))


def _split_rules(rng: random.Random, model: Model, graphs: Any, names: list[str]) -> dict[str, PlacementRule]:
    """Run every other op of each component on other workers. Each op has at least two."""
    rng.shuffle(names)
    first = rng.randint(2, len(names) - 2)
    sets = PlacementRule(tuple(names[:first])), PlacementRule(tuple(names[first:]))
    return {
        f"{component}.{op_name}": sets[number % 2]
        for component, owner in model.components().items()
        for number, op_name in enumerate(name for name in owner.ops() if _is_called(graphs, component, name))
    }


def _with_replicas(rng: random.Random, rule: PlacementRule) -> PlacementRule:
    min_replicas = rng.randint(0, len(rule.workers)) if rng.random() < 0.5 else rng.choice((0, 1, None))
    return PlacementRule(rule.workers, rule.spread, min_replicas)


def _random_rule(rng: random.Random, names: list[str]) -> PlacementRule:
    chosen = tuple(rng.sample(names, rng.randint(1, len(names))))
    return PlacementRule(chosen, rng.random() < 0.5)


def _is_called(graphs: Any, component: str, op_name: str) -> bool:
    nodes = (node for graph in graphs.values() for node in ir.flat(graph.body))
    return any(isinstance(node, ir.Call) and (node.component, node.op) == (component, op_name) for node in nodes)

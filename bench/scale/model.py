"""A toy model of voice calls and an engine without a network, for the scale benchmark.

A request is a call: the route answers each input of the client with a few chunks of audio, and waits for the next one.
The engine returns constants, so that nearly all CPU time is that of the cores.
"""

from __future__ import annotations

from collections.abc import Iterator

from mstar.engine.jobs import JobDone
from mstar.walk.component import Component, op
from mstar.walk.control import loop
from mstar.walk.emissions import Audio
from mstar.walk.model import Model, walk
from mstar.walk.states import State
from mstar.worker.commands import Batch, BatchFinished, Command, Export, ExportedState, ExportFinished

CHUNKS_PER_TURN = 8
CHUNK_S = 2.0
"""Seconds that a client plays one chunk."""
CHUNK = "ab"
"""One chunk: as long as `CHUNK_S`, at one sample per second."""
MEAN_THINK_S = 32.0
"""Mean seconds between the end of an answer that a client has played and its next input. With the answers, a stream
gets a chunk every 7 s on average."""
MEAN_TURNS = 4
"""Mean number of turns of a call: about three minutes."""
_PROMPT_S = 0.005
"""Seconds of a batch of inputs."""
_BATCH_S, _CALL_S = 0.04, 0.0005
"""Seconds of a batch of chunks, and of each of them."""


class Memory(State):
    """State of one conversation. The engine keeps nothing in it."""

    def fork(self) -> Memory:
        """Return a copy."""
        return Memory()


class Speaker(Component):
    """Ops that the simulated engine does not execute."""

    @op
    def read(self, words: int, memory: Memory) -> str:
        """Read an input."""
        raise NotImplementedError

    @op
    def speak(self, code: str, memory: Memory) -> str:
        """Compute the next chunk."""
        raise NotImplementedError


class Calls(Model):
    """Answers inputs until there are no more."""

    def __init__(self) -> None:
        self.speaker = Speaker()

    @walk
    def answer(self, words: int, memory: Memory) -> Iterator[Audio]:
        """Read an input, then emit one chunk after another."""
        s = loop(steps=CHUNKS_PER_TURN, code=self.speaker.read(words, memory))
        for _ in s:
            s.code = self.speaker.speak(s.code, memory)
            yield Audio(s.code, rate=1)

    async def route(self, turns: int) -> int:
        """One walk for each input, on one state."""
        memory = self.speaker.state(Memory)
        while (words := await self.next_input(turns)) is not None:
            await self.answer(words, memory)
            turns += 1
        return turns


class ConstantEngine:
    """Engine of one worker: each call returns the same, after a time that depends on the size of its batch."""

    def execute(self, command: Command) -> BatchFinished | ExportFinished | None:
        """Execute a command and return its report, if it has one."""
        if isinstance(command, Batch):
            count = len(command.jobs)
            seconds = _PROMPT_S if command.key.op == "read" else _BATCH_S + _CALL_S * count
            return BatchFinished(command.number, [JobDone((CHUNK,))] * count, seconds)
        if isinstance(command, Export):
            return ExportFinished(command.ticket, None if command.is_ahead else ExportedState("", "Memory", None))
        return None

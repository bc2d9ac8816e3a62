"""A model that offers walks early while it writes: one that it commits, one that it drops, and one that fails early."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mstar import Component, Model, State, Text, lookahead, loop, op, walk

READER_WORKER = "reader"
"""Worker that has nothing else to do, so that lookaheads run at once."""
PLACEMENT = f'[place]\nreader = "{READER_WORKER}"\nwriter = "b"'


@dataclass(frozen=True)
class NotesRequest:
    """First number, and the length of each answer."""

    start: int
    steps: int = 5


class Notes(State):
    """The sum of what was read."""

    def __init__(self) -> None:
        self.total = 0


class Reader(Component):
    """Adds numbers."""

    @op
    def read(self, number: int, notes: Notes) -> int:
        """Add a number."""
        notes.total += number
        return notes.total

    @op
    def fail(self, number: int, notes: Notes) -> int:
        """Fail: the lookahead that runs it is lost, and its request is not."""
        raise ValueError("cannot be read")


class Writer(Component):
    """Counts."""

    @op
    def following(self, number: int) -> int:
        """The next number."""
        return number + 1


class Guesses(Model):
    """Reads early while it writes."""

    def __init__(self) -> None:
        self.reader = Reader()
        self.writer = Writer()

    @walk
    def read(self, number: int, notes: Notes) -> int:
        """Read a number."""
        return self.reader.read(number, notes)

    @walk
    def fail(self, number: int, notes: Notes) -> int:
        """Fail."""
        return self.reader.fail(number, notes)

    @walk
    def write(self, first: int, steps: int) -> Iterator[Text]:
        """Count from a number."""
        s = loop(steps=steps, number=first)
        for _ in s:
            s.number = self.writer.following(s.number)
            yield Text(s.number)

    async def route(self, request: NotesRequest) -> int:
        """Write the sum, with three guesses meanwhile, as often as there are steps."""
        notes = self.reader.state(Notes)
        total = await self.read(request.start, notes)
        for turn in range(request.steps):
            fork, unused, broken = notes.fork(), notes.fork(), notes.fork()
            likely, unlikely = lookahead(self.read(turn, fork)), lookahead(self.read(-turn, unused))
            failing = lookahead(self.fail(turn, broken))
            await self.write(total, request.steps)
            total, notes = await likely.commit(), fork
            unlikely.drop()
            failing.drop()
        return total


def requests() -> list[NotesRequest]:
    """For an oracle."""
    return [NotesRequest(1), NotesRequest(2)]

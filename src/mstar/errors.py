"""Every exception mstar raises, in one tree.

    MstarError
    ├── WalkError        a walk cannot become a graph; carries every problem found, not the first
    ├── PlacementError   a placement file does not fit the model
    ├── RouteError       a route misused a walk or a state
    ├── LoadError        a model could not be found or imported
    ├── BadShape         an op was given, or gave, a value of another shape than it declares
    ├── NotFinite        an op gave NaN or infinity
    ├── RowsFailed       an op says which rows of its batch are at fault
    ├── OutOfPages       a request needs more free KV cache pages than there are
    │   └── NeverFits    a request needs more KV cache pages than the component has
    └── ParityError      a served run differed from the eager one
    WalkNotRun           (warning) a walk was called and its result dropped unread

A problem has one shape everywhere: `file:line: what happened, with values`, then `fix: what to write`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: where, what, and what to write instead."""

    site: str
    message: str
    fix: str

    def __str__(self) -> str:
        fix = self.fix.replace("\n", "\n       ")
        return f"{format_site(self.site)}: {self.message}\n  fix: {fix}"


class MstarError(Exception):
    """Anything mstar raises on purpose."""


class ProblemGroup(MstarError):
    """Several problems of one kind, reported together."""

    def __init__(self, subject: str, problems: Sequence[Problem]) -> None:
        self.subject = subject
        self.problems = tuple(problems)
        super().__init__("\n".join([f"{subject}: {format_count(len(problems), 'problem')}", *map(str, problems)]))


class WalkError(ProblemGroup):
    """A walk cannot be turned into a graph."""


class PlacementError(ProblemGroup):
    """A placement does not fit the model it is for."""


class RouteError(MstarError):
    """A route misused a walk or a state."""


class LoadError(MstarError):
    """A model could not be found, imported or built."""


class Unsupported(MstarError, NotImplementedError):
    """A model does not do what a request asks for. The client is told its text: what, and what to ask for instead."""


class BadShape(MstarError):
    """An op was given, or gave, a value of another shape than it declares."""


class NotFinite(MstarError):
    """An op gave NaN or infinity."""


class RowsFailed(MstarError):
    """Some rows of a batch are at fault: an op that knows which raises this, and nobody has to search."""

    def __init__(self, errors: Mapping[int, Exception]) -> None:
        self.errors = dict(errors)
        super().__init__("\n".join(f"row {row}: {type(error).__name__}: {error}" for row, error in errors.items()))


class OutOfPages(MstarError):
    """Not enough KV cache pages are free. Nothing was changed; the call can be retried after an eviction."""


class NeverFits(OutOfPages):
    """A request needs more KV cache pages than the component has, so a retry cannot succeed."""


class ParityError(MstarError):
    """A served run gave something else than the eager run."""


class WalkNotRun(RuntimeWarning):
    """A walk was called, but nobody awaited it or read its emissions, so it did nothing."""


def format_site(site: str) -> str:
    """A `file:line` as a reader wants it: relative to where they stand, when it is below that."""
    path, colon, line = site.rpartition(":")
    here = os.getcwd() + os.sep
    return (path.removeprefix(here)) + colon + line


def suggest_name(name: str, known: Iterable[str]) -> str:
    """` (did you mean `x`?)` for the known name most like this one, or nothing."""
    import difflib  # only a mistake needs it

    near = difflib.get_close_matches(name, list(known), 1)
    return f" (did you mean `{near[0]}`?)" if near else ""


def format_names(names: Iterable[str], empty: str = "nothing") -> str:
    """Names for a sentence: `a`, `b`, `c`."""
    return ", ".join(f"`{name}`" for name in names) or empty


def format_count(count: int, noun: str) -> str:
    """A number of things for a sentence: 1 walk, 2 walks."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


class WouldBlock(Exception):
    """The bytes of a value are on another host: whoever unpacks it must be ready to wait for them."""

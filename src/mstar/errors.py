"""All exceptions of mstar, in one tree.

    MstarError
    ├── WalkError        a walk cannot be compiled to a graph; lists all problems, not only the first
    ├── PlacementError   a placement file does not match the model
    ├── RouteError       a route misused a walk or a state
    ├── LoadError        a model could not be found or imported
    │   └── MissingExtra an optional package is not installed
    ├── Unsupported      a model does not support what the request needs
    ├── BadShape         an op received or returned a value of another shape or dtype than declared
    ├── NotFinite        an op returned NaN or infinity
    ├── RowsFailed       an op reports the failed rows of its batch
    ├── OutOfPages       a request needs more free KV cache pages than there are
    │   └── NeverFits    a request needs more KV cache pages than the component has
    ├── ParityError      a served run differed from the eager run
    ├── NotSerializable  a value cannot be sent to another process
    └── ReadFailed       the bytes of a sent value cannot be read
    WalkNotRun           (warning) a walk was called and its result never used

All problems have one format: `file:line: what happened, with values`, then `fix: what to write`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem: location, message and fix."""

    site: str
    message: str
    fix: str

    def __str__(self) -> str:
        fix = self.fix.replace("\n", "\n       ")
        return f"{format_site(self.site)}: {self.message}\n  fix: {fix}"


class MstarError(Exception):
    """Base class of all exceptions that mstar raises on purpose."""


class ProblemGroup(MstarError):
    """Several problems of one kind, reported together."""

    def __init__(self, subject: str, problems: Sequence[Problem]) -> None:
        self.subject = subject
        self.problems = tuple(problems)
        super().__init__("\n".join([f"{subject}: {format_count(len(problems), 'problem')}", *map(str, problems)]))


class WalkError(ProblemGroup):
    """A walk cannot be compiled to a graph."""


class PlacementError(ProblemGroup):
    """A placement does not match its model."""


class RouteError(MstarError):
    """A route misused a walk or a state."""


class LoadError(MstarError):
    """A model could not be found, imported or built."""


class MissingExtra(LoadError):
    """A package of an extra is not installed. The text is sent to the client, with the install command."""

    @classmethod
    def from_package(cls, feature: str, package: str, extra: str) -> MissingExtra:
        """The error for a feature that needs a package."""
        return cls(f"{feature} needs the package {package}\n  fix: pip install 'mstar-serve[{extra}]'")


class Unsupported(MstarError, NotImplementedError):
    """A model does not support what the request needs. The text is sent to the client."""


class BadShape(MstarError):
    """An op received or returned a value of another shape or dtype than declared."""


class NotFinite(MstarError):
    """An op returned NaN or infinity."""


class RowsFailed(MstarError):
    """Some rows of a batch failed. An op that knows which ones raises this, and the batch is not bisected."""

    def __init__(self, errors: Mapping[int, Exception]) -> None:
        self.errors = dict(errors)
        super().__init__("\n".join(f"row {row}: {type(error).__name__}: {error}" for row, error in errors.items()))


class DeviceFailed(MstarError):
    """A device reported an error after which no operation on it succeeds in this process, or a rank was lost."""


class OutOfPages(MstarError):
    """Not enough KV cache pages are free. Nothing was changed; the call can be retried after an eviction."""


class NeverFits(OutOfPages):
    """A request needs more KV cache pages than the component has, so a retry cannot succeed."""


class ParityError(MstarError):
    """A served run differed from the eager run."""


class NotSerializable(MstarError):
    """A value cannot be sent to another process."""


class ReadFailed(MstarError):
    """A value was sent and its bytes cannot be read. No other value is ever returned instead."""


class WalkNotRun(RuntimeWarning):
    """A walk was called but neither awaited nor iterated, so it did nothing."""


def format_site(site: str) -> str:
    """Format a `file:line` relative to the working directory, if it is below."""
    path, colon, line = site.rpartition(":")
    cwd = os.getcwd() + os.sep
    return (path.removeprefix(cwd)) + colon + line


def suggest_name(name: str, known: Iterable[str]) -> str:
    """Format ` (did you mean `x`?)` for the closest known name; empty if none is close."""
    import difflib  # slow import, needed for errors only

    near = difflib.get_close_matches(name, list(known), 1)
    return f" (did you mean `{near[0]}`?)" if near else ""


def format_names(names: Iterable[str], empty: str = "nothing") -> str:
    """Format names for a sentence: `a`, `b`, `c`."""
    return ", ".join(f"`{name}`" for name in names) or empty


def format_count(count: int, noun: str) -> str:
    """Format a count with its noun: 1 walk, 2 walks."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


class WouldBlock(Exception):
    """The bytes of a value are on another host and the caller must not block. Not an error: decode it on a thread."""

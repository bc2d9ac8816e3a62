"""Failure: where the code of a model author raised an exception. For logs, traces and `mstar run`.

The worker or conductor that catches the exception describes it as text, because a traceback cannot be sent. The front
end logs it with the id of the client's request.
"""

from __future__ import annotations

import re
import sysconfig
import traceback
from pathlib import Path

import msgspec

MAX_TRACEBACK_CHARS = 16_000
"""Maximum length of a traceback; the beginning of a longer one is cut off."""
_FRAME = re.compile(r'^\s*File "(.+)", line (\d+)', re.MULTILINE)
_PACKAGE = Path(__file__).parents[1]
_MODELS = str(_PACKAGE / "models")
_LIBRARIES = tuple(
    {"<", str(_PACKAGE), *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))}
)
"""Path prefixes of files that model authors do not write. Generated code has a name in angle brackets."""


class Failure(msgspec.Struct, array_like=True, frozen=True):
    """Where an exception was raised. Fields that do not apply are empty."""

    process: str = ""
    walk: str = ""
    op: str = ""
    """As "component.op"; empty if no op raised it."""
    location: str = ""
    """Author's file and line, as "file:line"."""
    traceback: str = ""

    @classmethod
    def from_exception(cls, error: Exception, *, walk: str = "", op: str = "", process: str = "") -> Failure:
        """Describe an exception, with its causes and notes."""
        text = "".join(traceback.format_exception(error)).rstrip()
        return cls(process, walk, op, find_location(text), text[-MAX_TRACEBACK_CHARS:])

    @property
    def is_authored(self) -> bool:
        """Whether the author's code was running."""
        return bool(find_author_location(self.traceback))

    def summary(self, error_type: str) -> str:
        """Exception type, file name and line, for a trace. The path is left out: a client can read its traces."""
        return f"{error_type} at {Path(self.location).name}" if self.location else error_type


NO_FAILURE = Failure()


def find_author_location(text: str) -> str:
    """File and line of the innermost frame of the author's code in a formatted traceback; empty if it has none."""
    frames = _FRAME.findall(text)
    authored = [frame for frame in frames if frame[0].startswith(_MODELS) or not frame[0].startswith(_LIBRARIES)]
    return ":".join(authored[-1]) if authored else ""


def find_location(text: str) -> str:
    """File and line of the innermost frame of the author's code in a formatted traceback, else of any code."""
    frames = _FRAME.findall(text)
    return find_author_location(text) or (":".join(frames[-1]) if frames else "")


def error_text(error: Exception) -> str:
    """The message of an exception, even if its own formatting fails."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - the author's `__str__` failed
        return "(the exception has no readable message)"

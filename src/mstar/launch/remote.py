"""A child on another host, as the launcher holds it: what its keeper says, and what to ask it next.

Nothing here waits for a host. A keeper that does not answer is asked again; only its word, or that of Ray, that a
process has ended makes it so. Whoever was told to die and is not heard of is *lost*: its place may be given to another
life, and its keeper ends it first.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from signal import SIGKILL, Signals
from threading import Event
from typing import Any

import msgspec
from ray.exceptions import ActorUnavailableError, RayError

from mstar.launch.keeper import Death, Look
from mstar.launch.process import write_on
from mstar.launch.running import ChildSettings
from mstar.wire.messages import Suspect

AGAIN_S = 0.3
"""How long after a keeper did not answer it is asked again."""
WATCH_S = 20.0
"""How long one question for a death is open; then it is asked anew, so that none is left behind for ever."""
LOST_S = 1.0
"""How long after it was killed a child that is not known to have ended is lost."""

Call = Callable[[Callable[[], None]], None]
"""Runs something on the launcher's loop, soon."""


class Remote:
    """One life of a child. All but `send` and the plain questions happens on the launcher's loop."""

    def __init__(self, keeper: Any, call: Call, died: Callable[[Remote], None], waits: Callable[[], str]) -> None:
        self.ended = Event()
        self.pid = 0
        self.host = ""
        self.is_keeper_dead = False
        """Ray will not start its keeper again."""
        self._keeper = keeper
        self._call = call
        self._ended = died
        self._waits = waits
        self._settings = b""
        self._incarnation = -1
        self._again: tuple[float, Callable[[], None]] | None = None
        self._is_looking = False
        self._is_silent = False
        self._looked = Look()
        self._killed: float | None = None
        self._death = Death("")

    # ---------------------------------------------------------------- what the supervisor asks
    def become(self, settings: ChildSettings) -> None:
        """Have its keeper start it, as soon as there is one."""
        self._settings = msgspec.msgpack.encode(settings)
        self._incarnation = settings.incarnation
        self._begin()

    def send(self, number: Signals) -> None:
        """Send it a signal, if it can be reached."""
        if number == SIGKILL and self._killed is None:
            self._killed = time.monotonic()
        self._keeper.send.remote(self._incarnation, int(number))

    def used(self) -> float:
        """How many seconds of processor time it had used when its keeper looked last."""
        if self.pid and not self._is_looking:
            self._is_looking = True
            self._ask(self._keeper.look.remote(), self._on_look)
        return self._looked.used

    def loading(self) -> tuple[int, str] | None:
        """How many components it has loaded, and which it loads now; None if it loads nothing."""
        return self._looked.loading

    def waits(self) -> str:
        """What it waits for before it can begin; nothing if it has begun."""
        if self.pid:
            return ""
        return self._waits() or ("its host does not answer" if self._is_silent else "")

    def is_lost(self) -> bool:
        """Whether it was killed, and nobody can say whether it has ended."""
        return self._killed is not None and (self._is_silent or time.monotonic() - self._killed > LOST_S)

    def why(self) -> str:
        """How it ended."""
        return self._death.why

    def last_words(self) -> str:
        """The end of what it wrote."""
        return self._death.words

    def remains(self) -> list[Suspect]:
        """What it was doing when it ended, if its keeper could say."""
        return self._death.suspects

    def tick(self, now: float) -> None:
        """Ask again what was not answered."""
        if self._again and self._again[0] <= now:
            (_, question), self._again = self._again, None
            question()

    # ---------------------------------------------------------------- what its keeper is asked
    def _ask(self, answer: Any, then: Callable[[Any, BaseException | None], None]) -> None:
        def answered(future: Any) -> None:
            error = future.exception()
            result = None if error else future.result()
            self._call(lambda: then(result, error))

        answer.future().add_done_callback(answered)

    def _begin(self) -> None:
        self._ask(self._keeper.start.remote(self._settings), self._on_start)

    def _watch(self) -> None:
        self._ask(self._keeper.watch.remote(self._incarnation, WATCH_S), self._on_watch)

    def _on_start(self, result: tuple[int, str] | None, error: BaseException | None) -> None:
        if result is None:
            self._failed(error, self._begin)
            return
        self._is_silent = False
        self.pid, self.host = result
        self._watch()

    def _on_watch(self, result: bytes | None, error: BaseException | None) -> None:
        if error:
            self._failed(error, self._watch)
            return
        self._is_silent = False
        if result is None:
            self._watch()
        else:
            self._finish(msgspec.msgpack.decode(result, type=Death))

    def _on_look(self, result: bytes | None, error: BaseException | None) -> None:
        self._is_looking = False
        if result is not None and error is None:
            self._looked = msgspec.msgpack.decode(result, type=Look)
            write_on(self._looked.said)

    def _failed(self, error: BaseException | None, question: Callable[[], None]) -> None:
        """No answer: ask again if Ray says that there may be one."""
        if isinstance(error, ActorUnavailableError):
            self._is_silent = True
            self._again = time.monotonic() + AGAIN_S, question
            return
        self.is_keeper_dead = isinstance(error, RayError)
        lines = str(error).strip().splitlines() or [""]
        self._finish(Death(f"could not be kept: {lines[-1]}", str(error)))

    def _finish(self, death: Death) -> None:
        if not self.ended.is_set():
            self._death = death
            write_on(death.said)
            self.ended.set()
            self._ended(self)

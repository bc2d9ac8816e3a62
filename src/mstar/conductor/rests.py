"""Models that rest: their workers are ended although there is room for them, until somebody wants them again.

A model that is told to rest does so once nothing of it is under way. Then workers that no other model needs leave, as
they do when there is nothing to do: see `scaling`. The next request, or being told to, wakes it. None of this is kept
beyond the life of a conductor.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING

from mstar.wire import messages as m

if TYPE_CHECKING:
    from mstar.conductor.core import ConductorCore
    from mstar.conductor.crews import Crew

UP, LOADING, RESTING = "up", "loading", "resting"


class Rests:
    """Which models rest, and which are being woken, under one conductor."""

    def __init__(self, crews: Sequence[Crew]) -> None:
        self.models: set[str] = set()
        """Those that were told to rest."""
        self._waking: set[str] = set()
        """Those that were woken and are not whole."""
        self._crews = crews

    def __bool__(self) -> bool:
        return bool(self.models or self._waking)

    def rest(self, core: ConductorCore, model: str) -> str:
        """Have a model rest; why it cannot, if it cannot."""
        if why := self._hindrance(core, model):
            return why
        self.models.add(model)
        self._waking.discard(model)
        for crew in self._crews:
            if not crew.is_resting and crew.models <= self.models:
                crew.is_resting, crew.calm, crew.pressed = True, inf, inf
        return ""

    def _hindrance(self, core: ConductorCore, model: str) -> str:
        if core.limits.is_fixed:
            return "its workers are the server's own process; serve without --in-process to have workers that end"
        rest = self.models | {model}
        staying = [crew for crew in self._crews if not crew.models <= rest]
        own = {name for crew in self._crews if model in crew.models for name in crew.workers}
        if own - {name for crew in staying for name in crew.workers}:
            return ""
        others = sorted({one for crew in staying if not own.isdisjoint(crew.workers) for one in crew.models - rest})
        if not others:
            return "it has no workers"
        return (
            f"all its workers serve {', '.join(others)} too, which would stay;"
            " give it a worker of its own in its placement"
        )

    def wake(self, core: ConductorCore, model: str) -> None:
        """Have a model served again."""
        if core.limits.is_fixed:
            return
        self.models.discard(model)
        self._waking.add(model)
        for crew in self._of(model):
            crew.is_resting = False
            crew.target = max(crew.target, crew.least)

    def waking(self, core: ConductorCore) -> set[str]:
        """Models that are woken and not there: as if somebody waited for them."""
        self._waking -= {one for one in self._waking if all(_is_whole(core, crew) for crew in self._of(one))}
        return self._waking

    def _of(self, model: str) -> list[Crew]:
        return [crew for crew in self._crews if model in crew.models]

    def state(self, core: ConductorCore, model: str) -> str:
        """How a model is."""
        if model in self.models:
            return RESTING
        lacking = [crew for crew in self._of(model) if not crew.running(core)]
        is_coming = model in self._waking or all(crew.target for crew in lacking)
        return (LOADING if is_coming else RESTING) if lacking else UP


def _is_whole(core: ConductorCore, crew: Crew) -> bool:
    return len(crew.running(core)) >= max(1, crew.least)


def stand(core: ConductorCore, front: m.Peer, message: m.Rest | m.Wake | m.TakeStanding) -> None:
    """Do what a front end asks of models, and tell it how they are."""
    rests, why = core.scaling.rests, ""
    if isinstance(message, m.Rest):
        why = rests.rest(core, message.model)
    elif isinstance(message, m.Wake):
        rests.wake(core, message.model)
    core.send(front, m.Standing(message.ticket, {model: rests.state(core, model) for model in core.served}, why))

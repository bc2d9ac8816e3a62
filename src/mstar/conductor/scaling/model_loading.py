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
    from mstar.conductor.scaling.replica_group import ReplicaGroup

LOADED, LOADING, UNLOADED = "loaded", "loading", "unloaded"


class ModelLoading:
    """Which models rest, and which are being woken, under one conductor."""

    def __init__(self, groups: Sequence[ReplicaGroup]) -> None:
        self.unloaded: set[str] = set()
        """Those that were told to rest."""
        self._loading: set[str] = set()
        """Those that were woken and are not whole."""
        self._groups = groups

    def __bool__(self) -> bool:
        return bool(self.unloaded or self._loading)

    def unload(self, core: ConductorCore, model: str) -> str:
        """Have a model rest; why it cannot, if it cannot."""
        if why := self._unload_blocker(core, model):
            return why
        self.unloaded.add(model)
        self._loading.discard(model)
        for crew in self._groups:
            if not crew.is_unloaded and crew.models <= self.unloaded:
                crew.is_unloaded, crew.surplus_since, crew.overloaded_since = True, inf, inf
        return ""

    def _unload_blocker(self, core: ConductorCore, model: str) -> str:
        if core.limits.has_fixed_workers:
            return "its workers are the server's own process; serve without --in-process to have workers that end"
        rest = self.unloaded | {model}
        staying = [crew for crew in self._groups if not crew.models <= rest]
        own = {name for crew in self._groups if model in crew.models for name in crew.workers}
        if own - {name for crew in staying for name in crew.workers}:
            return ""
        others = sorted({one for crew in staying if not own.isdisjoint(crew.workers) for one in crew.models - rest})
        if not others:
            return "it has no workers"
        return (
            f"all its workers serve {', '.join(others)} too, which would stay;"
            " give it a worker of its own in its placement"
        )

    def load(self, core: ConductorCore, model: str) -> None:
        """Have a model served again."""
        if core.limits.has_fixed_workers:
            return
        self.unloaded.discard(model)
        self._loading.add(model)
        for crew in self._groups_of(model):
            crew.is_unloaded = False
            crew.target = max(crew.target, crew.min_replicas)

    def loading(self, core: ConductorCore) -> set[str]:
        """Models that are woken and not there: as if somebody waited for them."""
        self._loading -= {
            one for one in self._loading if all(_has_min_replicas(core, crew) for crew in self._groups_of(one))
        }
        return self._loading

    def _groups_of(self, model: str) -> list[ReplicaGroup]:
        return [crew for crew in self._groups if model in crew.models]

    def state(self, core: ConductorCore, model: str) -> str:
        """How a model is."""
        if model in self.unloaded:
            return UNLOADED
        lacking = [crew for crew in self._groups_of(model) if not crew.running(core)]
        is_coming = model in self._loading or all(crew.target for crew in lacking)
        return (LOADING if is_coming else UNLOADED) if lacking else LOADED


def _has_min_replicas(core: ConductorCore, group: ReplicaGroup) -> bool:
    return len(group.running(core)) >= max(1, group.min_replicas)


def on_model_command(
    core: ConductorCore, frontend: m.Peer, message: m.UnloadModel | m.LoadModel | m.ModelStatusQuery
) -> None:
    """Do what a front end asks of models, and tell it how they are."""
    rests, why = core.autoscaler.model_loading, ""
    if isinstance(message, m.UnloadModel):
        why = rests.unload(core, message.model)
    elif isinstance(message, m.LoadModel):
        rests.load(core, message.model)
    core.send(
        frontend,
        m.ModelStatusReply(message.correlation_id, {model: rests.state(core, model) for model in core.models}, why),
    )

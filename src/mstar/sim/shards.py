"""Who conducts what in a simulated world: one conductor all of it, or each model one of its own."""

from __future__ import annotations

from collections.abc import Mapping

from mstar.conductor.model import ConductorModel
from mstar.sim.scenario import Scenario

CONDUCTOR = "conductor"


class ConductorShards:
    """The conductors of one world."""

    def __init__(self, scenario: Scenario, served: Mapping[str, ConductorModel]) -> None:
        self.models = {f"{CONDUCTOR}-{name}": (name,) for name in served}
        """Of each conductor."""
        if not scenario.is_sharded:
            self.models = {CONDUCTOR: tuple(served)}
        self.workers = {
            conductor: [*dict.fromkeys(name for model in models for name in served[model].plans.workers)]
            for conductor, models in self.models.items()
        }
        """Of each conductor."""
        self._frontends = scenario.frontends

    def __contains__(self, name: str) -> bool:
        return name in self.models

    def conductor(self, name: str) -> str:
        """The conductor of a worker or of a model; that of a conductor is itself."""
        return next(one for one, models in self.models.items() if name in (one, *models, *self.workers[one]))

    def has_link(self, name: str, other: str) -> bool:
        """Whether a process has to do with another."""
        has_front = name in self._frontends or other in self._frontends
        return has_front or self.conductor(name) == self.conductor(other)

"""Shards of a simulated deployment: one conductor for all models, or one per model."""

from __future__ import annotations

from collections.abc import Mapping

from mstar.conductor.model import ConductorModel
from mstar.sim.scenario import Scenario
from mstar.wire.message import process_names, worker_of

CONDUCTOR = "conductor"


class ConductorShards:
    """The conductors of one simulation."""

    def __init__(self, scenario: Scenario, planned: Mapping[str, ConductorModel]) -> None:
        self.models = {f"{CONDUCTOR}-{name}": (name,) for name in planned}
        """By conductor, its models."""
        if not scenario.is_sharded:
            self.models = {CONDUCTOR: tuple(planned)}
        self.workers = {
            conductor: [*dict.fromkeys(name for model in models for name in planned[model].plans.workers)]
            for conductor, models in self.models.items()
        }
        """By conductor, its workers in the placement."""
        self._frontends = scenario.frontends

    def __contains__(self, name: str) -> bool:
        return name in self.models

    def conductor(self, name: str) -> str:
        """Return the conductor of a worker process, a model, or a conductor itself."""
        shards, worker = self.models.items(), worker_of(name)
        return next(peer for peer, models in shards if worker in (peer, *models, *self.workers[peer]))

    def processes(self, conductor: str) -> list[str]:
        """Return the names that worker processes of a conductor can have."""
        return [name for worker in self.workers[conductor] for name in process_names(worker)]

    def has_link(self, name: str, other: str) -> bool:
        """Return whether two processes communicate."""
        has_frontend = name in self._frontends or other in self._frontends
        return has_frontend or self.conductor(name) == self.conductor(other)

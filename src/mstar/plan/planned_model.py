"""Models as they are deployed: each loaded by its name, with its plans under its placement.

Every process of a deployment makes these for itself, from the same texts, and so has the same tables.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass

from mstar.plan.compile import plan
from mstar.plan.placement import parse_placement
from mstar.plan.tables import Plans
from mstar.walk.batching import alone
from mstar.walk.load import load_model
from mstar.walk.model import Model


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A model and its plans."""

    model: Model
    plans: Plans

    def unbatched_keys(self) -> frozenset[int]:
        """The batch keys of ops that run each call by itself."""
        components = self.model.components()
        ops = [components[key.component].ops()[key.op] for key in self.plans.keys]
        return frozenset(number for number, op in enumerate(ops) if op.batch is alone)

    def components_at(self, worker: str) -> tuple[str, ...]:
        """The components of which a worker may have to run an op."""
        keys, found = self.plans.keys, dict[str, None]()
        for each in self.plans.walks.values():
            for key, seat in each.calls:
                if worker in each.worker_sets[seat].workers:
                    found[keys[key].component] = None
        return tuple(found)


def load_planned_models(models: Mapping[str, str], placements: Mapping[str, str]) -> dict[str, PlannedModel]:
    """Models by name, from what `load_model` is given and the texts of their placement files."""
    found: dict[str, PlannedModel] = {}
    for name, target in models.items():
        model = load_model(target)
        text = placements.get(name, "")
        placement = parse_placement(tomllib.loads(text), f"the placement of {name}") if text else None
        found[name] = PlannedModel(model, plan(model.graphs(), placement))
    return found

"""Deployed models: each loaded by name, with its plans under its placement.

Every process of a deployment compiles them from the same files, so all have identical tables.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field

from mstar.errors import LoadError, format_names
from mstar.plan.compile import plan
from mstar.plan.placement import Placement, parse_placement
from mstar.plan.tables import Plans
from mstar.walk.batching import alone
from mstar.walk.load import load_model
from mstar.walk.model import Model


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A model and its plans."""

    model: Model
    plans: Plans
    devices: Mapping[str, str] = field(default_factory=dict[str, str])
    """Torch devices of workers, by name. A worker that is missing uses the CPU."""
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    """Settings of components in the placement, by name."""
    adapters: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    """Folders of LoRA adapters in the placement, by component and name."""
    memory_shares: Mapping[str, float] = field(default_factory=dict[str, float])
    """Shares of the memory of their devices that workers can use, by name, if the placement has them."""
    ranks: Mapping[str, int] = field(default_factory=dict[str, int])
    """Numbers of ranks of the workers with several, by name."""

    def unbatched_keys(self) -> frozenset[int]:
        """Batch keys of ops that run one call at a time."""
        components = self.model.components()
        ops = [components[key.component].ops()[key.op] for key in self.plans.keys]
        return frozenset(number for number, op in enumerate(ops) if op.batch is alone)

    def apply_settings(self, name: str) -> None:
        """Set the settings of a component. Raises LoadError for one that it does not support."""
        component, settings = self.model.components()[name], self.settings.get(name, {})
        adapters = self.adapters.get(name, {})
        for setting in (*settings, *(["adapters"] if adapters else [])):
            if setting not in component.supported_settings:
                supported = format_names(component.supported_settings)
                problem = f"the component {name} ({type(component).__name__}) does not support the setting `{setting}`"
                raise LoadError(f"{problem}; it supports {supported}\n  fix: remove it from [components.{name}]")
        component.operator_settings, component.adapters = settings, adapters

    def components_at(self, worker: str) -> tuple[str, ...]:
        """Components with an op that the placement can assign to a worker."""
        keys, components = self.plans.keys, dict[str, None]()
        for walk_plan in self.plans.walks.values():
            for key, seat in walk_plan.calls:
                if worker in walk_plan.worker_sets[seat].workers:
                    components[keys[key].component] = None
        return tuple(components)


def load_planned_models(models: Mapping[str, str], placements: Mapping[str, str]) -> dict[str, PlannedModel]:
    """Load and plan models by name, from the targets of `load_model` and the text of their placement files."""
    planned: dict[str, PlannedModel] = {}
    for name, target in models.items():
        model = load_model(target)
        text = placements.get(name, "")
        placement = parse_placement(tomllib.loads(text), f"the placement of {name}") if text else None
        settings, adapters = (placement or Placement()).component_settings, (placement or Placement()).adapters
        workers = (placement or Placement()).worker_resources.items()
        devices = {worker: resources.device for worker, resources in workers if resources.device}
        shares = {worker: resources.memory for worker, resources in workers if resources.memory is not None}
        ranks = {worker: resources.ranks for worker, resources in workers if resources.ranks > 1}
        planned[name] = PlannedModel(
            model,
            plan(model.graphs(), placement),
            devices,
            settings=settings,
            adapters=adapters,
            memory_shares=shares,
            ranks=ranks,
        )
    return planned

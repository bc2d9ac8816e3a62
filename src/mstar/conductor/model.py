"""A served model as the conductor knows it: its route and its plans, no weights."""

from __future__ import annotations

from dataclasses import dataclass

from mstar.plan.tables import Plans
from mstar.walk.model import Model


@dataclass(frozen=True, slots=True)
class ConductorModel:
    """Route and plans of one served model."""

    model: Model
    plans: Plans
    non_idempotent_walks: frozenset[str]
    """Walks with an op that must not run twice (`@op(idempotent=False)`)."""
    emitting_walks: frozenset[str]
    """Walks that can send output to the client."""
    split_components: dict[str, tuple[tuple[str, ...], ...]]
    """Components whose ops run on several sets of workers, with these sets in the order of the walks."""

    @classmethod
    def from_plans(cls, model: Model, plans: Plans) -> ConductorModel:
        """Derive the sets of walks from the plans."""
        components = model.components()
        ops = [components[key.component].ops()[key.op] for key in plans.keys]
        walks = plans.walks.items()
        non_idempotent = frozenset(
            name for name, plan in walks if any(not ops[key].idempotent for key, _ in plan.calls)
        )
        workers: dict[str, dict[tuple[str, ...], None]] = {}
        for _, plan in walks:
            for key, seat in plan.calls:
                workers.setdefault(plans.keys[key].component, {})[plan.worker_sets[seat].workers] = None
        emitting = frozenset(name for name, plan in walks if plan.emits)
        split = {name: (*sets,) for name, sets in workers.items() if len(sets) > 1}
        return cls(model, plans, non_idempotent, emitting, split)

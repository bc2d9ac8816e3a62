"""Sharding of models over conductors: models that share a worker must share a conductor, the others are balanced.

A worker has exactly one conductor, so a conductor decides about its workers without coordination.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mstar.plan.placement import Placement


@dataclass(frozen=True, slots=True)
class Shard:
    """Models and workers of one conductor."""

    models: tuple[str, ...]
    workers: tuple[str, ...]
    initial_workers: tuple[str, ...]
    """Workers to start at launch."""


def split_into_shards(placements: Mapping[str, Placement], max_shards: int) -> list[Shard]:
    """Split models into at most `max_shards` shards of similar size."""
    groups: list[set[str]] = []
    for model, placement in placements.items():
        workers = set(placement.workers())
        sharing = [group for group in groups if any(workers & {*placements[other].workers()} for other in group)]
        groups = [group for group in groups if group not in sharing] + [{model}.union(*sharing)]
    shards: list[set[str]] = [set() for _ in range(max(1, min(max_shards, len(groups))))]
    for group in sorted(groups, key=len, reverse=True):
        min(shards, key=len).update(group)
    return [_shard({name: placements[name] for name in placements if name in shard}) for shard in shards]


def _shard(placements: Mapping[str, Placement]) -> Shard:
    workers = dict.fromkeys(worker for placement in placements.values() for worker in placement.workers())
    initial = dict.fromkeys(worker for placement in placements.values() for worker in placement.initial_workers())
    return Shard(tuple(placements), tuple(workers), tuple(initial))

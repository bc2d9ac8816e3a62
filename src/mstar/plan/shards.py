"""Which models are conducted together: those that share a worker have to be, the others are spread over conductors.

A worker has one conductor, and so everything that a conductor decides about its workers it decides alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mstar.plan.placement import Placement


@dataclass(frozen=True, slots=True)
class Shard:
    """The models of one conductor, and their workers."""

    models: tuple[str, ...]
    workers: tuple[str, ...]
    initial_workers: tuple[str, ...]
    """The workers that run from the start."""


def split_into_shards(placements: Mapping[str, Placement], max_shards: int) -> list[Shard]:
    """At most so many shards, each with about as many models as the others."""
    groups: list[set[str]] = []
    for model, placement in placements.items():
        workers = set(placement.workers())
        sharing = [group for group in groups if any(workers & {*placements[other].workers()} for other in group)]
        groups = [group for group in groups if group not in sharing] + [{model}.union(*sharing)]
    parts: list[set[str]] = [set() for _ in range(max(1, min(max_shards, len(groups))))]
    for group in sorted(groups, key=len, reverse=True):
        min(parts, key=len).update(group)
    return [_shard({name: one for name, one in placements.items() if name in part}) for part in parts]


def _shard(placements: Mapping[str, Placement]) -> Shard:
    workers = dict.fromkeys(worker for one in placements.values() for worker in one.workers())
    first = dict.fromkeys(worker for one in placements.values() for worker in one.initial_workers())
    return Shard(tuple(placements), tuple(workers), tuple(first))

"""Candidates of a capacity plan: which components share workers, on which device, how many replicas, which batch limit.

They are generated in order of cost. Components that take less than `LIGHT_SHARE` of the work share the workers of the
heaviest one. Of the others every division into groups is tried, each group with every device.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import product
from math import ceil

from mstar.plan.placement import Placement, parse_placement
from mstar.plan.profile import DeviceCosts, ModelProfile
from mstar.sim.profile.profile_replay import RecordedArrival

LIGHT_SHARE = 0.02
"""Share of the work below which a component gets no workers of its own."""
MAX_HEAVY = 5
"""Maximum number of components whose divisions are tried; further ones share the workers of the heaviest."""


@dataclass(frozen=True, slots=True)
class Group:
    """Components that share replicated workers."""

    components: tuple[str, ...]
    device: str
    replicas: int

    @property
    def workers(self) -> tuple[str, ...]:
        """Names of its workers."""
        return tuple(f"{self.components[0]}-{number}" for number in range(self.replicas))

    def __str__(self) -> str:
        return f"{self.replicas} x {self.device}: {' + '.join(self.components)}"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A placement with a batch limit."""

    groups: tuple[Group, ...]
    max_batch_size: int

    @property
    def workers(self) -> int:
        """Number of workers."""
        return sum(group.replicas for group in self.groups)

    def per_hour(self, prices: Mapping[str, float]) -> float:
        """Price of all devices for an hour."""
        return sum(group.replicas * prices[group.device] for group in self.groups)

    def devices(self, profile: ModelProfile) -> dict[str, DeviceCosts]:
        """Costs by component."""
        return {name: profile.device(group.device) for group in self.groups for name in group.components}

    def to_toml(self, profile: ModelProfile, comments: Sequence[str] = ()) -> str:
        """The placement file, for `mstar serve --placement`."""
        lines = [f"# {comment}" for comment in comments]
        lines += ["[place]"]
        for group in self.groups:
            workers = group.workers[0] if group.replicas == 1 else list(group.workers)
            lines += [f"{json.dumps(name)} = {json.dumps(workers)}" for name in group.components]
        number = 0
        for group in self.groups:
            torch_device = profile.device(group.device).torch_device
            for worker in group.workers if torch_device else ():
                index = f":{number}" if torch_device == "cuda" else ""
                number += 1
                lines += ["", f"[workers.{json.dumps(worker)}]", f"device = {json.dumps(torch_device + index)}"]
                lines += ["gpus = 1"] if torch_device == "cuda" else []
        for name, settings in profile.settings.items():
            lines += ["", f"[components.{json.dumps(name)}]"] if settings else []
            lines += [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
        return "\n".join(lines) + "\n"

    def placement(self, profile: ModelProfile) -> Placement:
        """The placement that the file describes."""
        return parse_placement(tomllib.loads(self.to_toml(profile)))

    def __str__(self) -> str:
        return "; ".join(map(str, self.groups))


def component_of(op: str) -> str:
    """Component of the name of an op."""
    return op.partition(".")[0]


def required_workers(
    profile: ModelProfile, arrivals: Sequence[RecordedArrival], seconds: float, device: DeviceCosts
) -> dict[str, float]:
    """Minimum number of busy workers of a device that the traffic needs, by component: with the best batches."""
    busy = dict.fromkeys(map(component_of, profile.ops), 0.0)
    best = [min([1.0, *(batch.ratio / batch.size for batch in op.batches)]) for op in device.ops]
    for arrival in arrivals:
        for call, alone_s in zip(
            profile.requests[arrival.recorded].calls, device.calls_s[arrival.recorded], strict=True
        ):
            busy[component_of(profile.ops[call.op])] += alone_s * best[call.op]
    return {component: total / seconds for component, total in busy.items()}


def generate_candidates(
    required: Mapping[str, Mapping[str, float]],
    prices: Mapping[str, float],
    max_workers: int,
    max_batch_size: int,
) -> Iterator[Candidate]:
    """Candidates in order of cost, then of the number of workers. `required` is by device and component."""
    heap: list[tuple[float, int, int, tuple[Group, ...]]] = []
    seen: set[tuple[Group, ...]] = set()

    def push(groups: tuple[Group, ...]) -> None:
        candidate = Candidate(groups, max_batch_size)
        if groups not in seen and candidate.workers <= max_workers:
            seen.add(groups)
            heappush(heap, (candidate.per_hour(prices), candidate.workers, len(seen), groups))

    for division in _divisions(required):
        for devices in product(required, repeat=len(division)):
            push(
                tuple(
                    Group(
                        components,
                        device,
                        _least_replicas(sum(required[device][name] for name in components)),
                    )
                    for components, device in zip(division, devices, strict=True)
                )
            )
    while heap:
        *_, groups = heappop(heap)
        yield Candidate(groups, max_batch_size)
        for number, group in enumerate(groups):
            more = Group(group.components, group.device, group.replicas + 1)
            push((*groups[:number], more, *groups[number + 1 :]))


def _least_replicas(required: float) -> int:
    """One replica less than the traffic keeps busy: what the next cheaper placement does is part of the answer."""
    return max(1, ceil(required) - 1)


def _divisions(required: Mapping[str, Mapping[str, float]]) -> Iterator[tuple[tuple[str, ...], ...]]:
    """Every division of the components into groups; light components are with the heaviest one."""
    loads = next(iter(required.values()))
    order = sorted(loads, key=lambda name: -loads[name])
    heavy = [name for name in order if loads[name] >= LIGHT_SHARE * sum(loads.values())][:MAX_HEAVY]
    light = tuple(name for name in order if name not in heavy)
    for groups in _partitions(heavy):
        yield tuple((*group, *light) if group[0] == order[0] else group for group in groups)


def _partitions(names: Sequence[str]) -> Iterator[tuple[tuple[str, ...], ...]]:
    """Partitions of a list, the one with a single group first."""
    if not names:
        yield ()
        return
    first, *rest = names
    for groups in _partitions(rest):
        for number, group in enumerate(groups):
            yield ((first, *group), *groups[:number], *groups[number + 1 :])
        yield ((first,), *groups)

"""Search of capacity planning: evaluate candidates in order of cost until the cheapest that hold the SLO are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from mstar.cli.capacity.candidates import Candidate, generate_candidates, required_workers
from mstar.cli.capacity.evaluation import Evaluation, Evaluator
from mstar.cli.capacity.traffic import PlannedTraffic
from mstar.errors import LoadError, format_names
from mstar.plan.profile import ModelProfile

TRIES_AFTER_BEST = 2
"""Candidates to evaluate after the first that holds the SLO, for the part of the front above the target."""


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """Limits of a search."""

    target: float
    """Share of requests that must meet their SLO."""
    batch_limits: Sequence[int]
    """Values of `max_batch_size` to try, in order of preference."""
    max_workers: int
    max_candidates: int


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """Result of a search."""

    evaluations: Sequence[Evaluation]
    """All of them, in order of cost."""
    best: Evaluation | None
    """The cheapest that holds the SLO; None if none does."""

    @property
    def front(self) -> list[Evaluation]:
        """Pareto front: evaluations with a higher attainment than every cheaper one."""
        front: list[Evaluation] = []
        for one in sorted(self.evaluations, key=lambda each: (each.per_hour, -each.attainment.value)):
            if not front or one.attainment.value > front[-1].attainment.value:
                front.append(one)
        return front

    @property
    def next_cheaper(self) -> Evaluation | None:
        """The best of the next cheaper price than `best`."""
        cheaper = [one for one in self.evaluations if self.best and one.per_hour < self.best.per_hour]
        return max(cheaper, key=lambda one: (one.per_hour, one.attainment.value), default=None)


def search(
    evaluator: Evaluator,
    profile: ModelProfile,
    traffic: PlannedTraffic,
    prices: Mapping[str, float],
    limits: SearchLimits,
    progress: Callable[[Evaluation], None] | None = None,
) -> CapacityPlan:
    """Evaluate candidates in order of cost, and a few more after the first that holds the SLO."""
    counted = traffic.arrivals[traffic.warm_up :]
    priced = [costs for costs in profile.devices if costs.device in prices]
    if not priced:
        names = format_names(costs.device for costs in profile.devices)
        raise LoadError(f"there is no price for a device of the profile\n  fix: add a price for {names}")
    required = {costs.device: required_workers(profile, counted, max(traffic.seconds, 1e-9), costs) for costs in priced}
    evaluations: list[Evaluation] = []
    best: Evaluation | None = None
    tries_left = TRIES_AFTER_BEST
    candidates = generate_candidates(required, prices, limits.max_workers, limits.batch_limits[0])
    for candidate in islice(candidates, limits.max_candidates):
        evaluation = _with_best_limit(evaluator, candidate, limits)
        evaluations.append(evaluation)
        if progress is not None:
            progress(evaluation)
        if best is not None:
            tries_left -= 1
        elif evaluation.holds(limits.target):
            best = evaluation
        if not tries_left:
            break
    return CapacityPlan(evaluations, best)


def _with_best_limit(evaluator: Evaluator, candidate: Candidate, limits: SearchLimits) -> Evaluation:
    """The first batch limit that holds the SLO, or the one with the highest attainment."""
    tried: list[Evaluation] = []
    for size in limits.batch_limits:
        evaluation = evaluator.evaluate(replace(candidate, max_batch_size=size))
        if evaluation.holds(limits.target):
            return evaluation
        tried.append(evaluation)
    return max(tried, key=lambda one: one.attainment.low)

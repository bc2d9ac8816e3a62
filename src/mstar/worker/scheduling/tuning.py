"""Tuning parameters of the scheduler and of its least-slack-first policy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedulerTuning:
    """Thresholds of batch scheduling. Names end with their unit; factors, ratios and divisors have none."""

    # Policy: which op runs next (see `policy`).
    max_wait_s: float = 0.25
    """Seconds that a call waits behind cheaper ops when no deadline decides."""
    starvation_s: float = 2.0
    """Seconds after which a best-effort call goes before unstarted requests."""
    max_one_off_batch_s: float = 0.05
    """Maximum seconds of a batch that goes before cheaper ops because its op is outside loops (a prefill)."""
    delivery_margin_s: float = 0.05
    """Seconds reserved for delivering an emission and for errors of the cost model."""
    urgent_factor: float = 2.0
    """A call is urgent if its slack is at most this many times the longest pending batch."""
    trivial_cost_divisor: float = 20.0
    """A batch is trivial, and goes first, if it costs less than the chosen call divided by this."""
    overload_ratio: float = 0.25
    """Share of calls with deadlines that must be overdue before the policy switches to throughput."""
    overload_min_overdue_calls: int = 2
    """Overdue calls that never count as overload, however few calls there are."""
    urgent_batch_growth_factor: float = 1.25
    """Maximum growth in cost of an urgent batch when it admits calls that have time."""

    # Scheduler: batch size, and waiting for a fuller batch (see `scheduler`).
    batch_fill_wait_s: float = 0.03
    """Maximum seconds that a call waits for calls of other workers to join its batch."""
    fill_min_slack_factor: float = 10.0
    """A batch waits only if each of its calls has slack for this many times its cost."""
    fill_max_cost_ratio: float = 1.5
    """A batch waits only if a batch twice as large costs less than this many times as much."""
    cheap_call_s: float = 0.002
    """Calls that cost less than this are batched even without a gain, to save overhead per batch."""
    batch_probe_interval_batches: int = 64
    """Choices between two attempts to batch an op that gained nothing from batching."""


DEFAULT_TUNING = SchedulerTuning()
"""Tuning of every production worker."""

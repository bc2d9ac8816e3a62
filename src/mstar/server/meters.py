"""What a front end counts and times, in a registry of its own. What other processes count is asked for elsewhere."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_FAST = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_SLOW = (0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class Meters:
    """The figures of one front end."""

    def __init__(self) -> None:
        self.registry = own = CollectorRegistry()
        self.requests = Counter("mstar_requests", "Requests that ended", ["surface", "status"], registry=own)
        self.seconds = Histogram(
            "mstar_request_seconds", "How long requests took", ["surface"], buckets=_SLOW, registry=own
        )
        self.first = Histogram(
            "mstar_first_emission_seconds", "How long the first emission took", ["model"], buckets=_FAST, registry=own
        )
        self.emissions = Counter("mstar_emissions", "Emissions for clients", ["model", "kind"], registry=own)
        self.refusals = Counter(
            "mstar_refusals", "Requests refused or failed, by what was said", ["code"], registry=own
        )
        self.live = Gauge("mstar_live_requests", "Requests under way", registry=own)
        self.held = Gauge("mstar_held", "What each process holds", ["process", "what"], registry=own)
        self.asked = float("-inf")
        """When the other processes were asked last."""

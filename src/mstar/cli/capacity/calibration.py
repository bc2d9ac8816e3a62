"""Calibration of a profile: what the calls cost in a real deployment, and how much workers of one host slow each other.

A profile is recorded in one process without other load. Here the same requests are served by real worker processes: one
after another, which gives the cost of a call in a worker, then as many at once as there are workers, which gives the
cost while they share the processor and the memory of the host. Devices of their own are not shared, so this is done for
CPUs only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Thread
from types import TracebackType
from typing import Any, Self

from mstar.config import RuntimeConfig
from mstar.frontend.actor import FrontendActor
from mstar.launch.local_launcher import LocalLauncher
from mstar.plan.planned_model import PlannedModel
from mstar.plan.profile import DeviceCosts, ModelProfile, op_name
from mstar.sim.profile.profile_replay import RecordedArrival, simulate_profile
from mstar.wire.messages import Peer

MODEL_NAME = "model"
SERVINGS = 2
"""How often each request is served at each number of workers."""
MIN_SHARE = 0.02
"""Share of the work below which the cost of an op is not calibrated: it is too short to be measured so."""
HOP_RANGE_S = (0.0001, 0.005)
"""Least and greatest seconds of a message that a calibration sets."""
TIMEOUT_S = 600.0


@dataclass(slots=True)
class Busy:
    """Totals of one op over all workers."""

    seconds: float = 0.0
    calls: int = 0
    batches: int = 0


class RealDeployment:
    """Worker processes of a placement on this host, and a front end in this process."""

    def __init__(self, target: str, placement: str, options: RuntimeConfig) -> None:
        path = os.path.abspath(target) if target.partition(":")[0].endswith(".py") else target
        self._launcher = LocalLauncher({MODEL_NAME: path}, {MODEL_NAME: placement}, options=options, standby=False)

    def __enter__(self) -> Self:
        self._launcher.__enter__()
        self.frontend = FrontendActor(self._launcher.actor_loop, Peer("capacity", 0), self._launcher.conductors)
        self._launcher.add_frontend(self.frontend)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._launcher.__exit__(kind, error, traceback)

    @property
    def workers(self) -> list[Peer]:
        """All workers."""
        conductors = set(self._launcher.conductors.values())
        return [peer for peer in self._launcher.peers() if peer not in conductors]

    def serve(self, request: Any) -> None:
        """Serve one request to its end."""
        for _ in self.frontend.open_stream(MODEL_NAME, request, timeout_s=TIMEOUT_S):
            pass

    def busy(self) -> dict[str, Busy]:
        """Totals by "component.op"."""
        totals: dict[str, Busy] = {}
        for worker in self.workers:
            for op in self.frontend.query_stats(worker).result().ops:
                total = totals.setdefault(f"{op.component}.{op.op}", Busy())
                total.seconds += sum(walk.busy_s for walk in op.walks.values())
                total.calls += op.batched_calls
                total.batches += op.batches
        return totals

    def measure(self, serve: Callable[[], None]) -> dict[str, Busy]:
        """Totals of what `serve` does."""
        before = self.busy()
        serve()
        return {
            name: Busy(
                total.seconds - before.get(name, Busy()).seconds,
                total.calls - before.get(name, Busy()).calls,
                total.batches - before.get(name, Busy()).batches,
            )
            for name, total in self.busy().items()
        }


def calibrate(
    profile: ModelProfile, planned: PlannedModel, requests: Sequence[Any], deployment: RealDeployment
) -> None:
    """Change the costs of the only device of a profile, and of a message, to those in a deployment.

    `requests` are those of the profile, in its order.
    """
    (device,) = profile.devices

    def serve_all() -> None:
        for _ in range(SERVINGS):
            for request in requests:
                deployment.serve(request)

    serve_all()  # the first servings load and compile
    started_at = time.monotonic()
    measured = deployment.measure(serve_all)
    seconds = (time.monotonic() - started_at) / SERVINGS
    factors = op_factors(profile, device, measured, servings=SERVINGS)
    device.calls_s = [
        [
            seconds * factors.get(op_name(profile.ops[call.op]), 1.0)
            for call, seconds in zip(request.calls, own, strict=True)
        ]
        for request, own in zip(profile.requests, device.calls_s, strict=True)
    ]
    for op in device.ops:
        factor = factors.get(op_name(op.op), 1.0)
        op.mean_s *= factor
        op.by_length = [(length, seconds * factor) for length, seconds in op.by_length]
    _calibrate_hops(profile, planned, seconds)
    device.shared = [1.0] if len(deployment.workers) > 1 else []
    expected = _expected_s(profile, device)
    for count in range(2, len(deployment.workers) + 1):
        measured = deployment.measure(lambda: _in_threads(serve_all, count))  # noqa: B023 - called at once
        own = op_factors(profile, device, measured, servings=count * SERVINGS)
        weight = sum(expected[name] for name in own) or 1.0
        mean = sum(factor * expected[name] for name, factor in own.items()) / weight
        device.shared.append(max(device.shared[-1], mean))


def _calibrate_hops(profile: ModelProfile, planned: PlannedModel, seconds: float) -> None:
    """Set the seconds of a message such that all requests, one after another, take `seconds`."""
    devices = dict.fromkeys(planned.model.components(), profile.devices[0])

    def simulated_s(hop_s: float) -> float:
        profile.hop_s = hop_s
        results = [
            simulate_profile(planned, profile, devices, [RecordedArrival(0.0, number)])[0]
            for number in range(len(profile.requests))
        ]
        return sum(result.ended_at for result in results)

    low, high = (simulated_s(hop_s) for hop_s in HOP_RANGE_S)
    share = (seconds - low) / (high - low)
    profile.hop_s = HOP_RANGE_S[0] + min(1.0, max(0.0, share)) * (HOP_RANGE_S[1] - HOP_RANGE_S[0])


def op_factors(
    profile: ModelProfile, device: DeviceCosts, measured: Mapping[str, Busy], *, servings: int
) -> dict[str, float]:
    """Measured cost of the ops with enough work, relative to the profile, after `servings` of each request.

    Batches are expected to cost what the profile says.
    """
    by_name = {op_name(op.op): op for op in device.ops}
    expected = _expected_s(profile, device)
    factors: dict[str, float] = {}
    for name, seconds in expected.items():
        busy = measured.get(name, Busy())
        if seconds < MIN_SHARE * sum(expected.values()) or not busy.batches:
            continue
        size = max(1, round(busy.calls / busy.batches))
        factors[name] = busy.seconds / (servings * seconds * by_name[name].batch_ratio(size) / size)
    return factors


def _expected_s(profile: ModelProfile, device: DeviceCosts) -> dict[str, float]:
    """Seconds of all recorded calls alone, by op."""
    totals: dict[str, float] = {}
    for request, own in zip(profile.requests, device.calls_s, strict=True):
        for call, seconds in zip(request.calls, own, strict=True):
            name = op_name(profile.ops[call.op])
            totals[name] = totals.get(name, 0.0) + seconds
    return totals


def _in_threads(function: Callable[[], None], count: int) -> None:
    threads = [Thread(target=function) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

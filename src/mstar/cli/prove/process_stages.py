"""Stages in real processes: placements, a crash of each worker, clients that disconnect, memory and speed."""

from __future__ import annotations

import queue
import statistics
import time
from dataclasses import dataclass

from mstar.cli.prove.deployment import TIMEOUT_S, Deployment, placement, placement_by_walk
from mstar.cli.prove.subject import Subject
from mstar.errors import format_count
from mstar.frontend.actor import RequestStream
from mstar.walk.emissions import KINDS, Emission

MAX_CANCELLED_AFTER = 6
"""Maximum number of outputs after which a client disconnects."""
BENCH_S = 3.0
"""Seconds for which requests are sent in the measurement of speed."""
_SERVED_FIX = (
    "weights, vocabularies and random tensors must be the same in every process: load them from files or seed them; "
    "values and states must be serializable"
)
_CRASH_FIX = (
    "a request is replayed on another worker after a crash: its outputs must depend on the request and its states only"
)
_MEMORY_FIX = "free what an op allocates with the state of its request: in `State`, not in attributes of the component"


def check_placements(subject: Subject) -> str:
    """Requests are served by one worker, by one per component or walk, and by replicas, as they run here."""
    components = subject.components
    layouts = {"one worker": placement(subject, [["w0"] for _ in components])}
    if len(components) > 1:
        layouts["a worker per component"] = _split(subject)
    if len(subject.graphs) > 1:
        layouts["a worker per walk"] = placement_by_walk(subject)
    layouts["two replicas"] = placement(subject, [["w0", "w1"] for _ in components])
    for name, layout in layouts.items():
        fix = f"with {name}: {_SERVED_FIX}"
        with Deployment(subject, layout) as deployment:
            streams = [deployment.open(number) for number in range(len(subject.requests))]
            for number, stream in enumerate(streams):
                deployment.check(number, stream, fix=fix)
            deployment.require_idle(_MEMORY_FIX)
    return ", ".join(layouts)


def check_crashes(subject: Subject) -> str:
    """Each worker is killed while requests run; their outputs are the same."""
    if subject.has_side_effects:
        return "not tried: requests with `@op(idempotent=False)` end when their worker crashes"
    with Deployment(subject, _split(subject)) as deployment:
        for worker in deployment.workers:
            streams = [deployment.open(number) for number in range(len(subject.requests))]
            first = [_read(stream, 1) for stream in streams[:1]]
            pid = deployment.kill(worker)
            for number, stream in enumerate(streams):
                deployment.check(number, stream, first[number] if number < len(first) else (), fix=_CRASH_FIX)
            deployment.wait_restarted(worker, pid, _CRASH_FIX)
        count = len(deployment.workers)
        deployment.require_idle(_MEMORY_FIX)
    return f"{format_count(count, 'worker')} killed, all outputs equal"


def check_disconnects(subject: Subject) -> str:
    """Clients disconnect after each number of outputs; all memory becomes free, and later requests are served."""
    count = 0
    with Deployment(subject, _split(subject)) as deployment:
        for number, outcome in enumerate(subject.expected):
            for outputs in range(min(len(outcome.emissions), MAX_CANCELLED_AFTER) + 1):
                stream = deployment.open(number)
                _read(stream, outputs)
                stream.close()
                count += 1
        deployment.require_idle(_MEMORY_FIX)
        for number in range(len(subject.requests)):
            deployment.check(number, deployment.open(number), fix=_SERVED_FIX)
        deployment.require_idle(_MEMORY_FIX)
    return f"{count} clients disconnected, memory free"


@dataclass(frozen=True, slots=True)
class Speed:
    """Measured speed of a model on this machine."""

    requests_per_second: float
    first_output_ms: float
    duration_ms: float


def measure_speed(subject: Subject) -> Speed:
    """Send requests one after the other to one worker."""
    firsts, durations = list[float](), list[float]()
    with Deployment(subject, placement(subject, [["w0"] for _ in subject.components])) as deployment:
        for number in range(len(subject.requests)):
            deployment.check(number, deployment.open(number), fix=_SERVED_FIX)  # warms up
        started_at = time.perf_counter()
        while time.perf_counter() < started_at + BENCH_S or len(durations) < 3:
            begun = time.perf_counter()
            stream = deployment.open(len(durations) % len(subject.requests))
            first = _read(stream, 1)
            firsts.append(time.perf_counter() - begun)
            deployment.check(len(durations) % len(subject.requests), stream, first, fix=_SERVED_FIX)
            durations.append(time.perf_counter() - begun)
        elapsed = time.perf_counter() - started_at
    return Speed(len(durations) / elapsed, 1000 * statistics.median(firsts), 1000 * statistics.median(durations))


def _split(subject: Subject) -> str:
    """A placement with a worker per component, and two for a single component."""
    workers = [[f"w{number}"] for number, _ in enumerate(subject.components)]
    return placement(subject, workers if len(workers) > 1 else [["w0", "w1"]])


def _read(stream: RequestStream, count: int) -> list[Emission]:
    """The first outputs of a request, fewer if it ends."""
    events, emissions = stream.events(TIMEOUT_S), list[Emission]()
    while len(emissions) < count:
        try:
            event = next(events, None)
        except queue.Empty:
            break
        if event is None:
            break
        emissions.append(KINDS[event.kind](event.value, **dict(event.clock)))
    return emissions

"""The judge of a game day: the promises of the documentation, each with a check over what was observed.

A promise quotes its page; a test checks that the page still has the words. A check counts the observations that it
looked at and lists those that break the promise. A promise without an observation is not checked: it is neither kept
nor broken.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from bench.game_day.observations import (
    CUT,
    DECLARED,
    LEFT,
    PENDING,
    UNANSWERED,
    WHOLE,
    WRONG,
    FaultRecord,
    Observations,
    ProcessSample,
    RequestRecord,
)

ORDINARY = ("chat", "speech", "transcription", "count", "relay", "slow reader", "generate", "realtime")
"""Kinds of requests that a fault may delay and must not end."""
PUBLISHED = ("chat", "voice", "asr")
"""Models with published weights."""
WORKER_WAIT_S = 30.0
"""Seconds without a worker after which a request ends with `unavailable`."""
DEADLINE_SLACK_S = 5.0
"""Seconds after its timeout within which a request ends."""
RECOVERY_S = 30.0
"""Seconds after a fault within which every model answers again."""
SETTLE_S = 2.0
"""Seconds after a freeze in which a wrong decision to kill a worker shows."""
MAX_HEALTH_S = 3.0
"""Seconds in which `/health` answers: the timeout of the liveness probe in deploy/."""
MAX_TENANT_GAP_S = 10.0
"""Longest pause of a response while another key abuses the server."""
MAX_GROWTH_MB = 300.0
"""MB by which a process may be larger at its end than after its start."""
LOAD_S = 8.0
"""Seconds in which a process that replaces another one has loaded its model."""
WORKER_FAULTS = ("kill-worker", "slow-disk")
CONDUCTOR_FAULTS = ("kill-conductor", "hung-conductor")
FREEZES = ("freeze-tree", "pause-container")
FRONTEND_NAMES = ("front", "conductor", "standby", "others")
"""Processes that are not workers."""


@dataclass(frozen=True)
class Verdict:
    """How many observations a check looked at, and what breaks the promise."""

    checked: int
    broken: Sequence[str] = ()

    @property
    def is_kept(self) -> bool:
        """Whether there was something to check and nothing broke it."""
        return self.checked > 0 and not self.broken


@dataclass(frozen=True)
class Promise:
    """A sentence of the documentation and its check."""

    name: str
    page: str
    quote: str
    """Words of the page, verbatim."""
    check: Callable[[Observations], Verdict]


@dataclass(frozen=True)
class Judgment:
    """All promises with their verdicts."""

    verdicts: dict[str, Verdict] = field(default_factory=dict)

    @property
    def checked(self) -> list[str]:
        """Promises with at least one observation."""
        return [name for name, verdict in self.verdicts.items() if verdict.checked]

    @property
    def kept(self) -> list[str]:
        """Those that nothing broke."""
        return [name for name, verdict in self.verdicts.items() if verdict.is_kept]

    @property
    def share(self) -> float:
        """Promises kept / promises checked."""
        return len(self.kept) / len(self.checked) if self.checked else 0.0


def judge(seen: Observations) -> Judgment:
    """Check every promise."""
    return Judgment({promise.name: promise.check(seen) for promise in PROMISES})


# ---------------------------------------------------------------- ends of requests
def describe(request: RequestRecord) -> str:
    """A request and its end, in a few words."""
    end = f"{request.outcome} {request.status or ''} {request.code}".strip()
    return (
        f"{request.kind} of {request.model or 'server'} at {request.begun:.1f} s: {end} after {request.seconds:.1f} s"
    )


def is_served(request: RequestRecord, seen: Observations) -> bool:
    """Whether an ordinary request ended as promised: whole, or with an error that a long outage allows."""
    if request.outcome in (WHOLE, LEFT, PENDING):
        return True
    if request.outcome != DECLARED:
        return False
    if request.code == "not_retryable":
        # docs/scaling.md: the weights that it started with are gone, and it cannot start again.
        return any(request.overlaps(*rollout) for rollout in seen.rollouts)
    allowed_after_s = {"unavailable": WORKER_WAIT_S}
    if request.model in PUBLISHED:  # a reload of their weights can take longer than the timeout of a short run
        allowed_after_s["deadline_exceeded"] = seen.request_timeout_s
    return request.seconds >= allowed_after_s.get(request.code, float("inf")) - 1


def _during(seen: Observations, faults: Iterable[FaultRecord], *kinds: str) -> list[RequestRecord]:
    """Requests of these kinds that ran during one of the faults, or in the second after it."""
    intervals = [(fault.begun, fault.ended + 1) for fault in faults]
    return [
        request for request in seen.of_kind(*kinds) if any(request.overlaps(begun, ended) for begun, ended in intervals)
    ]


def _served_during(*names: str) -> Callable[[Observations], Verdict]:
    """Ordinary requests during these faults are served."""

    def check(seen: Observations) -> Verdict:
        requests = _during(seen, seen.injected(*names), *ORDINARY)
        return Verdict(len(requests), [describe(one) for one in requests if not is_served(one, seen)])

    return check


def _ends(kind: str, *codes: str, allow_whole: bool = False) -> Callable[[Observations], Verdict]:
    """Requests of a kind end with one of these codes."""

    def check(seen: Observations) -> Verdict:
        requests = [one for one in seen.of_kind(kind) if one.outcome not in (LEFT, PENDING)]
        broken = [
            describe(one)
            for one in requests
            if not (one.outcome == DECLARED and one.code in codes)
            and not (allow_whole and one.outcome == WHOLE)
            and not (one.outcome == DECLARED and is_served(one, seen))
        ]
        return Verdict(len(requests), broken)

    return check


def _unavailable(seen: Observations) -> Verdict:
    """A rejection without a retry time comes after the wait for a worker."""
    requests = [one for one in _unavailable_requests(seen) if one.retry_after_s <= 0]
    return Verdict(len(requests), [describe(one) for one in requests if one.seconds < WORKER_WAIT_S - 1])


def _crash_loop(seen: Observations) -> Verdict:
    """A rejection before the wait for a worker has a retry time."""
    requests = [one for one in _unavailable_requests(seen) if one.seconds < WORKER_WAIT_S - 1]
    return Verdict(len(requests), [describe(one) for one in requests if one.retry_after_s <= 0])


def _unavailable_requests(seen: Observations) -> list[RequestRecord]:
    return [one for one in seen.requests if one.code == "unavailable" and one.kind in ORDINARY]


def _overload(seen: Observations) -> Verdict:
    refused = [one for one in seen.requests if one.status == 429 or one.code == "overloaded"]
    return Verdict(len(refused), [describe(one) for one in refused if one.retry_after_s <= 0 or one.has_output])


def _deadline(seen: Observations) -> Verdict:
    frozen_s = sum(fault.ended - fault.begun for fault in seen.injected(*FREEZES))
    limit_s = seen.request_timeout_s + DEADLINE_SLACK_S + frozen_s
    endless = [one for one in seen.of_kind("endless") if one.outcome != PENDING]
    # A kill of its worker in a rolling update can take the weights that it started with (docs/scaling.md).
    requests = [one for one in endless if one.code != "not_retryable" or not is_served(one, seen)]
    broken = [describe(one) for one in requests if one.code != "deadline_exceeded" or one.seconds > limit_s]
    late = [describe(one) for one in seen.requests if one.outcome == UNANSWERED and one.kind != "endless"]
    return Verdict(len(requests), [*broken, *late])


def _partial(seen: Observations) -> Verdict:
    # A file of audio has no place for an error event: the end of the connection is its declaration.
    broken = [
        describe(one)
        for one in seen.requests
        if one.outcome == WRONG or (one.outcome == CUT and one.kind not in ("speech", "metrics"))
    ]
    return Verdict(len(seen.requests), broken)


def _invalid(seen: Observations) -> Verdict:
    expected = {"bad json": (400, "invalid_json"), "bad model": (404, "model_not_found"), "bad key": (401, "")}
    requests = seen.of_kind(*expected)
    broken = [
        describe(one)
        for one in requests
        if one.status != expected[one.kind][0] or expected[one.kind][1] not in ("", one.code)
    ]
    return Verdict(len(requests), broken)


def _disconnect(seen: Observations) -> Verdict:
    leavers = [one for one in seen.requests if one.outcome == LEFT]
    return Verdict(len(leavers), [f"{name} is {value:g} after the load" for name, value in seen.leftovers.items()])


# ---------------------------------------------------------------- processes
def _before(samples: Sequence[ProcessSample], at: float) -> ProcessSample | None:
    return next((sample for sample in reversed(samples) if sample.at < at), None)


def _no_false_kill(seen: Observations) -> Verdict:
    """No worker has another process after the freeze than before it, unless a rolling update replaces workers."""
    faults = [
        fault
        for fault in seen.injected(*FREEZES)
        if not any(start <= fault.ended + SETTLE_S and end >= fault.begun for start, end in seen.rollouts)
    ]
    broken = list[str]()
    starts = sorted(fault.begun for fault in seen.faults)
    for fault in faults:
        until = min([fault.ended + SETTLE_S, *(start for start in starts if start > fault.ended)])
        before, after = _before(seen.samples, fault.begun), _before(seen.samples, until)
        if before is None or after is None:
            continue
        lost = [name for name, pid in before.pids.items() if name not in FRONTEND_NAMES and after.pids.get(name) != pid]
        broken += [f"{name} was replaced after {fault.name} at {fault.begun:.1f} s" for name in lost]
    return Verdict(len(faults), broken)


def _recovery(seen: Observations) -> Verdict:
    """After each fault every model answers again, unless the load ends while there is still time."""
    ordinary = seen.of_kind(*ORDINARY)
    checked, broken = 0, list[str]()
    for fault in (fault for fault in seen.faults if not fault.skipped):
        for model in sorted({one.model for one in ordinary}):
            limit = fault.ended + RECOVERY_S
            whole = [one for one in ordinary if one.model == model and one.outcome == WHOLE]
            is_back = any(fault.ended <= one.ended <= limit for one in whole)
            checked += is_back or limit <= seen.load_s
            if not is_back and limit <= seen.load_s:
                broken.append(f"{model} did not answer within {RECOVERY_S:.0f} s after {fault.name}")
    stuck = [one for one in ordinary if one.outcome == PENDING and one.seconds > RECOVERY_S]
    return Verdict(checked + len(stuck), [*broken, *map(describe, stuck)])


def _memory(seen: Observations) -> Verdict:
    """Growth of each process with a role since its model was loaded. One that replaces another one is a new one."""
    samples = defaultdict[tuple[str, int], list[tuple[float, float]]](list)
    for sample in seen.samples:
        for name, megabytes in sample.rss_mb.items():
            if name != "standby":  # it maps weights in advance, and has no requests
                samples[name, sample.pids.get(name, 0)].append((sample.at, megabytes))
    growth: dict[str, float] = {}
    for (name, pid), figures in samples.items():
        loaded_at = seen.samples[0].at if figures[0][0] == seen.samples[0].at else figures[0][0] + LOAD_S
        loaded = [megabytes for at, megabytes in figures if at >= loaded_at]
        if len(loaded) > 1:
            growth[f"{name} (process {pid})"] = loaded[-1] - loaded[0]
    broken = [f"{name} grew by {megabytes:.0f} MB" for name, megabytes in growth.items() if megabytes > MAX_GROWTH_MB]
    return Verdict(len(growth), broken)


# ---------------------------------------------------------------- the server as a whole
def _health(seen: Observations) -> Verdict:
    freezes = seen.injected(*FREEZES)
    probes = [
        probe
        for probe in seen.probes
        if not any(fault.begun - MAX_HEALTH_S <= probe.at <= fault.ended + 1 for fault in freezes)
    ]
    broken = [
        f"/health: status {probe.health} after {probe.health_s:.1f} s at {probe.at:.1f} s"
        for probe in probes
        if probe.health != 200 or probe.health_s > MAX_HEALTH_S
    ]
    return Verdict(len(probes), broken)


def _ready(seen: Observations) -> Verdict:
    """503 while it starts and while it drains; 200 once every model answers again."""
    starting = [probe for probe in seen.probes if probe.phase in ("starting", "warming up", "draining")]
    broken = [f"/ready is {probe.ready} while {probe.phase}" for probe in starting if probe.ready != 503]
    running = [probe for probe in seen.probes if 0 <= probe.at <= seen.load_s and probe.ready]
    if running and running[-1].ready != 200:
        broken.append(f"/ready is {running[-1].ready} ({running[-1].phase}) after the last fault")
    return Verdict(len(starting) + len(running[-1:]), broken)


def _tenants(seen: Observations) -> Verdict:
    """Requests of others are served.

    A pause counts from the start of the abuse: earlier ones have other causes. While all processes are paused, so is
    the request.
    """
    checked, broken = 0, list[str]()
    for fault in seen.injected("key-abuse"):
        for one in _during(seen, [fault], *ORDINARY):
            if one.tenant == "mallory":
                continue
            pauses = [(max(start, fault.begun), end) for start, end in one.pauses if end > fault.begun]
            pause_s = max((end - start - _frozen_s(seen, start, end) for start, end in pauses), default=0.0)
            checked += 1
            if not is_served(one, seen) or pause_s > MAX_TENANT_GAP_S:
                broken.append(describe(one) + f", longest pause {pause_s:.1f} s")
    return Verdict(checked, broken)


def _frozen_s(seen: Observations, start: float, end: float) -> float:
    """Seconds of an interval in which all processes were paused."""
    freezes = seen.injected(*FREEZES)
    return sum(max(0.0, min(end, fault.ended) - max(start, fault.begun)) for fault in freezes)


def _arena(seen: Observations) -> Verdict:
    values = seen.of_kind("large value")
    is_refused = [one.outcome == DECLARED and one.status in (429, 503) and one.retry_after_s > 0 for one in values]
    broken = [
        describe(one) for one, refused in zip(values, is_refused, strict=True) if one.outcome != WHOLE and not refused
    ]
    others = _served_during("fill-arena")(seen)
    return Verdict(len(values) + others.checked, [*broken, *others.broken])


def _shutdown(seen: Observations) -> Verdict:
    end = seen.shutdown
    if end is None:
        return Verdict(0)
    broken = [describe(one) for one in end.running if one.outcome != WHOLE]
    if (end.new_request.status, end.new_request.code) != (503, "not_ready"):
        broken.append(f"after the signal: {describe(end.new_request)}")
    return Verdict(len(end.running) + 1, broken)


def _cut(seen: Observations) -> Verdict:
    """No response is cut at shutdown without an error."""
    running = seen.shutdown.running if seen.shutdown else ()
    return Verdict(len(running), [describe(one) for one in running if one.outcome == CUT])


def _nothing_left(seen: Observations) -> Verdict:
    end = seen.shutdown
    if end is None:
        return Verdict(0)
    broken = [f"the process {name} still runs" for name in end.left_processes]
    broken += [f"the file {name} is left" for name in end.left_files]
    broken += [] if end.exit_code == 0 else [f"exit status {end.exit_code}"]
    return Verdict(3, broken)


RUNTIME, OPERATE, DEPLOY = "docs/runtime.md", "docs/operate.md", "docs/deploy.md"
PROMISES = (
    Promise("worker", RUNTIME, "a worker dies", _served_during(*WORKER_FAULTS)),
    Promise("hung-worker", RUNTIME, "a worker hangs or is paused", _served_during("stop-worker")),
    Promise("no-false-kill", RUNTIME, "nothing is killed or replayed for it", _no_false_kill),
    Promise("conductor", RUNTIME, "the conductor dies or hangs", _served_during(*CONDUCTOR_FAULTS)),
    Promise(
        "diverged", RUNTIME, "outputs of one kind are never mixed", _ends("changing", "model_error", allow_whole=True)
    ),
    Promise("crash-loop", RUNTIME, "all workers of a replica group fail to start", _crash_loop),
    Promise("unavailable", RUNTIME, "no worker is available for 30 s", _unavailable),
    Promise("raises", RUNTIME, "a request raises", _ends("raising", "model_error")),
    Promise(
        "poison", RUNTIME, "a request kills its worker twice at the same step", _ends("poisoned", "poison_request")
    ),
    Promise(
        "not-retryable",
        RUNTIME,
        "a walk with an `@op(idempotent=False)` loses a worker",
        _ends("not repeatable", "not_retryable", allow_whole=True),
    ),
    Promise("disconnect", RUNTIME, "its work is dropped everywhere", _disconnect),
    Promise("overload", RUNTIME, "429 with a retry time; an admitted request is not rejected later", _overload),
    Promise(
        "never-fits",
        RUNTIME,
        "a request can never fit into the KV cache",
        _ends("too long", "too_long", "context_length_exceeded"),
    ),
    Promise("deadline", RUNTIME, "the request timeout expires", _deadline),
    Promise("shutdown", RUNTIME, "new requests get 503, running ones finish", _shutdown),
    Promise("cut", RUNTIME, "open responses end with the error `shutting_down`", _cut),
    Promise("partial", RUNTIME, "a partial result is never reported as complete", _partial),
    Promise("backpressure", RUNTIME, "A client that reads slowly may be", _ends("slow reader", allow_whole=True)),
    Promise("recovery", RUNTIME, "A standby process with everything imported replaces a dead one", _recovery),
    Promise("health", OPERATE, "200 while the process runs", _health),
    Promise("ready", OPERATE, "Use it as the readiness probe and for load balancers", _ready),
    Promise("nothing-left", DEPLOY, "starts the conductor and the workers and stops them when it stops", _nothing_left),
    Promise("invalid", "docs/api/errors.md", "the request is invalid, or uses an unsupported feature", _invalid),
    Promise("tenants", RUNTIME, "one API key cannot hold up the requests of another", _tenants),
    Promise("arena", RUNTIME, "values that do not fit into shared memory now", _arena),
    Promise("disk", RUNTIME, "the disk of the run directory is full", _served_during("fill-disk")),
    Promise("rollout", RUNTIME, "a rolling update to weights that cannot be loaded", _served_during("broken-rollout")),
    Promise("memory", RUNTIME, "the memory of finished requests is freed", _memory),
)

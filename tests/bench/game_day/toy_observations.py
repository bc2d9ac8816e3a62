"""Observations of a game day that never took place: every promise is kept, until a test changes something."""

from dataclasses import replace

from bench.game_day.observations import (
    DECLARED,
    LEFT,
    WHOLE,
    FaultRecord,
    Observations,
    Probe,
    ProcessSample,
    RequestRecord,
    Shutdown,
)

PIDS = {"front": 1, "conductor": 2, "t1": 3, "p1": 4, "p2": 5, "lm": 6, "standby": 7}
TIMEOUT_S = 20.0


def request(kind="count", begun=1.0, ended=2.0, outcome=WHOLE, **fields):
    values = {"model": "toy", "tenant": "bob", "status": 200} | fields
    return RequestRecord(kind, begun=begun, ended=ended, outcome=outcome, **values)


def failed(kind, code, status=500, **fields):
    return request(kind, outcome=DECLARED, code=code, status=status, **fields)


def sample(at, **changes):
    return ProcessSample(at, PIDS | changes, dict.fromkeys(PIDS, 100.0))


def probe(at, ready=200, phase="ready", health=200, health_s=0.01):
    return Probe(at, health, health_s, ready, phase)


def fault(name, begun=10.0, ended=11.0, target="server", **fields):
    return FaultRecord(name, target, begun, ended, **fields)


def make_observations():
    """60 s of load with a kill, a freeze, a stopped worker and an abusive key."""
    seen = Observations(7, 1.0, TIMEOUT_S, load_s=60.0, start_s=12.0)
    seen.faults = [
        fault("kill-worker", 10.0, 10.1, "t1"),
        fault("freeze-tree", 20.0, 22.0),
        fault("stop-worker", 30.0, 33.0, "p1"),
        fault("key-abuse", 40.0, 43.0),
        fault("fill-disk", 50.0, 50.0, skipped="no permission to mount"),
    ]
    seen.requests = [request(begun=float(at), ended=at + 1.5) for at in range(59)]
    seen.requests += [
        failed("raising", "model_error"),
        failed("too long", "too_long", 400),
        failed("bad json", "invalid_json", 400),
        failed("not repeatable", "not_retryable", begun=9.5, ended=10.5),
        failed("endless", "deadline_exceeded", 504, begun=1.0, ended=21.2),
        failed("unread stream", "overloaded", 429, tenant="mallory", retry_after_s=0.5),
        request("slow reader"),
        request("leaver", outcome=LEFT),
    ]
    seen.samples = [sample(at / 4, p1=40 if at / 4 > 31.5 else 4) for at in range(240)]
    seen.probes = [probe(-3.0, 503, "starting"), *(probe(float(at)) for at in range(60)), probe(61.0, 503, "draining")]
    seen.shutdown = Shutdown(61.0, 2.0, 0, failed("shutdown", "not_ready", 503), [request("shutdown")], [], [])
    return seen


def with_request(seen, **fields):
    """The same with one more request, an ordinary one unless a field says otherwise."""
    seen.requests = [*seen.requests, request(**fields)]
    return seen


def without_recovery(seen, model, after):
    """The same with no whole response of a model after a time."""
    seen.requests = [one for one in seen.requests if one.model != model or one.ended < after]
    return seen


def with_shutdown(seen, **changes):
    seen.shutdown = replace(seen.shutdown, **changes)
    return seen

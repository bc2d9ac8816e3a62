"""Request spans: queueing, walks, attempts and transfers, from all processes."""

import os
import signal
import time

import pytest

from mstar.conductor.core import ConductorCore
from mstar.conductor.model import ConductorModel
from mstar.frontend import actor as frontend_actor
from mstar.launch.in_process import InProcessLauncher
from mstar.launch.local_launcher import LocalLauncher
from mstar.plan.compile import plan
from mstar.plan.placement import parse_placement
from mstar.plan.planned_model import PlannedModel
from mstar.wire import messages as m
from mstar.wire.message import MessageReceived, Tick
from tests.chaos.deployment import TRAPS_FILE
from tests.chaos.deployment import TrapRequest as FileTrapRequest
from tests.chaos.faulty_models import TrapRequest, TwoTraps
from tests.integration.deployment_clients import TARGETS, Client, Oracle, add_frontend

PLACEMENT = {"place": {"lm": ["a"], "snac": ["b"], "lm.prefill": ["c"]}}


def query_spans(front_end, name, rid):
    return front_end.query_spans(m.Peer(name, 0), rid).result(2.0)


def test_every_process_returns_its_spans_of_a_finished_request():
    oracle = Oracle.from_file(TARGETS["orpheus"])
    placement = parse_placement(PLACEMENT)
    with InProcessLauncher({"m": PlannedModel(oracle.model, plan(oracle.model.graphs(), placement))}) as deployment:
        front_end = add_frontend(deployment)
        client = Client(front_end, "m", oracle.requests[0]).wait()
        conductor_spans = query_spans(front_end, "conductor", client.rid).spans
        by_worker = {name: query_spans(front_end, name, client.rid).spans for name in "abc"}
        unknown = query_spans(front_end, "a", "nobody").spans
        clock = query_spans(front_end, "a", client.rid).clock_offset
    assert [(span.kind, span.name) for span in conductor_spans] == [
        ("queued", "queued"),
        ("attempt", "attempt"),
        ("walk", "speak"),
    ]
    walk = conductor_spans[-1]
    assert set(walk.detail.split(", ")) == {"a.0", "b.0", "c.0"}
    ops = {(name, span.name): span for name, spans in by_worker.items() for span in spans if span.kind == "op"}
    assert ops["c", "lm.prefill"].calls == 1
    assert ops["a", "lm.decode"].calls > 10  # one span
    assert all(walk.start <= span.start <= span.end <= walk.end + 0.01 for span in ops.values())
    transfers = {(name, span.name) for name, spans in by_worker.items() for span in spans if span.kind == "transfer"}
    assert {("c", "to a"), ("a", "to b")} <= transfers  # KV to the decoder, codes to the vocoder
    assert unknown == []
    assert abs(clock + time.monotonic() - time.time()) < 0.1


def new_conductor(*events):
    """A conductor of TwoTraps after these events, one per second."""
    model, peer = TwoTraps(), m.Peer("conductor", 0)
    models = {
        "m": ConductorModel.from_plans(model, plan(model.graphs(), parse_placement({"place": {"part": ["a", "b"]}})))
    }
    core = ConductorCore(peer, m.Peer("launcher", 0), models)
    for now, (sender, message) in enumerate(events):
        for tick in range(10 * (now > 0)):  # without them the second would be a pause of the conductor
            core.step(now - 1 + tick / 10, Tick())
        core.step(float(now), MessageReceived(sender, message))
    spans = core.request_spans.snapshot(9.0, "r")
    return [(span.kind, span.name, span.walk_index, span.start, span.end, span.detail) for span in spans], core


FRONT, LAUNCHER, A, B = m.Peer("front", 0), m.Peer("launcher", 0), m.Peer("a", 0), m.Peer("b", 0)
SUBMIT = m.Submit("r", "m", m.Value(TrapRequest(1, steps=2)))


def finish_walk(walk, attempt=0):
    return m.SeatDone("r", attempt, walk, 0, {}, {}, {"Text": 2})


def test_a_conductor_records_walks_and_attempts():
    spans, _ = new_conductor(
        (A, m.Register()),
        (FRONT, SUBMIT),
        (A, finish_walk(0)),
        (LAUNCHER, m.ProcessExited(A, "signal 9")),  # no worker is left for the second walk
        (B, m.Register()),
        (B, finish_walk(1, attempt=1)),
    )
    assert spans == [
        ("queued", "queued", 0, 1.0, 1.0, ""),
        ("attempt", "attempt", 0, 1.0, 3.0, ""),
        ("walk", "count", 0, 1.0, 2.0, "a.0"),
        ("walk", "count", 1, 2.0, 3.0, "a.0"),
        ("attempt", "attempt", 1, 3.0, 5.0, "worker a.0 was lost"),
        ("walk", "count", 1, 3.0, 5.0, "b.0"),
    ]


def test_the_wait_for_a_worker_is_recorded():
    _, core = new_conductor((FRONT, SUBMIT), (FRONT, m.Cancel("other")), (B, m.Register()))
    walk = core.request_spans.snapshot(9.0, "r")[-1]
    assert (walk.kind, walk.start, walk.wait_s) == ("walk", 0.0, 2.0)


@pytest.fixture
def alone(monkeypatch):
    """A front end with a short query timeout."""
    monkeypatch.setattr(frontend_actor, "QUERY_TIMEOUT_S", 0.05)
    model = TwoTraps()
    with InProcessLauncher({"m": PlannedModel(model, plan(model.graphs(), None))}) as deployment:
        yield add_frontend(deployment)


def test_a_query_to_a_dead_process_times_out_and_is_dropped(alone):
    answers = [alone.query_counts(m.Peer("nobody", 7)) for _ in range(20)]
    answers.append(alone.query_spans(m.Peer("local", 9), "r"))
    for answer in answers:
        with pytest.raises(TimeoutError):
            answer.result(2.0)
    assert alone._pending_queries == {}
    assert alone.query_counts(m.Peer("local", 0)).result(2.0)["requests"] == 0


def test_a_request_can_be_cancelled_by_another_client(alone):
    client = Client(alone, "m", TrapRequest(7, steps=100_000))
    while not client.output_counts:
        time.sleep(0.002)
    alone.cancel(client.rid)
    assert client.wait(2.0).end.status == "cancelled"


@pytest.mark.slow
def test_both_attempts_of_a_retried_request_are_recorded():
    placement = '[place]\npart = ["a", "b"]'
    with LocalLauncher({"m": TRAPS_FILE}, {"m": placement}, standby=False) as local:
        front_end = add_frontend(local)
        client = Client(front_end, "m", FileTrapRequest(7, steps=2000))
        while not client.output_counts:
            time.sleep(0.002)
        at = query_spans(front_end, "conductor", client.rid).spans[-1].detail.partition(".")[0]
        os.kill(local.pid(at), signal.SIGKILL)
        assert client.wait().end.status == "ok"
        conductor_spans = query_spans(front_end, "conductor", client.rid)
        (other,) = {"a", "b"} - {at}
        worker_spans = query_spans(front_end, other, client.rid)
    first, second = [span for span in conductor_spans.spans if span.kind == "attempt"]
    assert (first.detail, second.detail) == ("", f"worker {at}.0 was lost")
    assert first.end == second.start
    step = next(span for span in worker_spans.spans if span.name == "part.step")
    assert (step.calls, step.attempt) == (2000, second.attempt)
    walk = conductor_spans.spans[-1]
    assert (
        walk.start + conductor_spans.clock_offset
        < step.start + worker_spans.clock_offset + 0.01
        < walk.end + conductor_spans.clock_offset + 0.02
    )

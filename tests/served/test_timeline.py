"""What processes tell of a request: when it waited, what ran where, why it was tried again; no question stays open."""

import os
import signal
import time

import pytest

from mstar.conductor.core import ConductorCore, Received, Served
from mstar.launch.local import Local
from mstar.launch.together import Together
from mstar.plan.compile import plan
from mstar.plan.deployment import Deployed
from mstar.plan.placement import parse_placement
from mstar.server import front as fronts
from mstar.wire import messages as m
from tests.chaos.models import Ask, Twice
from tests.chaos.parts import TRAPS_FILE
from tests.chaos.parts import Ask as FiledAsk
from tests.served.parts import TARGETS, Client, Oracle, front

SPREAD = {"place": {"lm": ["a"], "snac": ["b"], "lm.prefill": ["c"]}}


def told(front_end, name, rid):
    return front_end.take_timeline(m.Peer(name, 0), rid).result(2.0)


def test_every_process_tells_its_part_of_a_request_that_ended():
    oracle = Oracle.of(TARGETS["orpheus"])
    placement = parse_placement(SPREAD)
    with Together({"m": Deployed(oracle.model, plan(oracle.model.graphs(), placement))}) as together:
        front_end = front(together)
        client = Client(front_end, "m", oracle.requests[0]).wait()
        conducted = told(front_end, "conductor", client.rid).spans
        by_worker = {name: told(front_end, name, client.rid).spans for name in "abc"}
        unknown = told(front_end, "a", "nobody").spans
        clock = told(front_end, "a", client.rid).clock
    assert [(span.what, span.name) for span in conducted] == [
        ("queued", "queued"),
        ("attempt", "attempt"),
        ("walk", "speak"),
    ]
    walk = conducted[-1]
    assert set(walk.text.split(", ")) == {"a.0", "b.0", "c.0"}
    ops = {(name, span.name): span for name, spans in by_worker.items() for span in spans if span.what == "op"}
    assert ops["c", "lm.prefill"].calls == 1
    assert ops["a", "lm.decode"].calls > 10  # and yet one span
    assert all(walk.start <= span.start <= span.end <= walk.end + 0.01 for span in ops.values())
    transfers = {(name, span.name) for name, spans in by_worker.items() for span in spans if span.what == "transfer"}
    assert {("c", "to a"), ("a", "to b")} <= transfers  # the state goes to who decodes, codes to who makes sound
    assert unknown == []
    assert abs(clock + time.monotonic() - time.time()) < 0.1


def conducted(*events):
    """A conductor of Twice that is told these things, one a second."""
    model, me = Twice(), m.Peer("conductor", 0)
    served = {"m": Served.of(model, plan(model.graphs(), parse_placement({"place": {"part": ["a", "b"]}})))}
    core = ConductorCore(me, m.Peer("launcher", 0), served)
    for now, (sender, message) in enumerate(events):
        core.step(float(now), Received(sender, message))
    spans = core.timeline.told(9.0, "r")
    return [(one.what, one.name, one.number, one.start, one.end, one.text) for one in spans], core


FRONT, LAUNCHER, A, B = m.Peer("front", 0), m.Peer("launcher", 0), m.Peer("a", 0), m.Peer("b", 0)
SUBMIT = m.Submit("r", "m", m.Value(Ask(1, steps=2)))


def done(walk, attempt=0):
    return m.Done("r", attempt, walk, 0, {}, {}, {"Text": 2})


def test_a_conductor_tells_of_walks_and_of_attempts_and_why():
    spans, _ = conducted(
        (A, m.Hello()),
        (FRONT, SUBMIT),
        (A, done(0)),
        (LAUNCHER, m.Gone(A, "signal 9")),  # nobody is left for the second walk
        (B, m.Hello()),
        (B, done(1, attempt=1)),
    )
    assert spans == [
        ("queued", "queued", 0, 1.0, 1.0, ""),
        ("attempt", "attempt", 0, 1.0, 3.0, ""),
        ("walk", "count", 0, 1.0, 2.0, "a.0"),
        ("walk", "count", 1, 2.0, 3.0, "a.0"),
        ("attempt", "attempt", 1, 3.0, 5.0, "worker a.0 was lost"),
        ("walk", "count", 1, 3.0, 5.0, "b.0"),
    ]


def test_how_long_a_walk_had_no_worker_is_told():
    _, core = conducted((FRONT, SUBMIT), (FRONT, m.Cancel("other")), (B, m.Hello()))
    walk = core.timeline.told(9.0, "r")[-1]
    assert (walk.what, walk.start, walk.waited) == ("walk", 0.0, 2.0)


@pytest.fixture
def alone(monkeypatch):
    """A front end, and a conductor without workers that are heard."""
    monkeypatch.setattr(fronts, "ANSWER_S", 0.05)
    model = Twice()
    with Together({"m": Deployed(model, plan(model.graphs(), None))}) as together:
        yield front(together)


def test_a_question_to_the_dead_is_given_up_and_not_kept(alone):
    answers = [alone.take_stock(m.Peer("nobody", 7)) for _ in range(20)]
    answers.append(alone.take_timeline(m.Peer("local", 9), "r"))
    for answer in answers:
        with pytest.raises(TimeoutError):
            answer.result(2.0)
    assert alone._asked == {}
    assert alone.take_stock(m.Peer("local", 0)).result(2.0)["requests"] == 0


def test_a_request_can_be_cancelled_by_another_than_its_client(alone):
    client = Client(alone, "m", Ask(7, steps=100_000))
    while not client.got:
        time.sleep(0.002)
    alone.cancel(client.rid)
    assert client.wait(2.0).end.status == "cancelled"


@pytest.mark.slow
def test_a_request_whose_worker_was_killed_tells_of_both_attempts():
    placement = '[place]\npart = ["a", "b"]'
    with Local({"m": TRAPS_FILE}, {"m": placement}, spare=False) as local:
        front_end = front(local)
        client = Client(front_end, "m", FiledAsk(7, steps=2000))
        while not client.got:
            time.sleep(0.002)
        at = told(front_end, "conductor", client.rid).spans[-1].text.partition(".")[0]
        os.kill(local.pid(at), signal.SIGKILL)
        assert client.wait().end.status == "ok"
        conducted = told(front_end, "conductor", client.rid)
        (other,) = {"a", "b"} - {at}
        worked = told(front_end, other, client.rid)
    first, second = [span for span in conducted.spans if span.what == "attempt"]
    assert (first.text, second.text) == ("", f"worker {at}.0 was lost")
    assert first.end == second.start
    step = next(span for span in worked.spans if span.name == "part.step")
    assert (step.calls, step.attempt) == (2000, second.attempt)
    walk = conducted.spans[-1]
    assert walk.start + conducted.clock < step.start + worked.clock + 0.01 < walk.end + conducted.clock + 0.02

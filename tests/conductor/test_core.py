"""The core dispatches events to its parts: workers, front ends, shutdown, statistics, pauses and silent workers."""

import ast
from dataclasses import replace
from pathlib import Path

import pytest

import mstar.conductor
from mstar.conductor.attempts import ATTEMPTS_PER_INCARNATION
from mstar.wire import messages as m
from tests.conductor.deployment import FRONTEND, LAUNCHER, LIMITS, Deployment, worker_load

A, B = m.Peer("a", 0), m.Peer("b", 0)


def talk(**options):
    return Deployment({"talk": {"lm": ["a", "b"]}}, **options)


def test_a_step_returns_its_messages_in_order_and_only_once():
    deployment = talk().start_all()
    assert deployment.sent_to(LAUNCHER) == [m.Ready()]
    deployment.submit("r")
    assert [type(message) for message in deployment.sent_to(A)] == [m.StartWalk]
    deployment.tick()
    assert deployment.started_walks() == {}


def test_a_lost_worker_moves_its_requests():
    deployment = talk().start_all()
    deployment.submit("r")
    assert deployment.started_walks() == {"r": A}
    deployment.exit_process(A)
    assert deployment.started_walks() == {"r": B}
    assert m.PeerDead(A) in deployment.sent_to(B)


def test_an_exited_front_end_cancels_its_requests():
    deployment = talk().start_all()
    deployment.submit("r")
    deployment.exit_process(FRONTEND)
    assert deployment.requests == {}
    assert deployment.sent_of_kind(m.ReleaseAttempt) == [m.ReleaseAttempt("r", 0, keep_states=False, can_wait=True)]


def test_drained_is_sent_once_when_workers_have_released_everything():
    deployment = talk().start_all()
    deployment.submit("r")
    deployment.deliver(LAUNCHER, m.Drain())
    deployment.finish_walk("r")
    assert deployment.sent_of_kind(m.Drained) == []
    deployment.deliver(A, m.AttemptReleased("r", 0))
    deployment.tick()
    assert deployment.sent_of_kind(m.Drained) == [m.Drained()]


def test_attempts_of_a_later_conductor_have_higher_numbers():
    deployment = talk(conductor=m.Peer("conductor", 2)).start_all()
    deployment.submit("r")
    (start,) = deployment.sent_of_kind(m.StartWalk)
    assert start.attempt == 2 * ATTEMPTS_PER_INCARNATION


def test_stats_count_what_it_holds():
    deployment = talk().start_all()
    deployment.submit("r")
    expected = {"requests": 1, "queue": 0, "unreleased": 0, "workers": 2, "starting": 0, "draining": 0, "stopping": 0}
    assert deployment.core.stats() == expected
    deployment.finish_walk("r")
    assert deployment.core.stats() == expected | {"requests": 0, "unreleased": 1}


def test_messages_for_other_processes_are_ignored():
    deployment = talk().start_all()
    deployment.sent.clear()
    deployment.deliver(A, m.Drained())
    assert deployment.sent == []


def test_the_package_has_no_import_cycle_and_no_part_imports_the_core():
    root = Path(mstar.conductor.__file__).parent
    files = {
        f"mstar.conductor.{'.'.join(path.relative_to(root).with_suffix('').parts)}": path for path in root.rglob("*.py")
    }
    imports = {
        name: {node.module for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.ImportFrom)}
        & files.keys()
        for name, path in files.items()
    }
    assert {name for name in files if "mstar.conductor.core" in imports[name]} == {
        "mstar.conductor.actor",
        "mstar.conductor.main",
    }
    while imports:
        leaves = {name for name, modules in imports.items() if not modules & imports.keys()}
        assert leaves, f"import cycle among {sorted(imports)}"
        imports = {name: modules for name, modules in imports.items() if name not in leaves}


# ---------------------------------------------------------------- silent workers
WATCHED = replace(LIMITS, heartbeat_timeout_s=1.1)


def watch(model="talk", *, workers=("a", "b")):
    """A model on workers a and b with failure detection, and a request "r" on worker a."""
    place = {"lm": ["a", "b"]} | ({"arm": ["a", "b"]} if model == "reach" else {})
    deployment = Deployment({model: place}, WATCHED)
    for name in workers:
        deployment.worker_up(name)
    deployment.submit("r")
    assert deployment.requests["r"].walk_run.seats == (m.Peer("a", 0),)
    deployment.sent.clear()
    return deployment


def hear_from(deployment, seconds, *names):
    """Let time pass in which only these workers send heartbeats."""
    deployment.advance_time(seconds, dict.fromkeys(names, worker_load()))


@pytest.mark.parametrize("pause_s", [0.6, 1.2, 60.0, 3600.0])
def test_a_pause_of_the_conductor_costs_no_worker(pause_s):
    deployment = watch()
    deployment._now += pause_s  # not through the harness: the conductor does not run meanwhile
    deployment.tick()
    hear_from(deployment, 0.5, "a", "b")
    assert all(worker.is_responsive for worker in deployment.workers.values())
    assert deployment.requests["r"].retries == 0
    assert deployment.sent_of_kind(m.Kill) == []


def test_a_pause_of_the_conductor_shifts_the_timeouts_of_requests():
    deployment = watch()
    deployment.submit("s", timeout_s=2.0)
    deployment._now += 3600.0
    deployment.tick()
    assert deployment.requests.keys() == {"r", "s"}
    hear_from(deployment, 2.0, "a", "b")
    assert deployment.requests.keys() == {"r"}


def test_requests_of_an_unresponsive_worker_move_to_another_one():
    deployment = watch()
    hear_from(deployment, 1.0, "b")
    assert deployment.requests["r"].retries == 0
    hear_from(deployment, 0.3, "b")
    assert deployment.started_walks() == {"r": m.Peer("b", 0)}
    assert deployment.sent_of_kind(m.Kill) == []
    assert len(deployment.core.attempts) == 0, "no request waits for the confirmation of an unresponsive worker"
    deployment.submit("s")
    assert deployment.started_walks() == {"s": m.Peer("b", 0)}
    hear_from(deployment, 0.1, "a", "b")
    deployment.submit("t")
    assert deployment.started_walks() == {"t": m.Peer("a", 0)}, "it is back"


def test_requests_wait_for_an_unresponsive_worker_without_a_replica():
    deployment = watch(workers=("a",))
    hear_from(deployment, 60.0)
    deployment.submit("s")
    hear_from(deployment, 59.0)
    assert deployment.requests["r"].retries == 0
    assert deployment.requests["s"].walk_run.seats == (m.Peer("a", 0),)
    assert deployment.sent_of_kind(m.Kill) == []
    deployment.worker_up("b")
    hear_from(deployment, 0.1, "b")
    assert {rid: request.walk_run.seats[0].name for rid, request in deployment.requests.items()} == {"r": "b", "s": "b"}
    hear_from(deployment, 3.0, "b")
    assert [kill.peer for kill in deployment.sent_of_kind(m.Kill)] == [m.Peer("a", 0)]


def test_walks_move_each_time_that_their_worker_is_unresponsive():
    deployment = watch(workers=("a",))
    hear_from(deployment, 2.0)
    deployment.worker_up("b")
    hear_from(deployment, 0.1, "b")
    assert deployment.started_walks() == {"r": m.Peer("b", 0)}
    hear_from(deployment, 2.0, "a")
    deployment.submit("s")
    assert deployment.started_walks() == {"s": m.Peer("a", 0), "r": m.Peer("a", 0)}
    hear_from(deployment, 2.0, "b")
    seats = {rid: request.walk_run.seats[0].name for rid, request in deployment.requests.items()}
    assert seats == {"r": "b", "s": "b"}, "it is unresponsive again, and there is another worker"


def test_a_walk_that_starts_with_a_state_on_an_unresponsive_worker_moves():
    deployment = Deployment({"chat": {"lm": ["a", "b"], "voice": ["a", "b"]}}, WATCHED).start_all()
    deployment.submit("r")
    for state in (7, 8):
        deployment.finish_walk("r", {0: m.ValueInput(m.Value(5))}, states={2: state})
    request = deployment.requests["r"]
    hear_from(deployment, 2.0, "b")
    assert (request.is_awaiting_input, request.retries) == (True, 0)
    deployment.deliver(FRONTEND, m.ClientInput("r", 0, m.Value(9), {}))
    assert {peer.name for peer in request.walk_run.seats} == {"a"}
    hear_from(deployment, 0.1, "b")
    assert ({peer.name for peer in request.walk_run.seats}, request.retries) == ({"b"}, 1)


def test_a_worker_keeps_nothing_of_requests_that_have_ended():
    deployment = watch(workers=("a",))
    hear_from(deployment, 2.0)
    deployment.submit("s")
    worker = deployment.workers["a"]
    assert (worker.requests.keys(), worker.unchecked.keys()) == ({"r", "s"}, {"s"})
    hear_from(deployment, 0.1)
    for rid in ("r", "s"):
        deployment.deliver(FRONTEND, m.Cancel(rid))
    assert (worker.requests, worker.unchecked) == ({}, {})


def test_a_worker_is_needed_by_the_requests_that_run_on_it_or_have_a_state_there():
    deployment = Deployment({"chat": {"lm": ["a"], "voice": ["b"]}}).start_all()
    deployment.submit("r")
    assert [worker.is_needed() for worker in deployment.workers.values()] == [True, False]
    deployment.finish_walk("r", {0: m.ValueInput(m.Value(5))}, {2: 7})
    assert [worker.is_needed() for worker in deployment.workers.values()] == [True, True]
    deployment.deliver(FRONTEND, m.Cancel("r"))
    assert [worker.is_needed() for worker in deployment.workers.values()] == [False, False]


def test_a_non_idempotent_walk_waits_for_its_unresponsive_worker():
    deployment = watch("reach")
    deployment.finish_walk("r", {0: m.ValueInput(m.Value(5))})
    seats = deployment.requests["r"].walk_run.seats
    hear_from(deployment, 60.0, *({"a", "b"} - {seats[0].name}))
    assert (deployment.requests["r"].retries, deployment.requests["r"].walk_run.seats) == (0, seats)

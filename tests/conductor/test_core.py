"""The core dispatches events to its parts: workers, front ends, shutdown, statistics."""

import ast
from pathlib import Path

import mstar.conductor
from mstar.conductor.attempts import ATTEMPTS_PER_INCARNATION
from mstar.wire import messages as m
from tests.conductor.deployment import FRONTEND, LAUNCHER, Deployment

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
    assert deployment.sent_of_kind(m.ReleaseAttempt) == [m.ReleaseAttempt("r", 0, False)]


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

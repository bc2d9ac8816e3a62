"""Supervisor without processes: what it starts, stops and reports to conductors."""

from signal import SIGTERM

from mstar.launch.deployment_status import DeploymentStatus
from mstar.wire.messages import Peer, ProcessExited, Register, RolloutFailed, RollWeights, StartWorker, StopWorker
from mstar.wire.transport.actor_loop import TICK_INTERVAL_S
from tests.launch.supervisor_harness import ExitingChild, SupervisorHarness


def test_a_process_that_exits_while_another_thread_lists_processes_is_no_error():
    harness = SupervisorHarness(conductor=["a"])
    process = harness.children["a"].process
    harness.children["a"].__class__ = ExitingChild
    assert harness.supervisor.processes()["a"] is process
    assert harness.supervisor.processes().keys() == {"conductor"}


def test_a_new_conductor_knows_which_workers_were_up():
    harness = SupervisorHarness(conductor=["a", "b", "c"])
    assert harness.children["conductor"].process.config.up_workers == ()
    harness.exit("b")  # it starts again, and is not up
    harness.exit("conductor")
    config = harness.children["conductor"].process.config
    assert config.up_workers == ("a", "c")
    assert config.peers["b"] == 1


def test_the_devices_of_a_worker_are_those_of_its_current_process():
    harness = SupervisorHarness(conductor=["a"])

    def devices():
        return DeploymentStatus(harness.supervisor, {}).devices()

    harness.receive("a", Register(("m.lm",), devices={"m.lm": "cuda:0"}))
    assert devices() == {"a": {"m.lm": "cuda:0"}}
    harness.supervisor.receive(harness.now, Peer("a", 7), Register(devices={"m.lm": "cuda:7"}))
    assert devices() == {"a": {"m.lm": "cuda:0"}}, "another incarnation"
    harness.exit("a")
    assert devices() == {}
    harness.receive("a", Register(("m.lm",), devices={"m.lm": "cpu"}))
    assert devices() == {"a": {"m.lm": "cpu"}}


def test_a_worker_that_is_stopped_in_a_crash_loop_reports_no_failed_starts():
    harness = SupervisorHarness(conductor=["a"])
    harness.fail_starts("a", 4)
    assert [exited.failed_starts for _, exited in harness.sent(ProcessExited)] == [0, 1, 2, 3]
    harness.receive("conductor", StopWorker(Peer("a", 3)))
    assert harness.children["a"].process.signals == [SIGTERM]
    harness.exit("a")
    assert [(exited.peer, exited.failed_starts) for _, exited in harness.sent(ProcessExited)] == [(Peer("a", 4), 0)]
    harness.receive("conductor", StartWorker("a"))
    harness.exit("a")
    assert [exited.failed_starts for _, exited in harness.sent(ProcessExited)] == [1], "the count starts again"


def test_a_worker_that_registers_after_its_stop_does_not_count_as_up():
    """It was stopped while it started. Its next failed start must not look like the end of a long run."""
    harness = SupervisorHarness(conductor=["a"])
    harness.exit("a")  # it starts again
    harness.receive("conductor", StopWorker(Peer("a", 1)))
    harness.receive("a", Register())
    assert not harness.children["a"].is_up
    harness.exit("a")
    harness.receive("conductor", StartWorker("a"))
    harness.tick(10.0)
    harness.sent(ProcessExited)
    harness.exit("a")
    assert [exited.failed_starts for _, exited in harness.sent(ProcessExited)] == [1]


def test_a_worker_that_was_stopped_after_a_rollback_is_not_killed_with_its_conductor_later():
    harness = SupervisorHarness(conductor=["a"])
    for current, successor in (("a", "a+"), ("a+", "a")):
        harness.receive("conductor", StartWorker("a", beside=harness.children[current].peer))
        harness.up(successor)
        if successor == "a+":
            harness.receive("conductor", StopWorker(harness.children[current].peer))
            harness.exit(current)
    harness.receive("conductor", RolloutFailed(2, 1, "b", "exited with status 1"))
    assert harness.children["a"].role() == "rolled back"
    for name in ("a", "a+"):  # the successor has drained, then the model is unloaded
        harness.receive("conductor", StopWorker(harness.children[name].peer))
        harness.exit(name)
    harness.receive("conductor", StartWorker("a"))
    harness.up("a")
    harness.exit("conductor")
    assert harness.children["a"].process.signals == []


def test_a_new_conductor_continues_only_an_update_that_it_has_not_finished():
    harness = SupervisorHarness(one=["a"], two=["b"])
    harness.supervisor.reload_weights()
    assert len(harness.sent(RollWeights)) == 2
    harness.receive("one", RolloutFailed(1, 0, "a", "exited with status 1"))
    for name in ("one", "two"):
        harness.exit(name)
        harness.up(name)
    assert harness.sent(RollWeights) == [(Peer("two", 1), RollWeights(1))]


def test_a_new_conductor_gets_every_exit_that_it_has_not_seen():
    harness = SupervisorHarness(conductor=["a"])
    harness.receive("conductor", StartWorker("a", beside=Peer("a", 0)))
    harness.up("a+")
    harness.receive("conductor", StopWorker(Peer("a", 0)))
    harness.exit("a")
    harness.receive("conductor", StartWorker("a", beside=Peer("a+", 0)))
    harness.exit("conductor")
    harness.exit("a+")
    harness.fail_starts("a", 2)
    harness.exit("a")
    harness.sent(ProcessExited)
    harness.up("conductor")
    reports = [(exited.peer, exited.failed_starts) for exited in harness.sent_to("conductor", ProcessExited)]
    assert reports == [(Peer("a+", 0), 0), (Peer("a", 3), 3)], "the one in a crash loop comes last"


def test_the_supervisor_ticks_more_often_only_until_the_next_start():
    harness = SupervisorHarness(c=["w"])
    harness.loop.next_ticks.clear()
    harness.tick(1.0)
    assert harness.loop.next_ticks == [], "all run: nothing is due before the next regular tick"
    for _ in range(3):
        harness.exit("w")
    assert harness.loop.next_ticks[-1] == harness.children["w"].start_at - harness.now > TICK_INTERVAL_S

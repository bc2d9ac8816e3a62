"""Supervisor without processes: what it starts, stops and reports to conductors."""

from tests.launch.supervisor_harness import ExitingChild, SupervisorHarness


def test_a_process_that_exits_while_another_thread_lists_processes_is_no_error():
    harness = SupervisorHarness(conductor=["a"])
    process = harness.children["a"].process
    harness.children["a"].__class__ = ExitingChild
    assert harness.supervisor.processes()["a"] is process
    assert harness.supervisor.processes().keys() == {"conductor"}

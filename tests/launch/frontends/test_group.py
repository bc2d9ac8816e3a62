"""Front ends under a supervisor without processes: configurations, reports, exits and stops."""

import os
from signal import SIGTERM

import pytest

from mstar.config import FrontendConfig, FrontendSettings, HttpLimits, ServerConfig
from mstar.launch.frontends.group import REPORT_INTERVAL_S, FrontendGroup
from mstar.launch.supervisor import LaunchError
from mstar.wire.messages import DeploymentReport, Peer, ProcessExited, Ready, Register, StatsQuery, StatsReply
from tests.launch.supervisor_harness import SupervisorHarness

SETTINGS = FrontendSettings(server=ServerConfig(port=8000, frontends=2), limits=HttpLimits())


@pytest.fixture
def group():
    group = FrontendGroup(SETTINGS)
    group.make_report = lambda: b"first"
    return group


@pytest.fixture
def harness(group):
    harness = SupervisorHarness(frontends=group, conductor=["a"], second=["b"])
    for name in group.names:
        harness.up(name)
    harness.sent(object)
    return harness


def test_the_start_is_complete_when_the_last_front_end_listens(group):
    harness = SupervisorHarness(frontends=group, conductor=["a"])
    assert harness.supervisor.is_starting
    harness.up("front-1")
    assert harness.supervisor.is_starting
    harness.up("front-2")
    assert not harness.supervisor.is_starting
    assert not group.are_accepting()
    for name in group.names:
        harness.receive(name, Ready())
    assert group.are_accepting()


def test_a_front_end_that_dies_during_the_start_ends_it(group):
    harness = SupervisorHarness(frontends=group, conductor=["a"])
    harness.exit("front-1")
    events = harness.supervisor.start_events
    error = next(event for event in iter(events.get_nowait, None) if isinstance(event, LaunchError))
    assert "front-1 exited with status 1 during the start" in str(error)


def test_a_front_end_gets_the_conductor_of_each_model_and_its_settings(harness):
    config = harness.children["front-2"].process.config
    assert isinstance(config, FrontendConfig)
    assert (config.number, config.settings) == (2, SETTINGS)
    assert config.conductors == {"conductor": "conductor", "second": "second"}
    assert config.peers == {"launcher": 0, "conductor": 0, "second": 0, "front-1": 0, "front-2": 0}


def test_a_restarted_conductor_knows_the_front_ends_that_run(harness):
    while harness.children["front-1"].process:  # until it waits for its next start
        harness.exit("front-1")
    harness.exit("conductor")
    assert {"front-2"} == {name for name in harness.children["conductor"].process.config.peers if "front" in name}
    harness.sent(object)
    harness.up("conductor")
    exits = harness.sent_to("conductor", ProcessExited)
    assert [exited.peer for exited in exits] == [harness.children["front-1"].peer]
    assert exits[0].failed_starts == 0


def test_the_exit_of_a_front_end_is_reported_to_all_conductors_and_it_is_restarted(harness, group):
    harness.receive("front-1", Ready())
    harness.receive("front-2", Ready())
    harness.exit("front-1")
    exits = harness.sent(ProcessExited)
    assert [peer.name for peer, _ in exits] == ["conductor", "second"]
    assert {(exited.peer, exited.failed_starts) for _, exited in exits} == {(Peer("front-1", 0), 0)}
    assert harness.children["front-1"].peer == Peer("front-1", 1), "restarted at once"
    assert not group.are_accepting()
    harness.fail_starts("front-1", 4)
    assert {exited.failed_starts for _, exited in harness.sent(ProcessExited)} == {0}, "no rollout depends on it"


def test_a_report_is_sent_when_a_front_end_starts_and_when_it_changes(harness, group):
    def reports():
        return [(peer.name, message.content) for peer, message in harness.sent(DeploymentReport)]

    harness.tick(REPORT_INTERVAL_S)
    assert reports() == [], "they have it from the start"
    group.make_report = lambda: b"second"
    harness.tick(0.1)
    assert reports() == [], "not due"
    harness.tick(REPORT_INTERVAL_S)
    assert reports() == [("front-1", b"second"), ("front-2", b"second")]
    harness.exit("front-1")
    assert reports() == [("front-1", b"second")]
    group.make_report = lambda: b"third"
    group.report_soon()
    assert reports() == [("front-1", b"third"), ("front-2", b"third")]


def test_stopped_front_ends_drain_and_are_not_restarted(harness, group):
    group.stop()
    processes = [harness.children[name].process for name in group.names]
    assert [process.signals for process in processes] == [[SIGTERM]] * 2
    harness.tick(60)
    assert [process.signals for process in processes] == [[SIGTERM]] * 2, "their drain has a timeout of its own"
    group.stop()
    assert [process.signals for process in processes] == [[SIGTERM, SIGTERM]] * 2
    for name in group.names:
        harness.exit(name)
    harness.tick(60)
    assert group.peers() == ()


def test_the_launcher_reports_its_usage_to_a_front_end(harness):
    harness.receive("front-2", StatsQuery(7))
    (reply,) = harness.sent_to("front-2", StatsReply)
    assert reply.correlation_id == 7
    assert reply.counts["pid"] == os.getpid()
    assert reply.counts["cpu_us"] > 0


def test_a_worker_cannot_have_the_name_of_a_front_end(group):
    with pytest.raises(LaunchError, match="`front-1`, which is the name of a front end"):
        SupervisorHarness(frontends=group, conductor=["front-1"])


def test_front_ends_are_no_processes_of_their_own_by_default():
    harness = SupervisorHarness(conductor=["a"])
    assert harness.supervisor.frontends.names == ()
    harness.receive("a", Register())
    harness.tick(REPORT_INTERVAL_S)
    assert harness.sent(DeploymentReport) == []

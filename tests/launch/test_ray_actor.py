"""Process actor without a Ray cluster: starts one process at a time and reports its exit."""

import os
import signal
from pathlib import Path

import msgspec
import pytest

from mstar.config import RuntimeConfig, WorkerConfig
from mstar.wire.messages import ExitCause, Suspect
from tests.launch.launcher_harness import STUB_PROCESS, is_running, wait_until

ray_actor = pytest.importorskip("mstar.launch.ray_actor")


@pytest.fixture
def process_actor(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    before = Path.cwd()
    actor = ray_actor.ProcessActor("a", (str(STUB_PROCESS),), str(tmp_path))
    os.chdir(before)
    yield actor
    actor.close()
    assert os.listdir(tmp_path) == []


def encoded_config(incarnation, **failpoints):
    """Configuration as sent by the launcher: values of the host are placeholders."""
    config = WorkerConfig(
        name="a",
        incarnation=incarnation,
        directory="/elsewhere",
        ip="10.0.0.1",
        key=bytes(32),
        peers={"launcher": 0, "conductor": 0},
        models={"m": "none.py"},
        placements={"m": ""},
        options=RuntimeConfig(failpoints=failpoints),
        conductor="conductor",
        black_box="/elsewhere/a.box",
    )
    return msgspec.msgpack.encode(config)


def parse_exit(message):
    return msgspec.msgpack.decode(message, type=ray_actor.ExitReport)


def test_a_process_is_started_once_and_its_exit_is_reported(process_actor, tmp_path):
    pid, _ = process_actor.start(encoded_config(0))
    assert process_actor.start(encoded_config(0))[0] == pid, "idempotent: a lost reply is retried"
    wait_until(lambda: list(tmp_path.glob("*/a.0.box")))
    assert process_actor.wait_exit(0, 0.01) is None
    wait_until(lambda: msgspec.msgpack.decode(process_actor.status(), type=ray_actor.ProcessStatus).cpu_s > 0)
    process_actor.send_signal(7, signal.SIGKILL)  # another incarnation
    assert process_actor.wait_exit(0, 0.1) is None

    process_actor.send_signal(0, signal.SIGKILL)
    report = parse_exit(process_actor.wait_exit(0, 5.0))
    assert (report.reason, report.suspects) == ("killed by SIGKILL", [Suspect("r1", 7, 2)])
    assert report.cause is not ExitCause.CRASH
    assert not list(tmp_path.glob("*/a.0*"))


def test_a_superseded_process_exits_before_the_next_starts(process_actor):
    old, _ = process_actor.start(encoded_config(0))
    new, _ = process_actor.start(encoded_config(1, a="dies"))
    assert not is_running(old)
    assert new != old
    report = parse_exit(process_actor.wait_exit(1, 10.0))
    assert (report.reason, report.stderr_tail) == ("exited with status 1", "no weights here")
    assert report.output == b"no weights here\n"
    assert report.cause is ExitCause.CRASH
    lost = parse_exit(process_actor.wait_exit(0, 0.0))
    assert (lost.reason, lost.cause) == ("its host or its Ray actor there died", ExitCause.EXTERNAL)


def test_output_that_the_launcher_does_not_fetch_is_bounded_and_the_newest_is_kept():
    process = ray_actor.WatchedProcess.__new__(ray_actor.WatchedProcess)  # without a child
    process.on_output(b"a" * ray_actor.MAX_OUTPUT_BYTES)
    process.on_output(b"bb")
    assert process.take_output() == b"a" * (ray_actor.MAX_OUTPUT_BYTES - 2) + b"bb"
    assert process.take_output() == b""

"""Several conductors under one launcher: separate models, workers and failures."""

import os
import signal

import pytest

from mstar.config import RuntimeConfig
from mstar.launch.supervisor import LaunchError
from mstar.wire.messages import Peer, ProcessExited, Register, RollWeights, WeightsRolled
from tests.launch.launcher_harness import Probe, StubLauncher, make_placement, wait_until

MODELS = {"m": "none.py", "n": "none.py"}
PLACEMENTS = make_placement("a", "b") | {"n": '[place]\nlm = ["c"]'}


@pytest.fixture
def launched(tmp_path, monkeypatch):
    """Launcher of two models on separate workers, and a probe front end of both conductors."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with StubLauncher(MODELS, PLACEMENTS, options=RuntimeConfig(conductors=2), standby=False) as local:
        probe = Probe()
        local.add_frontend(probe)
        for conductor in local.conductors.values():
            local.actor_loop.call_soon(
                lambda conductor=conductor: local.actor_loop.send(probe.peer, conductor, Register())
            )
        yield local, probe
        local.stop(drain_timeout_s=5.0)
        assert local._supervisor.drained.is_set(), "both conductors confirmed"


def test_each_model_has_its_conductor(launched):
    local, _ = launched
    assert local.health() == dict.fromkeys(("conductor", "conductor-2", "a", "b", "c"), "up")
    assert local.conductors == {"m": Peer("conductor", 0), "n": Peer("conductor-2", 0)}


def test_a_worker_exit_is_reported_to_its_conductor_alone(launched):
    local, probe = launched
    for worker, conductor in (("c", "conductor-2"), ("b", "conductor")):
        os.kill(local.pid(worker), signal.SIGKILL)
        sender, exited = probe.next_message(ProcessExited)
        assert (sender.name, exited.peer) == (conductor, Peer(worker, 0))
        wait_until(lambda worker=worker: local.health()[worker] == "up")
    assert probe.received.empty()


def test_a_restarted_conductor_gets_its_own_workers(launched):
    local, probe = launched
    os.kill(local.pid("conductor-2"), signal.SIGKILL)
    sender, hello = probe.next_message(Register)
    assert (sender, hello.components) == (Peer("conductor-2", 1), ("c.0", "launcher.0", "probe.0"))
    wait_until(lambda: set(local.health().values()) == {"up"})
    assert local.conductors == {"m": Peer("conductor", 0), "n": Peer("conductor-2", 1)}
    assert local.stats()["restarts"] == 1


def test_a_rolling_update_is_done_when_all_conductors_confirm(launched):
    local, probe = launched
    weights_rolled = local.reload_weights()
    assert {probe.next_message(RollWeights)[0].name for _ in range(2)} == {"conductor", "conductor-2"}
    for model, is_done in (("m", False), ("m", False), ("n", True)):
        conductor = local.conductors[model]
        local.actor_loop.call_soon(
            lambda conductor=conductor: local.actor_loop.send(probe.peer, conductor, WeightsRolled(1))
        )
        assert weights_rolled.wait(0.3) is is_done


def test_a_worker_cannot_have_the_name_of_a_conductor():
    with pytest.raises(LaunchError, match="`conductor-2`, which is reserved"):
        StubLauncher(
            MODELS, make_placement("conductor-2") | {"n": '[place]\nlm = ["c"]'}, options=RuntimeConfig(conductors=2)
        )

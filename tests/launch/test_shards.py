"""Several conductors under one launcher: each has its own models and workers, and dies by itself."""

import os
import signal

import pytest

from mstar.config import Options
from mstar.launch.supervisor import LaunchError
from mstar.wire.messages import Gone, Hello, Peer, Renew, Renewed
from tests.launch.parts import LocalStandIns, Probe, placed, until

MODELS = {"m": "none.py", "n": "none.py"}
PLACED = placed("a", "b") | {"n": '[place]\nlm = ["c"]'}


@pytest.fixture
def launched(tmp_path, monkeypatch):
    """A launcher of two models on workers of their own, and a front end that both conductors know."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with LocalStandIns(MODELS, PLACED, options=Options(conductors=2), spare=False) as local:
        probe = Probe()
        local.add(probe)
        for conductor in local.conductors.values():
            local.node.call(lambda conductor=conductor: local.node.send(probe.peer, conductor, Hello()))
        yield local, probe
        local.stop(grace_s=5.0)
        assert local._supervisor.drained.is_set(), "both have said so"


def test_each_has_its_own(launched):
    local, _ = launched
    assert local.health() == dict.fromkeys(("conductor", "conductor-2", "a", "b", "c"), "up")
    assert local.conductors == {"m": Peer("conductor", 0), "n": Peer("conductor-2", 0)}


def test_the_death_of_a_worker_is_told_to_its_conductor_alone(launched):
    local, probe = launched
    for worker, conductor in (("c", "conductor-2"), ("b", "conductor")):
        os.kill(local.pid(worker), signal.SIGKILL)
        sender, gone = probe.hears(Gone)
        assert (sender.name, gone.peer) == (conductor, Peer(worker, 0))
        until(lambda worker=worker: local.health()[worker] == "up")
    assert probe.told.empty()


def test_a_conductor_that_comes_again_meets_its_own_workers(launched):
    local, probe = launched
    os.kill(local.pid("conductor-2"), signal.SIGKILL)
    sender, hello = probe.hears(Hello)
    assert (sender, hello.components) == (Peer("conductor-2", 1), ("c.0", "launcher.0", "probe.0"))
    until(lambda: set(local.health().values()) == {"up"})
    assert local.conductors == {"m": Peer("conductor", 0), "n": Peer("conductor-2", 1)}
    assert local.stock()["restarts"] == 1


def test_a_renewal_is_done_when_all_have_said_so(launched):
    local, probe = launched
    renewed = local.renew()
    assert {probe.hears(Renew)[0].name for _ in range(2)} == {"conductor", "conductor-2"}
    for model, is_done in (("m", False), ("m", False), ("n", True)):
        conductor = local.conductors[model]
        local.node.call(lambda conductor=conductor: local.node.send(probe.peer, conductor, Renewed(1)))
        assert renewed.wait(0.3) is is_done


def test_a_worker_has_no_conductors_name():
    with pytest.raises(LaunchError, match="`conductor-2`, which is reserved"):
        LocalStandIns(MODELS, placed("conductor-2") | {"n": '[place]\nlm = ["c"]'}, options=Options(conductors=2))

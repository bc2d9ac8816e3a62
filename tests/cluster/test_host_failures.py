"""Host failures: streams survive killed and disconnected hosts, and workers are restarted."""

from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
ORPHEUS = str(Path(__file__).parents[2] / "examples" / "orpheus.py")
PLACEMENT = """
[place]
lm = ["a", "b"]
snac = ["c", "d"]
[workers.a]
host = "10.77.0.2"
[workers.b]
host = "10.77.0.1"
[workers.d]
host = "10.77.0.1"
"""
MAX_GAP_S = 4.0
"""Maximum gap in seconds when a host is lost: 1.1 s until its workers are unresponsive, then recomputation."""


def test_streams_survive_host_failures(hosts, driver):
    driver.call("prepare_example", model="orpheus", target=ORPHEUS)
    driver.call("start", models={"orpheus": ORPHEUS}, placements={"orpheus": PLACEMENT})
    host_of = driver.call("hosts")
    assert host_of["a"] == hosts.address(2)
    assert host_of["c"] != hosts.address(1), "replicas are spread"

    # A disconnected host: no connection is closed. Its requests move, and after it is back its workers are used again.
    driver.call("send", model="orpheus", count=16)
    hosts.disconnect(2)
    try:
        assert max(driver.call("check")) < MAX_GAP_S
        cut_off = [name for name, host in host_of.items() if host == hosts.address(2)]
        driver.call("wait_unresponsive", names=cut_off)
    finally:
        hosts.reconnect(2)
    driver.call("wait_unresponsive", names=[])
    assert driver.call("hosts") == host_of
    assert driver.call("exits") == []
    driver.call("run_clients", model="orpheus", count=16)

    # A killed host: pinned workers wait for it, other workers are placed elsewhere.
    driver.call("send", model="orpheus", count=16)
    hosts.kill(2)
    try:
        assert max(driver.call("check")) < MAX_GAP_S
        driver.call("wait_state", name="a", state="waits for a host with 1 CPU, 0.001 node:10.77.0.2")
    finally:
        hosts.restart(2)
    driver.call("wait_up")
    assert driver.call("hosts")["a"] == hosts.address(2)
    driver.call("run_clients", model="orpheus", count=16)
    driver.call("wait_idle")

    driver.call("stop")
    assert not list(hosts.directory.glob("mstar-run-*")), "process actors leave nothing behind"


@pytest.mark.nightly
def test_a_worker_that_waits_for_a_host_reports_its_resources(driver):
    placement = "[place]\nlm = 'a'\nsnac = 'b'\n[workers.b]\nresources = { tape = 2 }"
    with pytest.raises(AssertionError, match=r"not up: .*`b \(waits for a host with 1 CPU, 2 tape\)`"):
        driver.call("start", models={"orpheus": ORPHEUS}, placements={"orpheus": placement}, ready_timeout_s=4.0)

"""Hosts die and are cut off while streams run: no stream ends or differs, and workers come back."""

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
"""How long a client may have to wait when a host is lost: it is given up after 1.1 s, then its part is run again."""


def test_streams_survive_host_failures(hosts, driver):
    driver.ask("ask_example", model="orpheus", target=ORPHEUS)
    driver.ask("start", models={"orpheus": ORPHEUS}, placements={"orpheus": PLACEMENT})
    where = driver.ask("hosts")
    assert where["a"] == hosts.address(2)
    assert where["c"] != hosts.address(1), "replicas are apart"

    # A host that is cut off: nobody is told. It comes back as it was, with new lives.
    driver.ask("send", model="orpheus", count=16)
    hosts.cut(2)
    try:
        assert max(driver.ask("judge")) < MAX_GAP_S
        lost = {name for name, host in where.items() if host == hosts.address(2)}
        driver.ask("wait_deaths", count=len(lost))
    finally:
        hosts.reconnect(2)
    driver.ask("wait_up")
    assert driver.ask("hosts") == where
    assert {name for name, _ in driver.ask("deaths")} == {f"{name}.0" for name in lost}
    driver.ask("crowd", model="orpheus", count=16)

    # A host that dies: who was only there waits for it, who need not be there goes elsewhere.
    driver.ask("send", model="orpheus", count=16)
    hosts.kill(2)
    try:
        assert max(driver.ask("judge")) < MAX_GAP_S
        driver.ask("wait_state", name="a", state="waits for a host with 1 CPU, 0.001 node:10.77.0.2")
    finally:
        hosts.restart(2)
    driver.ask("wait_up")
    assert driver.ask("hosts")["a"] == hosts.address(2)
    driver.ask("crowd", model="orpheus", count=16)
    driver.ask("settle")

    driver.ask("stop")
    assert not list(hosts.directory.glob("mstar-run-*")), "keepers leave nothing behind"


def test_a_worker_that_waits_for_a_host_reports_its_resources(driver):
    placed = "[place]\nlm = 'a'\nsnac = 'b'\n[workers.b]\nresources = { tape = 2 }"
    with pytest.raises(AssertionError, match=r"not up: .*`b \(waits for a host with 1 CPU, 2 tape\)`"):
        driver.ask("start", models={"orpheus": ORPHEUS}, placements={"orpheus": placed}, ready_s=4.0)

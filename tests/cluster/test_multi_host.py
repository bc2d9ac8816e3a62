"""Models over several hosts: parity with eager runs."""

from pathlib import Path

import pytest

from tests.chaos.deployment import NAMES, PLACEMENTS, REQUEST_MIX, WORKERS
from tests.integration.deployment_clients import TARGETS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
LM = f"{Path(__file__).parents[1] / 'integration' / 'language_models.py'}:Tiny"
DISAGGREGATED = """
[walks.read]
lm = "reads"
[walks.write]
lm = ["a", "b"]
[workers.reads]
host = "10.77.0.3"
[workers.a]
host = "10.77.0.2"
"""


def test_prefill_and_decode_on_different_hosts(hosts, driver):
    driver.call("prepare_lm", model="lm", target=LM, count=16)
    driver.call("start", models={"lm": LM}, placements={"lm": DISAGGREGATED})
    host_of = driver.call("hosts")
    assert (host_of["conductor"], host_of["reads"], host_of["a"]) == tuple(map(hosts.address, (1, 3, 2)))
    assert host_of["b"] != host_of["a"], "replicas are spread"
    driver.call("run_clients", model="lm", count=16)
    driver.call("wait_idle")
    assert driver.call("exits") == []
    driver.call("stop")


@pytest.mark.nightly
def test_composite_models_on_different_hosts(hosts, driver):
    """Speech, omni and image models: streams, and states that are spread, forked and moved between three hosts."""
    pins = "".join(f'\n[workers.{name}]\nhost = "{hosts.address(n)}"' for n, name in enumerate(WORKERS, 1))
    for name in NAMES:
        driver.call("prepare_example", model=name, target=TARGETS[name])
    placements = {name: text + pins for name, text in PLACEMENTS.items()}
    driver.call("start", models={name: TARGETS[name] for name in NAMES}, placements=placements)
    host_of = driver.call("hosts")
    assert [host_of[name] for name in WORKERS] == [hosts.address(n) for n in (1, 2, 3)]
    for _ in range(3):
        for name in NAMES:
            driver.call("send", model=name, count=sum(model == name for model, _ in REQUEST_MIX))
        driver.call("check")
    driver.call("wait_idle")
    assert driver.call("exits") == []
    driver.call("stop")

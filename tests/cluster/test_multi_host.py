"""Models over several hosts: what is served is what is computed eagerly, wherever it runs."""

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


def test_reading_and_writing_on_different_hosts(hosts, driver):
    driver.ask("ask_lm", model="lm", target=LM, count=16)
    driver.ask("start", models={"lm": LM}, placements={"lm": DISAGGREGATED})
    where = driver.ask("hosts")
    assert (where["conductor"], where["reads"], where["a"]) == tuple(map(hosts.address, (1, 3, 2)))
    assert where["b"] != where["a"], "replicas are apart"
    driver.ask("crowd", model="lm", count=16)
    driver.ask("settle")
    assert driver.ask("deaths") == []
    driver.ask("stop")


def test_composites_in_parts_on_different_hosts(hosts, driver):
    """Speech, omni and picture models: streams, states that are spread, forked and moved, all between three hosts."""
    pins = "".join(f'\n[workers.{name}]\nhost = "{hosts.address(n)}"' for n, name in enumerate(WORKERS, 1))
    for name in NAMES:
        driver.ask("ask_example", model=name, target=TARGETS[name])
    placements = {name: text + pins for name, text in PLACEMENTS.items()}
    driver.ask("start", models={name: TARGETS[name] for name in NAMES}, placements=placements)
    where = driver.ask("hosts")
    assert [where[name] for name in WORKERS] == [hosts.address(n) for n in (1, 2, 3)]
    for _ in range(3):
        for name in NAMES:
            driver.ask("send", model=name, count=sum(one == name for one, _ in REQUEST_MIX))
        driver.ask("judge")
    driver.ask("settle")
    assert driver.ask("deaths") == []
    driver.ask("stop")

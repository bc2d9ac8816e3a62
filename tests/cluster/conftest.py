"""Hosts for tests: three network namespaces with a Ray node each, made once. See `tests/cluster/hosts.py`."""

import pytest

from tests.cluster.hosts import Hosts, why_unsupported

COUNT = 3


@pytest.fixture(scope="session")
def hosts():
    """Three hosts at one switch. Whoever kills or cuts one revives or heals it."""
    if why := why_unsupported():
        pytest.skip(why)
    pytest.importorskip("ray")
    made = Hosts(COUNT)
    try:
        made.open()
        yield made
    finally:
        made.close()


@pytest.fixture
def driver(hosts):
    """A driver on the first host, ended after the test."""
    made = hosts.run(1)
    yield made
    made.kill()

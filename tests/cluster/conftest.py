"""Fixtures: three network namespaces with one Ray node each, created once per session."""

import pytest

from tests.cluster.hosts import Hosts, unsupported_reason

COUNT = 3


@pytest.fixture(scope="session")
def hosts():
    """Three hosts on one switch. A test that kills or disconnects a host restores it."""
    if reason := unsupported_reason():
        pytest.skip(reason)
    pytest.importorskip("ray")
    created = Hosts(COUNT)
    try:
        created.open()
        yield created
    finally:
        created.close()


@pytest.fixture
def driver(hosts):
    """A driver on the first host, killed after the test."""
    created = hosts.run(1)
    yield created
    created.kill()

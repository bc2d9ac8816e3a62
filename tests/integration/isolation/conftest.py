import pytest

from tests.integration.isolation.tenant_models import EveryEndpoint, NoRouteRecorder
from tests.integration.isolation.two_keys import KEYS, serve_two_keys


@pytest.fixture(scope="session")
def two_keys():
    """Server with the keys of `alice` and `bob`, shared by the whole test session."""
    with serve_two_keys({"every": EveryEndpoint(), "plain": NoRouteRecorder()}) as server:
        yield server


@pytest.fixture(scope="session")
def alice(two_keys):
    with two_keys.client(KEYS["alice"]) as client:
        yield client


@pytest.fixture(scope="session")
def bob(two_keys):
    with two_keys.client(KEYS["bob"]) as client:
        yield client

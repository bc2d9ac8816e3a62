import pytest

from tests.server.toy_server import run_toy_server


@pytest.fixture(scope="session")
def server():
    """A server without keys."""
    with run_toy_server() as started:
        yield started

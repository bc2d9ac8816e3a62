import pytest

from tests.server.toy_server import run_toy_server


@pytest.fixture(scope="session")
def server():
    """Toy server without API keys, shared by the whole test session."""
    with run_toy_server() as started:
        yield started

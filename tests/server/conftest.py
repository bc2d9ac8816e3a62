import pytest

from tests.server.parts import serving


@pytest.fixture(scope="session")
def server():
    """A server without keys."""
    with serving() as started:
        yield started

import pytest

from tests.server.parts import serving
from tests.server.sounding import sounding
from tests.server.toys_house import housing
from tests.server.toys_robot import Arm, Dreamer


@pytest.fixture(scope="session")
def server():
    """One that repeats what it is told."""
    with serving() as started:
        yield started


@pytest.fixture(scope="module")
def voices():
    """One that speaks and hears."""
    with sounding() as started:
        yield started


@pytest.fixture(scope="module")
def house():
    """One for robots."""
    with housing({"arm": Arm(), "dreamer": Dreamer()}) as started:
        yield started

import pytest

from tests.server.model_server import serve_models
from tests.server.toy_robot_models import Arm, ToyWorldModel
from tests.server.toy_server import run_toy_server
from tests.server.toy_speech_models import run_speech_server


@pytest.fixture(scope="session")
def server():
    """One that repeats what it is told."""
    with run_toy_server() as started:
        yield started


@pytest.fixture(scope="module")
def speech_server():
    """One that speaks and hears."""
    with run_speech_server() as started:
        yield started


@pytest.fixture(scope="module")
def robot_server():
    """One for robots."""
    with serve_models({"arm": Arm(), "dreamer": ToyWorldModel()}) as started:
        yield started

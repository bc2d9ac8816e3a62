import pytest

from tests.server.model_server import serve_models
from tests.server.toy_robot_models import Arm, ToyWorldModel
from tests.server.toy_server import run_toy_server
from tests.server.toy_speech_models import run_speech_server


@pytest.fixture(scope="session")
def server():
    """A server with a model that echoes its input."""
    with run_toy_server() as started:
        yield started


@pytest.fixture(scope="module")
def speech_server():
    """A server with speech and transcription models."""
    with run_speech_server() as started:
        yield started


@pytest.fixture(scope="module")
def robot_server():
    """A server with robot models."""
    with serve_models({"arm": Arm(), "dreamer": ToyWorldModel()}) as started:
        yield started

"""Fixtures shared by all model tests."""

import wave
from pathlib import Path

import numpy as np
import pytest

from mstar.requests import AudioInput
from tests.chaos.conftest import report
from tests.models.transcripts import one_thread

__all__ = ["peter", "report"]


@pytest.fixture(scope="module", autouse=True)
def single_thread():
    """Two threads on tiny tensors wait for each other more than they work."""
    with one_thread():
        yield


@pytest.fixture(scope="session")
def peter():
    """A recording: "Good morning. My name is Peter, and I live in London." """
    with wave.open(str(Path(__file__).parents[1] / "nn" / "peter.wav")) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), np.uint8) / np.float32(128) - 1
        return AudioInput(samples, file.getframerate())

"""Hibari on a worker with a device that ONNX Runtime does not have: it runs on the CPU, and the log says so."""

import logging

import numpy as np
import pytest

from mstar.models.hibari.tts import Hibari
from mstar.nn.pretend_gpu import pretend_gpu
from mstar.requests import SpeechRequest
from tests.models.audio_outputs import concat_audio
from tests.models.on_device import place

pytestmark = pytest.mark.slow


@pytest.mark.nightly
def test_without_a_provider_it_runs_on_the_cpu(caplog):
    request = SpeechRequest("Hm?", seed=3)
    expected = concat_audio(Hibari().run(request).emissions)
    model = place(Hibari())
    assert model.tts.device == pretend_gpu()
    with caplog.at_level(logging.INFO, "mstar.nn"):
        emitted = concat_audio(model.run(request).emissions)
    assert "Hibari runs on the CPU, because ONNX Runtime has no provider for pretend:0" in caplog.text
    assert model.tts.device is None
    np.testing.assert_array_equal(emitted, expected)

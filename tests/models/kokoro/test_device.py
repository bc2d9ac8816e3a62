"""Kokoro on a pretend GPU synthesizes the audio of the CPU; its phonemes are computed on the host."""

import numpy as np
import pytest

from mstar.models.kokoro.kokoro import Kokoro
from mstar.models.kokoro.stages import Processor
from mstar.models.kokoro.voice_mix import VoiceMix
from mstar.nn.pretend_gpu import PretendTensor
from mstar.requests import SpeechRequest
from tests.models.audio_outputs import assert_close
from tests.models.kokoro import kokoro_tiny as tiny
from tests.models.on_device import audio_on_host, place

SPEECHES = [SpeechRequest("Oh. Go on!", seed=5), SpeechRequest("No; two.", "am_adam", speed=1.5, seed=-7)]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    saved = tiny.save(tmp_path_factory.mktemp("kokoro"))
    return place(Kokoro(saved)), Kokoro(saved)


@pytest.mark.parametrize("speech", SPEECHES)
def test_each_stage_gives_what_it_gives_on_the_cpu(models, speech):
    ours, expected = models
    for phrase in expected.processor.phrases(speech, VoiceMix.parse(speech.voice or "af_heart"))[0]:
        frames, expected_frames = ours.prosody.frames(phrase), expected.prosody.frames(phrase)
        for name in ("features", "pitch", "energy"):
            np.testing.assert_allclose(getattr(frames, name), getattr(expected_frames, name), rtol=1e-4, atol=1e-4)
        audio, expected_audio = (model.vocoder.decode(expected_frames) for model in models)
        assert isinstance(audio, PretendTensor)
        assert_close(audio.cpu().numpy(), expected_audio.numpy())


def test_a_request_has_the_audio_of_the_cpu(models):
    ours, expected = (audio_on_host(model.run(SPEECHES[0])) for model in models)
    assert ours.shape == expected.shape
    assert np.abs(ours - expected).max() < 0.01 * np.abs(expected).max(), "rounding of the pitch adds up over a phrase"


def test_the_networks_are_on_the_device(models):
    ours = models[0]
    assert {type(one) for one in ours.components().values() if not one.runs_on_device} == {Processor}
    for part in (ours.prosody, ours.vocoder):
        assert all(isinstance(weight.data, PretendTensor) for weight in part.network.parameters())

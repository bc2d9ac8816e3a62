"""VITS: sound equals that of transformers with the same seed, for every speaker, speed and schedule."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from mstar.errors import LoadError
from mstar.models.vits.vits import Vits
from mstar.requests import SpeechRequest
from mstar.testing.parity import parity_all
from tests.models.transcripts import one_thread
from tests.models.vits import vits_tiny as tiny

REQUESTS = [
    SpeechRequest("hello there", seed=3),
    SpeechRequest("a", seed=4),
    SpeechRequest("It's 5 o'clock!", speed=1.6, seed=2**40),
    SpeechRequest("slowly", speed=0.5),
]


@pytest.fixture(scope="module", autouse=True)
def single():
    with one_thread():
        yield


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return tiny.save(tmp_path_factory.mktemp("vits"))


@pytest.fixture(scope="module")
def model(saved):
    return Vits(saved)


def speak(model, request):
    (audio,) = model.run(request).emissions
    assert dict(audio.clock) == {"rate": 16_000}
    return audio.value.numpy()


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda one: one.text)
def test_sound_equals_the_library(model, saved, request_):
    expected = tiny.library_sound(saved, request_.text, request_.seed, rate=request_.speed)
    np.testing.assert_allclose(speak(model, request_), expected, rtol=0, atol=1e-4)
    assert expected.std() > 0


def test_the_seed_and_the_speed_matter(model):
    first, other = (speak(model, SpeechRequest("hello there", seed=seed)) for seed in (3, 5))
    assert first.shape != other.shape or abs(first - other).max() > 1e-3
    assert len(speak(model, SpeechRequest("hello there", seed=3, speed=0.5))) > 1.5 * len(first)


def test_a_call_leaves_the_global_generator_as_it_was(model):
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    speak(model, REQUESTS[0])
    assert torch.equal(torch.rand(3), expected)


def test_served_results_equal_eager_results_under_any_schedule(model):
    parity_all(model, REQUESTS, schedules=4)


def test_speakers_are_voices(tmp_path):
    folder = tiny.save(tmp_path, speakers=3)
    model = Vits(folder)
    assert model.voices() == ("0", "1", "2")
    for voice, speaker in (("2", 2), ("", 0)):
        expected = tiny.library_sound(folder, "hello", 1, speaker=speaker)
        np.testing.assert_allclose(speak(model, SpeechRequest("hello", voice, seed=1)), expected, rtol=0, atol=1e-4)
    with pytest.raises(NotImplementedError, match=r"in the voices `0`, `1`, `2`[\s\S]*\n  fix: "):
        model.run(SpeechRequest("hello", "3"))


@pytest.mark.parametrize("options", [{"voice": "a"}, {"language": "de"}, {"instructions": "whisper"}])
def test_unsupported_requests_are_rejected(model, options):
    with pytest.raises(NotImplementedError, match=r"in one voice, without instructions\n  fix: "):
        model.run(SpeechRequest("hello", **options))


def test_a_text_that_is_too_long_is_rejected(model):
    with pytest.raises(NotImplementedError, match=r"has 2001 characters, the limit is 2000\n  fix: "):
        model.run(SpeechRequest("a" * 2001))


@pytest.mark.parametrize(("option", "what"), [("phonemize", "phonemes"), ("is_uroman", "uroman")])
def test_checkpoints_that_need_another_package_are_rejected(tmp_path, option, what):
    with pytest.raises(LoadError, match=rf"{what}[\s\S]*\n  fix: use a checkpoint that reads letters"):
        Vits(tiny.save(tmp_path, **{option: True})).synthesizer.prepare()


def test_another_sample_rate_is_rejected(tmp_path):
    file = Path(tiny.save(tmp_path)) / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"sampling_rate": 22_050}))
    with pytest.raises(LoadError, match=r"sampling_rate is 22050, expected 16000\n  fix: use a checkpoint of MMS-TTS"):
        Vits(str(tmp_path)).synthesizer.prepare()

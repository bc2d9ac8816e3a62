"""wav2vec 2.0 on a pretend GPU: the transcripts of the CPU, and one wait for the device per batch."""

import pytest
import torch

from mstar.models.wav2vec2.wav2vec2 import Wav2Vec2
from mstar.requests import TranscriptionRequest
from tests.models.on_device import is_on_device, place, traffic_of, weights_device
from tests.models.transcripts import one_thread
from tests.models.wav2vec2 import wav2vec2_tiny as tiny


@pytest.fixture(scope="module", autouse=True)
def single():
    with one_thread(), torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    saved = tiny.save(tmp_path_factory.mktemp("wav2vec2"))
    return place(Wav2Vec2(saved)), Wav2Vec2(saved)


@pytest.mark.parametrize("seconds", [0.3, 2.0])
def test_transcripts_are_those_of_the_cpu(models, seconds):
    request = TranscriptionRequest(tiny.sound(6, seconds), word_timestamps=True)
    ours, expected = (model.run(request).result for model in models)
    assert ours == expected
    assert expected.text


def test_a_batch_waits_for_the_device_once(models):
    placed, host = models
    placed.ctc.prepare()  # loading copies too
    samples = [host.processor.features(tiny.sound(seed, 1.0)) for seed in range(4)]
    results, waits, _ = traffic_of(placed.ctc, "likeliest_tokens", {"features": samples})
    assert weights_device(placed.ctc.network) == placed.ctc.device
    for (tokens,), one in zip(results, samples, strict=True):
        assert not is_on_device(tokens)
        assert torch.equal(tokens, host.ctc.likeliest_tokens(one))
    assert waits == 1

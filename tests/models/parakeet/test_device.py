"""Parakeet on a pretend GPU: the transcripts of the CPU, and one wait for the device per batch."""

import pytest
import torch

from mstar.models.parakeet.parakeet import Parakeet
from mstar.requests import TranscriptionRequest
from tests.models.on_device import is_on_device, place, traffic_of, weights_device
from tests.models.parakeet import parakeet_tiny as tiny
from tests.models.transcripts import one_thread

MAX_WAITS, MAX_COPIES = 1, 2


@pytest.fixture(scope="module", autouse=True)
def single():
    with one_thread(), torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    saved = tiny.save(tmp_path_factory.mktemp("parakeet"))
    return place(Parakeet(saved)), Parakeet(saved)


@pytest.mark.parametrize("seconds", [0.3, 2.0, 5.0])
def test_transcripts_are_those_of_the_cpu(models, seconds):
    request = TranscriptionRequest(tiny.sound(6, seconds), word_timestamps=True)
    ours, expected = (model.run(request).result for model in models)
    assert ours == expected
    assert bool(expected.text) == (seconds > 1)


def test_a_batch_waits_for_the_device_once(models):
    placed, host = models
    placed.ctc.prepare()  # loading copies too
    features = [host.processor.features(tiny.sound(seed, 1 + seed / 10)) for seed in range(4)]
    results, waits, copies = traffic_of(placed.ctc, "likeliest_tokens", {"features": features})
    assert weights_device(placed.ctc.network) == placed.ctc.device
    for (tokens,), one in zip(results, features, strict=True):
        assert not is_on_device(tokens)
        assert torch.equal(tokens, host.ctc.likeliest_tokens(one))
    assert waits <= MAX_WAITS
    assert copies <= MAX_COPIES

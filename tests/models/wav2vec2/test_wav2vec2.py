"""wav2vec 2.0 and its variants: transcripts equal those of transformers, one sound at a time, for every batch."""

import json

import numpy as np
import pytest
import soxr
import torch

from mstar.errors import LoadError
from mstar.models.wav2vec2.checkpoint import Checkpoint
from mstar.models.wav2vec2.wav2vec2 import Wav2Vec2
from mstar.nn.weights.sources import Weights
from mstar.requests import AudioInput, TranscriptionRequest
from mstar.testing.parity import parity_all
from tests.models.transcripts import one_thread
from tests.models.wav2vec2 import wav2vec2_tiny as tiny

LENGTHS_S = (0.03, 0.3, 1.2, 1.2, 2.0, 3.333)
SOUNDS = [tiny.sound(seed, seconds) for seed, seconds in enumerate(LENGTHS_S)]
REQUESTS = [TranscriptionRequest(sound, word_timestamps=bool(seed % 2)) for seed, sound in enumerate(SOUNDS)]


@pytest.fixture(scope="module", autouse=True)
def single():
    with one_thread(), torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return tiny.save(tmp_path_factory.mktemp("wav2vec2"))


@pytest.fixture(scope="module")
def model(saved):
    return Wav2Vec2(saved)


def test_texts_equal_the_library(model, saved):
    expected = [tiny.library_text(saved, sound.samples) for sound in SOUNDS]
    for request, text in zip(REQUESTS, expected, strict=True):
        outcome = model.run(request)
        assert [one.value for one in outcome.emissions] == [text]
        assert outcome.result.text == text
        assert (outcome.result.language, outcome.result.seconds) == ("en", len(request.audio.samples) / tiny.RATE)
    assert len({*expected}) >= 5
    assert max(map(len, expected)) > 30
    assert any(" " in text for text in expected)


def test_words_have_the_times_of_the_library(model, saved):
    transcript = model.run(TranscriptionRequest(SOUNDS[5], word_timestamps=True)).result
    offsets = tiny.library_output(saved, SOUNDS[5].samples).word_offsets
    assert [word.text.strip() for word in transcript.words] == [one["word"] for one in offsets]
    assert "".join(word.text for word in transcript.words) == transcript.text
    for word, one in zip(transcript.words, offsets, strict=True):
        assert (word.start, word.end) == (round(one["start_offset"] * 0.02, 2), round(one["end_offset"] * 0.02, 2))
    assert len(offsets) > 2
    assert model.run(TranscriptionRequest(SOUNDS[5])).result.words is None


def test_equally_long_sounds_share_a_batch(model):
    network, shapes = model.ctc.network, []
    handle = network.register_forward_pre_hook(
        lambda _, __, named: shapes.append(tuple(named["input_values"].shape)), with_kwargs=True
    )
    samples = [model.processor.features(SOUNDS[number]) for number in (2, 4, 3)]
    results = model.ctc.ops()["likeliest_tokens"].run(model.ctc, {"features": samples}, 3)
    handle.remove()
    assert sorted(shapes) == [(1, 32000), (2, 19200)]
    for (tokens,), one in zip(results, samples, strict=True):
        assert torch.equal(tokens, model.ctc.likeliest_tokens(one))


def test_served_results_equal_eager_results_under_any_schedule(model):
    parity_all(model, REQUESTS, schedules=5)


def test_audio_of_another_rate_is_resampled(model, saved):
    sound = tiny.sound(3, 1.5, 44_100)
    samples = soxr.resample(sound.samples, 44_100, tiny.RATE)
    assert model.run(TranscriptionRequest(sound)).result.text == tiny.library_text(saved, samples) != ""


@pytest.mark.parametrize(
    "options", [{"language": "de"}, {"prompt": "Sea"}, {"is_translation": True}, {"temperature": 0.5}]
)
def test_unsupported_requests_are_rejected(model, options):
    with pytest.raises(NotImplementedError, match=r"speech in 'en', without translation, prompt[\s\S]*\n  fix: "):
        model.run(TranscriptionRequest(SOUNDS[1], **options))


def test_audio_that_is_too_long_or_too_short_is_rejected(model):
    with pytest.raises(
        NotImplementedError, match=r"the audio has 121.0 s, the limit of this model is 120 s\n  fix: sp"
    ):
        model.run(TranscriptionRequest(AudioInput(np.zeros(121 * tiny.RATE, np.float32), tiny.RATE)))
    shortest = round(model.checkpoint.min_audio_s * tiny.RATE)
    assert shortest == 400
    assert model.run(TranscriptionRequest(AudioInput(np.ones(shortest, np.float32), tiny.RATE))).result.seconds == 0.025
    with pytest.raises(NotImplementedError, match=r"the audio has 0.0249 s, the minimum is 0.025 s\n  fix: send more"):
        model.run(TranscriptionRequest(AudioInput(np.ones(shortest - 1, np.float32), tiny.RATE)))


def test_other_folders_are_rejected(tmp_path):
    checkpoint = Checkpoint(Weights(str(tmp_path)))
    with pytest.raises(LoadError, match=r"config.json is missing\n  fix: "):
        checkpoint.network()
    for config, message in (
        ({"architectures": ["Wav2Vec2Model"]}, r"has Wav2Vec2Model, expected one of `Wav2Vec2ForCTC`"),
        ({"architectures": ["Wav2Vec2ForCTC"], "add_adapter": True}, r"add_adapter is set"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(LoadError, match=rf"{message}[\s\S]*\n  fix: "):
            Checkpoint(Weights(str(tmp_path))).network()
    with pytest.raises(LoadError, match=r"no configuration of a feature extractor\n  fix: "):
        checkpoint.feature_extractor()
    with pytest.raises(LoadError, match=r"vocab.json is missing\n  fix: "):
        checkpoint.tokenizer()
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"sampling_rate": 8000}))
    with pytest.raises(LoadError, match=r"sampling_rate of the feature extractor is 8000, expected 16000\n  fix: "):
        checkpoint.feature_extractor()

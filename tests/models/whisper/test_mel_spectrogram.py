"""The log-mel spectrogram equals that of transformers bit for bit."""

import json

import numpy as np
import pytest
import torch
import transformers as t

from mstar.errors import LoadError
from mstar.models.whisper.mel_spectrogram import MelSpectrogram

PARAMS = [{}, {"feature_size": 128}, {"chunk_length": 5, "n_fft": 512, "hop_length": 128}]


@pytest.mark.parametrize("params", PARAMS, ids=str)
@pytest.mark.parametrize("seconds", [0.0, 0.4, 3, 31], ids=str)
def test_it_equals_the_feature_extractor(params, seconds, tmp_path):
    reference = t.WhisperFeatureExtractor(**params)
    reference.save_pretrained(tmp_path)
    samples = np.random.default_rng(0).normal(size=int(seconds * 16_000)).astype(np.float32)
    spectrogram = MelSpectrogram.from_folder(tmp_path)
    assert spectrogram == MelSpectrogram(**params)
    assert spectrogram.n_samples == reference.n_samples
    for length in (spectrogram.n_samples, 8000):
        options = {"sampling_rate": 16_000, "max_length": length, "return_tensors": "pt"}
        assert torch.equal(spectrogram(samples, length), reference(samples, **options).input_features[0])


def test_a_folder_that_needs_more_is_refused(tmp_path):
    with pytest.raises(LoadError, match=r"preprocessor_config\.json is missing"):
        MelSpectrogram.from_folder(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"dither": 0.1}))
    with pytest.raises(LoadError, match=r"dither is 0\.1, not 0\.0"):
        MelSpectrogram.from_folder(tmp_path)

"""Token times of Whisper equal those of openai-whisper: its formula, with network and functions of transformers.

`harbor.ogg` was spoken by espeak-ng 1.52, whose events are the times in `harbor.json`.
"""

import difflib
import json
import re
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from transformers.models.whisper import generation_whisper as library

from mstar.models.whisper import alignment
from mstar.models.whisper.tiny_en import END_OF_TEXT, START_OF_TRANSCRIPT, TIMESTAMP_BEGIN, load_network
from mstar.models.whisper.whisper import Whisper
from mstar.requests import AudioInput, TranscriptionRequest
from mstar.testing.parity import parity
from tests.models.transcripts import detokenize_emissions, one_thread, word_error_rate

FOLDER = Path(__file__).parent
ALIGNMENT_HEADS = [(1, 0), (2, 0), (2, 5), (3, 0), (3, 1), (3, 2), (3, 3), (3, 4)]


@pytest.fixture(scope="module")
def model():
    with one_thread():
        yield Whisper()


@pytest.fixture(scope="module")
def harbor():
    samples, rate = soundfile.read(FOLDER / "harbor.ogg", dtype="float32")
    return AudioInput(samples, rate)


def test_the_path_is_the_one_of_transformers():
    rng = np.random.default_rng(0)
    for number in range(60):
        costs = rng.normal(size=rng.integers(1, [12, 40]))
        costs = costs.round() if number % 3 == 0 else costs  # ties
        rows, columns = library._dynamic_time_warping(costs)
        firsts = columns[np.pad(np.diff(rows), (1, 0), constant_values=1).astype(bool)]
        assert alignment.warp(costs) == firsts.tolist()


def reference_positions(network, mel, text, positions):
    """`find_alignment` of openai-whisper 20250625."""
    tokens = torch.tensor([[START_OF_TRANSCRIPT, TIMESTAMP_BEGIN - 1, *text, END_OF_TEXT]])
    with torch.inference_mode():
        attentions = network(mel[None], decoder_input_ids=tokens, output_attentions=True).cross_attentions
    weights = torch.stack([attentions[layer][0, head] for layer, head in ALIGNMENT_HEADS])[..., :positions]
    weights /= weights.sum(-1, keepdim=True)
    deviation, mean = torch.std_mean(weights, dim=-2, keepdim=True, unbiased=False)
    matrix = library._median_filter((weights - mean) / deviation, 7).mean(0)[1:-1]
    rows, columns = library._dynamic_time_warping(-matrix.double().numpy())
    return columns[np.pad(np.diff(rows), (1, 0), constant_values=1).astype(bool)]


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_token_times_equal_the_reference(model, peter, harbor):
    network = load_network()
    network.set_attn_implementation("eager")
    sounds = [peter, *(AudioInput(harbor.samples[at : at + 8 * harbor.rate], harbor.rate) for at in (0, 240_000))]
    texts = [[int(one.value) for one in model.run(TranscriptionRequest(sound)).emissions] for sound in sounds]
    texts = [[token for token in text if token < END_OF_TEXT] for text in texts]
    kvs = [model.asr.kv() for _ in sounds]
    mels = [model.asr.mel_spectrogram(sound) for sound in sounds]
    for mel, kv in zip(mels, kvs, strict=True):
        model.asr.write_encoder_states(model.asr.encode(mel), kv)
    for sound, text, mel, kv in zip(sounds, texts, mels, kvs, strict=True):
        tokens, before = list(torch.tensor(text)[:, None]), kv.snapshot()
        times = model.asr.token_times(tokens, torch.tensor([START_OF_TRANSCRIPT]), sound, kv)
        expected = reference_positions(network, mel, text, len(sound.samples) * 50 // sound.rate)
        assert len(text) > 10
        assert np.abs(np.array(times) - expected / 50).max() <= 0.02
        assert kv.snapshot()[:2] == before[:2]


def errors(words, truth):
    """Errors of starts and ends of the words that were recognized, in seconds."""
    names, matches = (
        [re.sub(r"[^\w']", "", text.lower()) for text in texts]
        for texts in ([text for text, _, _ in truth], [word.text for word in words])
    )
    blocks = difflib.SequenceMatcher(None, names, matches, autojunk=False).get_matching_blocks()
    pairs = [(truth[block.a + i], words[block.b + i]) for block in blocks for i in range(block.size)]
    return np.array([(word.start - start, word.end - end) for (_, start, end), word in pairs])


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_words_have_accurate_times_over_the_borders_of_chunks(model, harbor, report):
    truth = json.loads((FOLDER / "harbor.json").read_text())
    outcome = model.run(TranscriptionRequest(harbor, word_timestamps=True))
    transcript = outcome.result
    assert len(model.merger.split(harbor)[0]) > 1
    assert "".join(word.text for word in transcript.words).strip() == transcript.text
    assert detokenize_emissions(model, outcome.emissions).strip() == transcript.text
    assert word_error_rate(" ".join(text for text, _, _ in truth), transcript.text) < 0.2
    moments = [moment for word in transcript.words for moment in (word.start, word.end)]
    assert moments == sorted(moments)
    assert moments[-1] <= transcript.seconds
    matches = errors(transcript.words, truth)
    assert len(matches) > 0.8 * len(truth)
    median = float(np.median(np.abs(matches)))
    report(f"Whisper tiny.en: median error of word times {median * 1000:.0f} ms over {len(matches)} words")
    assert median <= 0.04
    without = model.run(TranscriptionRequest(harbor))
    assert without.result.words is None
    assert without.result.segments == transcript.segments


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_served_words_equal_eager_words(model, peter):
    parity(model, TranscriptionRequest(peter, word_timestamps=True), schedules=2)
    silence = AudioInput(np.zeros(16_000, np.float32), 16_000)
    outcome = model.run(TranscriptionRequest(silence, word_timestamps=True)).result
    assert "".join(word.text for word in outcome.words).strip() == outcome.text
    assert all(word.start <= word.end <= 1 for word in outcome.words)

"""Whisper, compressed: the folder is a complete checkpoint, served like any other one."""

import numpy as np
import pytest
from tokenizers import Tokenizer

from mstar.models.whisper import tokenizer
from mstar.models.whisper.byte_pairs import split
from mstar.models.whisper.tiny_en import TinyEnTokenizer
from mstar.models.whisper.tokenizer import WhisperTokenizer
from mstar.models.whisper.whisper import Whisper
from mstar.nn.weights.progress import ignore_progress
from mstar.nn.weights.sources import Weights
from mstar.requests import TranscriptionRequest
from mstar.testing.parity import parity_all
from tests.models.transcripts import one_thread
from tests.models.whisper import whisper_tiny as tiny


@pytest.fixture(autouse=True)
def single(monkeypatch):
    """One thread and few tokens: random weights hardly ever end."""
    monkeypatch.setattr(tokenizer, "MAX_TRANSCRIPT_TOKENS", 20)
    with one_thread():
        yield


@pytest.mark.slow
def test_the_tokenizer_of_the_package_is_saved(tmp_path):
    packaged = TinyEnTokenizer()
    packaged.save(tmp_path)
    saved = WhisperTokenizer(Weights(str(tmp_path)))
    assert saved.alignment_heads == packaged.alignment_heads
    for name in ("end", "start", "timestamp_begin", "languages", "begin_suppressed", "suppressed", "prompt_length"):
        assert getattr(saved.special_tokens, name) == getattr(packaged.special_tokens, name)
    encoder = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    text = " The café closes at 9:30, doesn't it?"
    tokens = encoder.encode(text).ids
    assert saved.detokenize(tokens) == packaged.detokenize(tokens) == text
    for token in range(300, 50_000, 997):
        assert saved.detokenize([token]) == packaged.detokenize([token])


def test_a_token_is_split_where_it_was_merged():
    ranks = {bytes([byte]): byte for byte in range(256)} | {b"th": 256, b"he": 257, b"the": 258, b"there": 300}
    assert split(b"the", ranks) == (b"th", b"e")


@pytest.mark.slow
def test_a_compressed_checkpoint_is_transcribed_alike_in_every_schedule(tmp_path):
    saved = Whisper(tiny.save(tmp_path / "saved"), chunk_s=2, overlap_s=0.5)
    sounds = [tiny.sound(seed) for seed in range(3)]
    saved.asr.save_compressed(sounds, 0.9, tmp_path / "compressed", ignore_progress)
    model = Whisper(str(tmp_path / "compressed"), chunk_s=2, overlap_s=0.5, speech_window_s=0.4)
    assert model.asr.load_network().config.low_rank["linears"]
    requests = [TranscriptionRequest(tiny.sound(1)), TranscriptionRequest(tiny.sound(5, 7.3), word_timestamps=True)]
    parity_all(model, requests, schedules=2)


@pytest.mark.slow
def test_transcribed_speech_leaves_the_cache_and_words_stay(monkeypatch):
    """Pages of the first one are released while the second one is transcribed."""
    from tests.models.whisper.recording import recording

    monkeypatch.undo()
    sound = recording(14)
    plain, forgetful = Whisper(), Whisper(speech_window_s=1)
    caches = []
    new_state = forgetful.asr.new_state
    forgetful.asr.new_state = lambda kind: caches.append(new_state(kind)) or caches[-1]
    outcomes = [model.run(TranscriptionRequest(sound, word_timestamps=True)).result for model in (plain, forgetful)]
    assert outcomes[0].text == outcomes[1].text
    assert max(cache.forgotten for cache in caches) > 50
    starts = [np.array([word.start for word in outcome.words]) for outcome in outcomes]
    assert np.abs(starts[0] - starts[1]).max() < 0.25

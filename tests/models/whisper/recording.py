"""Recordings of any length, spoken by Hibari from generated sentences, and their transcript by transformers.

The transcript uses the weights of Whisper tiny.en and covers the whole recording.
"""

import functools

import numpy as np
from transformers import GenerationConfig, WhisperFeatureExtractor

from mstar.cli.compress.sentences import sentences
from mstar.models.hibari.tts import SAMPLE_RATE_HZ, Hibari
from mstar.models.whisper import tiny_en
from mstar.nn.audio.resampling import resample
from mstar.requests import AudioInput, SpeechRequest


@functools.cache
def recording(seconds, seed=8):
    """Return at least this many seconds of speech. The seed selects the sentences."""
    texts, voice, sounds = sentences(seed), Hibari(), []
    while sum(map(len, sounds)) < seconds * SAMPLE_RATE_HZ:
        text = next(texts)
        emissions = voice.run(SpeechRequest(text, seed=len(sounds))).emissions
        sounds += [np.asarray(one.value) for one in emissions if type(one).__name__ == "Audio"]
        sounds.append(np.zeros(SAMPLE_RATE_HZ // 5, np.float32))
    return AudioInput(np.concatenate(sounds), SAMPLE_RATE_HZ)


def transcribe_single_pass(network, sound):
    """Transcribe a recording of any length with transformers."""
    extract = WhisperFeatureExtractor()
    samples = resample(sound.samples, sound.rate, extract.sampling_rate)
    how = {"sampling_rate": extract.sampling_rate, "truncation": False, "padding": "longest"}
    given = extract(samples, **how, return_attention_mask=True, return_tensors="pt")
    ends = dict.fromkeys(("eos_token_id", "pad_token_id"), tiny_en.END_OF_TEXT)
    network.generation_config = GenerationConfig(
        **ends,
        decoder_start_token_id=tiny_en.START_OF_TRANSCRIPT,
        no_timestamps_token_id=tiny_en.TIMESTAMP_BEGIN - 1,
        begin_suppress_tokens=[220, tiny_en.END_OF_TEXT],
        max_initial_timestamp_index=50,
        is_multilingual=False,
        max_length=448,
    )
    tokens = network.generate(
        given.input_features,
        attention_mask=given.attention_mask,
        return_timestamps=True,
        condition_on_prev_tokens=False,
    )
    return (
        tiny_en.TinyEnTokenizer()
        .detokenize([token for token in tokens[0].tolist() if token < tiny_en.END_OF_TEXT])
        .strip()
    )

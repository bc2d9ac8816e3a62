"""Recordings of any length, spoken by Hibari from generated sentences, and their transcript by transformers.

The transcript uses the weights of Whisper tiny.en and covers the whole recording.
"""

import functools
import random

import numpy as np
from transformers import GenerationConfig, WhisperFeatureExtractor

from mstar.models.hibari.tts import SAMPLE_RATE_HZ, Hibari
from mstar.models.whisper import tiny_en
from mstar.nn.audio.resampling import resample
from mstar.requests import AudioInput, SpeechRequest

SUBJECTS = """The teacher, An old sailor, My younger sister, The new doctor, Our neighbour, A tall stranger, The baker,
Every student, The mayor of the town, A quiet farmer, His grandmother, The last visitor"""
VERBS = """opened, painted, forgot, carried home, repaired, described, sold, found, measured, borrowed, cleaned, hid"""
OBJECTS = """the wooden door, a box of letters, the broken clock, seven green bottles, the map of the island,
an empty suitcase, the kitchen table, a basket of apples, the silver key, two heavy books, the garden wall,
a photograph of the lake"""
TIMES = """before the rain began, late in the evening, while the children slept, on a cold morning in March,
without saying a word, after the train had left, because nobody else wanted to, and then went home,
as if it were nothing, in less than an hour, during the long winter, with the help of a friend"""
PARTS = [[one.strip() for one in part.split(",")] for part in (SUBJECTS, VERBS, OBJECTS, TIMES)]


@functools.cache
def recording(seconds, seed=8):
    """Return at least this many seconds of speech. The seed selects the sentences."""
    chosen, voice, sounds = random.Random(seed), Hibari(), []
    while sum(map(len, sounds)) < seconds * SAMPLE_RATE_HZ:
        text = " ".join(map(chosen.choice, PARTS)) + "."
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

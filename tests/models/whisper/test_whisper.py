"""Whisper with its real weights: what was said, when, and how long recordings are cut."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from openai import BadRequestError, OpenAI

from mstar.models.hibari.tts import SAMPLE_RATE_HZ, Hibari
from mstar.models.whisper.tiny_en import TIMESTAMP_BEGIN
from mstar.models.whisper.whisper import Whisper
from mstar.requests import AudioInput, SpeechRequest, TranscriptionRequest
from mstar.testing.parity import parity
from tests.cli.test_serve import ROOT, start_server, wait_ready
from tests.models.transcripts import detokenize_emissions, one_thread, word_error_rate

STORY = (
    "The lighthouse keeper woke early that morning. A storm had passed in the night, and the harbour was full of "
    "broken boats. He made coffee, fed the cat, and climbed the stairs to clean the lamp. From the top he could see "
    "the fishermen gathering on the beach. They were counting their losses and talking quietly. Nobody had been hurt, "
    "which was the only thing that mattered. By noon the sun had come out, the children were back in school, and the "
    "baker was selling bread from a table in the street. It would take weeks to repair everything, but they had done "
    "it before, and they would do it again."
)
SAID = "Good morning. My name is Peter, and I live in London."


@pytest.fixture(scope="module")
def model():
    with one_thread():
        yield Whisper()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_is_said_and_when(model, peter):
    outcome = model.run(TranscriptionRequest(peter))
    told = outcome.result
    assert word_error_rate(SAID, told.text) == 0
    assert detokenize_emissions(model, outcome.emissions).strip() == told.text
    assert (told.language, told.seconds) == ("en", len(peter.samples) / peter.rate)
    assert told.segments[0].start == 0
    assert 3.5 < told.segments[-1].end <= told.seconds + 0.01
    low = AudioInput(peter.samples[::2], peter.rate // 2)
    assert word_error_rate(SAID, model.run(TranscriptionRequest(low)).result.text) <= 0.2
    parity(model, TranscriptionRequest(peter), schedules=2)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_long_recording_is_heard_in_pieces(model):
    spoken = np.concatenate([emission.value for emission in Hibari().run(SpeechRequest(STORY)).emissions])
    outcome = model.run(TranscriptionRequest(AudioInput(spoken, SAMPLE_RATE_HZ)))
    told = outcome.result
    assert told.seconds > 30
    assert word_error_rate(STORY, told.text) <= 0.1
    assert detokenize_emissions(model, outcome.emissions).strip() == told.text
    assert all(a.start <= a.end <= b.start <= b.end for a, b in pairwise(told.segments))
    assert told.segments[-1].end > told.seconds - 2


@pytest.mark.slow
def test_moments_make_segments(model):
    hi, there = 5303, 612
    tokens = [TIMESTAMP_BEGIN, hi, TIMESTAMP_BEGIN + 50, TIMESTAMP_BEGIN + 60, there, TIMESTAMP_BEGIN + 40, there]
    told = model.asr.segments(list(torch.tensor(tokens)[:, None]), AudioInput(np.zeros(32_000), 16_000), 10.0)
    assert [(one.start, one.end) for one in told] == [(10.0, 11.0), (11.2, 11.2), (11.2, 12.0)]
    assert [one.text for one in told] == [model.detokenize([hi]), model.detokenize([there]), model.detokenize([there])]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_clients_read_it_word_by_word():
    with start_server(ROOT / "src" / "mstar" / "models" / "whisper" / "whisper.py") as (process, url):
        wait_ready(process)
        with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            ask = {"model": "whisper", "file": ROOT / "tests" / "nn" / "peter.wav"}
            *deltas, done = client.audio.transcriptions.create(**ask, stream=True)
            assert len(deltas) > 10
            assert "".join(event.delta for event in deltas).strip() == done.text
            assert word_error_rate(SAID, done.text) == 0
            told = client.audio.transcriptions.create(**ask, response_format="srt")
            assert told.startswith("1\n00:00:00,000 --> 00:00:0")
            with pytest.raises(BadRequestError):
                client.audio.transcriptions.create(**ask, language="fr")


@pytest.mark.parametrize("wish", [{"prompt": "Peter"}, {"is_translation": True}, {"language": "fr"}])
def test_what_it_does_not_do_is_refused(wish):
    with pytest.raises(NotImplementedError, match="English speech"):
        Whisper().run(TranscriptionRequest(AudioInput(np.zeros(8, np.float32), 16_000), **wish))

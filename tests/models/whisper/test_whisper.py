"""Whisper with its published weights: text, timestamps, and long recordings."""

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
from tests.models.audio_outputs import concat_audio
from tests.models.transcripts import detokenize_emissions, one_thread, word_error_rate

STORY = (
    "The lighthouse keeper woke early that morning. A storm had passed in the night, and the harbour was full of "
    "broken boats. He made coffee, fed the cat, and climbed the stairs to clean the lamp. From the top he could see "
    "the fishermen gathering on the beach. They were counting their losses and talking quietly. Nobody had been hurt, "
    "which was the only thing that mattered. By noon the sun had come out, the children were back in school, and the "
    "baker was selling bread from a table in the street. It would take weeks to repair everything, but they had done "
    "it before, and they would do it again."
)
TEXT = "Good morning. My name is Peter, and I live in London."


@pytest.fixture(scope="module")
def model():
    with one_thread():
        yield Whisper()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_text_and_timestamps(model, peter):
    outcome = model.run(TranscriptionRequest(peter))
    transcript = outcome.result
    assert word_error_rate(TEXT, transcript.text) == 0
    assert detokenize_emissions(model, outcome.emissions).strip() == transcript.text
    assert (transcript.language, transcript.seconds) == ("en", len(peter.samples) / peter.rate)
    assert transcript.segments[0].start == 0
    assert 3.5 < transcript.segments[-1].end <= transcript.seconds + 0.01
    low = AudioInput(peter.samples[::2], peter.rate // 2)
    assert word_error_rate(TEXT, model.run(TranscriptionRequest(low)).result.text) <= 0.2
    parity(model, TranscriptionRequest(peter), schedules=2)


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_a_long_recording_is_transcribed_in_chunks(model):
    spoken = concat_audio(Hibari().run(SpeechRequest(STORY)).emissions)
    outcome = model.run(TranscriptionRequest(AudioInput(spoken, SAMPLE_RATE_HZ)))
    transcript = outcome.result
    assert transcript.seconds > 30
    assert word_error_rate(STORY, transcript.text) <= 0.1
    assert detokenize_emissions(model, outcome.emissions).strip() == transcript.text
    assert all(a.start <= a.end <= b.start <= b.end for a, b in pairwise(transcript.segments))
    assert transcript.segments[-1].end > transcript.seconds - 2


@pytest.mark.slow
def test_timestamps_make_segments(model):
    hi, there = 5303, 612
    tokens = [TIMESTAMP_BEGIN, hi, TIMESTAMP_BEGIN + 50, TIMESTAMP_BEGIN + 60, there, TIMESTAMP_BEGIN + 40, there]
    transcript = model.asr.segments(list(torch.tensor(tokens)[:, None]), AudioInput(np.zeros(32_000), 16_000), 10.0)
    assert [(one.start, one.end) for one in transcript] == [(10.0, 11.0), (11.2, 11.2), (11.2, 12.0)]
    assert [one.text for one in transcript] == [
        model.detokenize([hi]),
        model.detokenize([there]),
        model.detokenize([there]),
    ]


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_transcripts_are_streamed():
    with start_server(ROOT / "src" / "mstar" / "models" / "whisper" / "whisper.py") as (process, url):
        wait_ready(process)
        with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            request = {"model": "whisper", "file": ROOT / "tests" / "nn" / "peter.wav"}
            *deltas, done = client.audio.transcriptions.create(**request, stream=True)
            assert len(deltas) > 10
            assert "".join(event.delta for event in deltas).strip() == done.text
            assert word_error_rate(TEXT, done.text) == 0
            transcript = client.audio.transcriptions.create(**request, response_format="srt")
            assert transcript.startswith("1\n00:00:00,000 --> 00:00:0")
            with pytest.raises(BadRequestError):
                client.audio.transcriptions.create(**request, language="fr")


@pytest.mark.parametrize("options", [{"prompt": "Peter"}, {"is_translation": True}, {"language": "fr"}])
def test_unsupported_requests_are_rejected(options):
    with pytest.raises(NotImplementedError, match="English speech"):
        Whisper().run(TranscriptionRequest(AudioInput(np.zeros(8, np.float32), 16_000), **options))

"""Assistant with its published weights: a spoken question gets the right answer, in text and speech."""

import base64
import io
import time
import wave
from pathlib import Path

import numpy as np
import pytest
from openai import OpenAI

from mstar.models.assistant.assistant import Assistant
from mstar.models.hibari.tts import SAMPLE_RATE_HZ
from mstar.requests import AudioInput, ChatRequest, Message, Sampling, SpeechRequest, TranscriptionRequest
from mstar.testing.parity import parity
from tests.cli.test_serve import start_server, wait_ready
from tests.models.transcripts import detokenize_emissions, one_thread, word_error_rate

FILE = Path(__file__).parents[3] / "src" / "mstar" / "models" / "assistant" / "assistant.py"
QUESTION = "What is the capital of France?"
SEA = "Write two sentences about the sea."


def kinds(outcome):
    return [type(emission).__name__ for emission in outcome.emissions]


def sound_of(outcome):
    return AudioInput(
        np.concatenate([one.value for one in outcome.emissions if type(one).__name__ == "Audio"]), SAMPLE_RATE_HZ
    )


@pytest.fixture(scope="module")
def model():
    with one_thread():
        yield Assistant()


@pytest.fixture(scope="module")
def question(model):
    """The question, spoken between two silences."""
    hush = np.zeros(SAMPLE_RATE_HZ // 2, np.float32)
    return AudioInput(
        np.concatenate([hush, sound_of(model.run(SpeechRequest(QUESTION))).samples, hush]), SAMPLE_RATE_HZ
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_spoken_question_is_answered_in_speech(model, question):
    chat = ChatRequest((Message("user", (question,)),), Sampling(max_tokens=48), audio_output=True)
    outcome = model.run(chat)
    assert detokenize_emissions(model, outcome.emissions) == "The capital of France is Paris."
    assert outcome.result.finish_reason == "stop"
    transcript = model.run(TranscriptionRequest(sound_of(outcome))).result.text
    assert word_error_rate("The capital of France is Paris.", transcript) <= 0.2
    assert "Paris" in transcript
    silence = ChatRequest(
        (Message("user", (AudioInput(np.zeros(SAMPLE_RATE_HZ, np.float32), SAMPLE_RATE_HZ),)),), Sampling(max_tokens=1)
    )
    assert kinds(model.run(silence)) == ["Text"]  # no question and no audio output: text only


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_each_sentence_is_spoken_under_any_schedule(model):
    chat = ChatRequest((Message("user", (SEA,)),), Sampling(max_tokens=20), audio_output=True)
    outcome = model.run(chat)
    assert (kinds(outcome).count("Text"), kinds(outcome).count("Audio")) == (20, 2)
    assert outcome.result.finish_reason == "length"
    parity(model, chat, schedules=2)


def test_an_unknown_voice_is_rejected_before_transcription():
    with pytest.raises(NotImplementedError, match="in the voice `heart`"):
        Assistant().run(
            ChatRequest(
                (Message("user", (AudioInput(np.zeros(9), SAMPLE_RATE_HZ),)),), audio_output=True, voice="alloy"
            )
        )


def wav(sound):
    file = io.BytesIO()
    with wave.open(file, "wb") as opened:
        opened.setparams((1, 2, sound.rate, 0, "NONE", ""))
        opened.writeframes((sound.samples * 32767).astype("<i2").tobytes())
    return file.getvalue()


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_speech_starts_before_the_text_is_complete(question, report):
    with start_server(FILE) as (process, url):
        wait_ready(process)
        with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            audio_part = {"data": base64.b64encode(wav(question)).decode(), "format": "wav"}
            for content in ([{"type": "input_audio", "input_audio": audio_part}], SEA):
                begun, words, voices = time.monotonic(), [], []
                for chunk in client.chat.completions.create(
                    model="assistant",
                    messages=[{"role": "user", "content": content}],
                    modalities=["text", "audio"],
                    audio={"voice": "heart", "format": "pcm16"},
                    max_completion_tokens=48,
                    temperature=0,
                    stream=True,
                ):
                    delta = chunk.choices[0].delta.model_dump().get("audio") or {}
                    words += [(time.monotonic() - begun, delta["transcript"])] if delta.get("transcript") else []
                    voices += [time.monotonic() - begun] if delta.get("data") else []
                text = "".join(word for _, word in words)
                report(f"assistant: first word after {words[0][0]:.2f} s, first sound after {voices[0]:.2f} s: {text}")
                if content != SEA:
                    assert "Paris" in text
            assert voices[0] < words[-1][0]
            transcript = client.audio.transcriptions.create(model="assistant", file=("q.wav", wav(question)))
            assert word_error_rate(QUESTION, transcript.text) <= 0.2
            spoken = client.audio.speech.create(model="assistant", input="Hello.", voice="heart", response_format="wav")
            assert spoken.read()[:4] == b"RIFF"

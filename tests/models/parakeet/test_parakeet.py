"""Parakeet CTC: transcripts equal those of transformers, one request at a time, for every batch and placement."""

import io
import json
import os
import shutil
import wave
from pathlib import Path

import httpx2
import numpy as np
import pytest
import soxr
import torch
from openai import BadRequestError, OpenAI

from mstar.cli.main import main
from mstar.cli.prove.proof import Proof
from mstar.cli.prove.subject import Subject
from mstar.errors import LoadError
from mstar.models.parakeet import ctc_network, parakeet
from mstar.models.parakeet.checkpoint import Checkpoint
from mstar.models.parakeet.ctc_network import group_rows
from mstar.models.parakeet.parakeet import Parakeet
from mstar.models.parakeet.processor import find_runs
from mstar.nn.weights.sources import Weights
from mstar.requests import AudioInput, Segment, TranscriptionRequest
from mstar.testing.parity import parity_all
from tests.cli.test_serve import start_server, wait_ready
from tests.models.concurrent_clients import emitted_values, in_process, run_clients
from tests.models.parakeet import parakeet_tiny as tiny
from tests.models.transcripts import one_thread

LENGTHS_S = (0.02, 0.3, 0.705, 1.2, 2.0, 3.333, 5.0, 8.0)
SOUNDS = [tiny.sound(seed, seconds) for seed, seconds in enumerate(LENGTHS_S)]
REQUESTS = [TranscriptionRequest(sound, word_timestamps=bool(seed % 2)) for seed, sound in enumerate(SOUNDS)]
LOCAL_STAGES = ["walks", "repeats", "reference", "schedules", "batches", "states"]


@pytest.fixture(scope="module", autouse=True)
def single():
    with one_thread(), torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return tiny.save(tmp_path_factory.mktemp("parakeet"))


@pytest.fixture(scope="module")
def model(saved):
    return Parakeet(saved)


@pytest.fixture(scope="module")
def expected(saved):
    """Texts of the library."""
    return [tiny.library_text(saved, sound.samples) for sound in SOUNDS]


# ---------------------------------------------------------------- equal to the library
def test_the_texts_of_the_tests_differ(expected):
    texts = [text for text in expected if text]
    assert len({*texts}) == len(texts) >= 5
    assert max(map(len, texts)) > 40
    assert any(" " in text for text in texts)


def test_texts_equal_the_library(model, expected):
    for request, text in zip(REQUESTS, expected, strict=True):
        outcome = model.run(request)
        assert [one.value for one in outcome.emissions] == [text]
        assert outcome.result.text == text
        assert (outcome.result.language, outcome.result.seconds) == ("en", len(request.audio.samples) / tiny.RATE)


def test_features_equal_those_of_the_library(model, saved):
    for sound in SOUNDS:
        actual, inputs = model.processor.features(sound), tiny.library_features(saved, sound.samples)
        assert torch.equal(actual, inputs.input_features[inputs.attention_mask])


def test_requests_of_different_length_in_a_batch_equal_the_library(model, saved, monkeypatch):
    monkeypatch.setattr(ctc_network, "_MAX_LENGTH_RATIO", 1000)  # all of them share one batch
    features = [model.processor.features(sound) for sound in SOUNDS]
    batch = [features[number] for number in (6, 1, 7, 0, 4, 2, 5, 3)]
    together = model.ctc.ops()["likeliest_tokens"].run(model.ctc, {"features": batch}, len(batch))
    for number, (actual,) in zip((6, 1, 7, 0, 4, 2, 5, 3), together, strict=True):
        assert torch.equal(actual, model.ctc.likeliest_tokens(features[number]))
        tokens = tiny.library_tokens(saved, SOUNDS[number].samples)[0]
        assert actual.tolist() == tokens[: len(actual)].tolist()
        assert {*tokens[len(actual) :].tolist()} <= {tiny.BLANK}


def test_padded_rows_have_the_logits_of_a_row_alone(model):
    network, parts = model.ctc.network, [model.processor.features(SOUNDS[number]) for number in (2, 7)]
    padded = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)
    mask = torch.arange(padded.shape[1]) < torch.tensor([[len(part)] for part in parts])
    alone = network(input_features=parts[0][None]).logits[0]
    torch.testing.assert_close(network(padded, mask).logits[0, : len(alone)], alone, rtol=0, atol=1e-4)
    assert torch.equal(model.ctc._run(parts)[0], alone.argmax(-1))


def test_audio_of_another_rate_is_resampled(model, saved):
    sound = tiny.sound(3, 1.5, 44_100)
    samples = soxr.resample(sound.samples, 44_100, tiny.RATE)
    assert model.run(TranscriptionRequest(sound)).result.text == tiny.library_text(saved, samples) != ""


def test_files_of_transformers_4_are_read(saved, tmp_path, expected):
    folder = Path(shutil.copytree(saved, tmp_path / "older"))
    tiny.split_processor_config(folder)
    assert Parakeet(str(folder)).run(REQUESTS[4]).result.text == expected[4]


# ---------------------------------------------------------------- batches
def test_rows_of_similar_length_share_a_batch(monkeypatch):
    assert group_rows([100, 30, 60, 200, 59]) == [[1, 4, 2], [0, 3]]
    assert group_rows([7]) == [[0]]
    monkeypatch.setattr(ctc_network, "_MAX_SQUARED_FRAMES", 20_000)
    assert group_rows([100, 100, 100]) == [[0, 1], [2]]
    assert group_rows([5000, 5000]) == [[0], [1]], "one that is alone is not refused"


def test_served_results_equal_eager_results_under_any_schedule(model):
    parity_all(model, REQUESTS, schedules=5)


def test_concurrent_requests_equal_single_requests(model, expected):
    with in_process("parakeet", model) as deployment:
        for number, client in enumerate(run_clients(deployment, "parakeet", REQUESTS * 2, disconnects=0)):
            assert emitted_values(client, "Text") == [expected[number % len(expected)]]


# ---------------------------------------------------------------- words
def test_equal_neighbors_are_merged_and_blanks_dropped():
    assert list(find_runs([9, 1, 1, 9, 1, 2, 2, 9], blank=9)) == [(1, 1, 3), (1, 4, 5), (2, 5, 7)]
    assert list(find_runs([9, 9], blank=9)) == []


def test_words_join_to_the_text_and_have_the_times_of_their_frames(model):
    pieces = {piece: number for number, piece in enumerate(tiny.PIECES)}
    names = ["", "\u2581the", "\u2581the", "", "\u2581sea", "s", "", "s", "?", "\u2581", "b", ""]
    tokens = torch.tensor([pieces[name] if name else tiny.BLANK for name in names])
    sound = AudioInput(np.zeros(int(0.85 * tiny.RATE), np.float32), tiny.RATE)
    text, transcript = model.processor.transcript(tokens, sound, True)
    assert text == "the seass? b"
    assert transcript.words == (
        Segment(0.08, 0.24, "the"),
        Segment(0.32, 0.72, " seass?"),
        Segment(0.72, 0.85, " b"),  # an output frame is longer than the rest of the audio
    )
    assert transcript.segments == (Segment(0.0, 0.85, text),)


def test_words_are_returned_if_requested(model):
    for request in REQUESTS:
        transcript = model.run(request).result
        assert (transcript.words is not None) == request.word_timestamps
        if transcript.words:
            assert "".join(word.text for word in transcript.words) == transcript.text
            times = [time for word in transcript.words for time in (word.start, word.end)]
            assert times == sorted(times)
            assert times[-1] <= transcript.seconds


# ---------------------------------------------------------------- what is rejected
@pytest.mark.parametrize(
    "options", [{"language": "de"}, {"prompt": "Sea"}, {"is_translation": True}, {"temperature": 0.5}]
)
def test_unsupported_requests_are_rejected(model, options):
    with pytest.raises(NotImplementedError, match=r"speech in 'en', without translation, prompt[\s\S]*\n  fix: "):
        model.run(TranscriptionRequest(SOUNDS[1], **options))


def test_the_language_of_a_checkpoint_can_be_set(saved):
    vietnamese = Parakeet(saved, language="vi")
    assert vietnamese.run(TranscriptionRequest(SOUNDS[1], language="vi-VN")).result.language == "vi"
    with pytest.raises(NotImplementedError, match="speech in 'vi'"):
        vietnamese.run(TranscriptionRequest(SOUNDS[1], language="en"))


def test_audio_is_as_long_as_the_checkpoint_allows(model):
    with pytest.raises(NotImplementedError, match=r"the audio has 8.1 s, the limit of this model is 8 s\n  fix: sp"):
        model.run(TranscriptionRequest(tiny.sound(1, 8.1)))
    with pytest.raises(NotImplementedError, match=r"the audio has 0.0190 s, the minimum is 0.02 s\n  fix: send more"):
        model.run(TranscriptionRequest(tiny.sound(1, 0.019)))


def test_silence_has_no_text(model):
    (request,) = model.warmup_requests()
    assert np.isfinite(model.processor.features(request.audio).numpy()).all()
    assert model.run(request).result.seconds == 1


def test_other_folders_are_rejected(saved, tmp_path):
    checkpoint = Checkpoint(Weights(str(tmp_path)))
    with pytest.raises(LoadError, match=r"config.json is missing\n  fix: "):
        checkpoint.network()
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["ParakeetForTDT"]}))
    with pytest.raises(LoadError, match=r"has ParakeetForTDT, expected ParakeetForCTC\n  fix: use a CTC checkpoint"):
        checkpoint.network()
    with pytest.raises(LoadError, match=r"no configuration of a feature extractor\n  fix: "):
        checkpoint.feature_extractor()
    extractor = json.loads((Path(saved) / "processor_config.json").read_text())["feature_extractor"]
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(extractor | {"hop_length": 80}))
    with pytest.raises(LoadError, match=r"are \(16000, 80\), expected \(16000, 160\)\n  fix: "):
        checkpoint.feature_extractor()


# ---------------------------------------------------------------- proven and served
FILE = """
from mstar.models.parakeet.parakeet import Parakeet
from mstar.requests import TranscriptionRequest
from tests.models.parakeet import parakeet_tiny as tiny


class Tiny(Parakeet):
    def __init__(self):
        super().__init__({weights!r})


def requests():
    lengths = (2, 0.7, 5, 8, 0.02, 3.3)
    return [TranscriptionRequest(tiny.sound(n, s), word_timestamps=n % 2 == 0) for n, s in enumerate(lengths)]


def reference(request):
    return [tiny.library_text({weights!r}, request.audio.samples)]
"""


@pytest.fixture
def file(saved, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]), prepend=os.pathsep)  # workers import tests
    path = tmp_path / "parakeet_here.py"
    path.write_text(FILE.format(weights=saved))
    return path


def test_all_stages_of_a_proof_in_this_process_pass(file):
    stages = Proof(Subject(str(file)), schedules=2).run()
    results = [next(stages) for _ in LOCAL_STAGES]
    assert [(result.name, result.state) for result in results] == [(name, "ok") for name in LOCAL_STAGES]
    assert "6 values equal" in results[2].detail


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_it_is_proven(file, capsys):
    assert main(["prove", str(file), "--schedules", "3", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["proven"]
    assert len(report["stages"]) == len(LOCAL_STAGES) + 4


def wav(samples):
    """A file of 16-bit samples, and what a decoder reads from it."""
    pcm, file = np.round(samples * 32767).astype("<i2"), io.BytesIO()
    with wave.open(file, "wb") as written:
        written.setparams((1, 2, tiny.RATE, 0, "NONE", ""))
        written.writeframes(pcm.tobytes())
    return ("a.wav", file.getvalue()), (pcm / np.float32(32768)).astype(np.float32)


@pytest.mark.nightly
@pytest.mark.timeout(120)
def test_a_folder_is_served_over_http(saved):
    upload, samples = wav(SOUNDS[6].samples)
    text = tiny.library_text(saved, samples)
    assert len(text) > 40
    with start_server(f"{parakeet.__file__}:Parakeet@{saved}", "--name", "asr") as (process, url):
        wait_ready(process)
        client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)
        audio = client.audio
        assert audio.transcriptions.create(model="asr", file=upload).text == text
        words = audio.transcriptions.create(
            model="asr", file=upload, response_format="verbose_json", timestamp_granularities=["word"]
        )
        assert words.duration == len(samples) / tiny.RATE
        assert words.text == text
        assert [word.word for word in words.words] == [bare for word in text.split() if (bare := word.strip("'?."))]
        events = list(audio.transcriptions.create(model="asr", file=upload, stream=True))
        assert [event.type for event in events] == ["transcript.text.delta", "transcript.text.done"]
        assert events[-1].text == text
        refused = httpx2.post(f"{url}/v1/audio/translations", data={"model": "asr"}, files={"file": upload})
        assert refused.status_code == 400
        assert "without translation, prompt and temperature" in refused.json()["error"]["message"]
        long, _ = wav(tiny.sound(1, 8.1).samples)
        with pytest.raises(BadRequestError, match=r"the audio has 8\.1 s, the limit of this model is 8 s"):
            audio.transcriptions.create(model="asr", file=long)

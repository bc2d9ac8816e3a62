"""Whisper on a pretend GPU writes the tokens, and detects the languages, that it does on the CPU."""

import pytest
import torch

from mstar.models.whisper import tokenizer
from mstar.models.whisper.tiny_en import WhisperTinyEn
from mstar.models.whisper.whisper import Whisper
from mstar.models.whisper.whisper_asr import WhisperAsr
from mstar.requests import Sampling, TranscriptionRequest
from mstar.walk.states import KV
from tests.models.on_device import place, traffic_of
from tests.models.transcripts import one_thread
from tests.models.whisper import whisper_tiny as tiny

MOST = 12
REQUESTS = [
    TranscriptionRequest(tiny.sound(1)),
    TranscriptionRequest(tiny.sound(2, 1.2), language="fr", is_translation=True),
    TranscriptionRequest(tiny.sound(5, 5.3)),
    TranscriptionRequest(tiny.sound(3), temperature=0.7),
    TranscriptionRequest(tiny.sound(1), word_timestamps=True),
    TranscriptionRequest(tiny.sound(5, 5.3), word_timestamps=True),
]
MAX_WAITS, MAX_COPIES = 2, 3


@pytest.fixture(scope="module", autouse=True)
def single():
    """One thread and few tokens: random weights hardly ever end."""
    with one_thread(), torch.inference_mode(), pytest.MonkeyPatch.context() as patched:
        patched.setattr(tokenizer, "MAX_TRANSCRIPT_TOKENS", MOST)
        yield


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    saved = tiny.save(tmp_path_factory.mktemp("whisper"))
    made = [put(Whisper(saved, chunk_s=2, overlap_s=0.5, pages=512)) for put in (place, lambda one: one)]
    for model in made:
        model.asr.prepare_once()
    assert type(made[0].asr) is WhisperAsr
    assert made[0].asr.decoder.device == made[0].asr.device
    return made


@pytest.mark.parametrize("request_number", range(len(REQUESTS)))
def test_transcripts_are_those_of_the_cpu(models, request_number):
    ours, expected = (model.run(REQUESTS[request_number]) for model in models)
    assert [int(one.value) for one in ours.emissions] == [int(one.value) for one in expected.emissions]
    assert ours.result == expected.result
    assert expected.result.text
    assert bool(expected.result.words) == REQUESTS[request_number].word_timestamps


def steps(asr, rows, sampling):
    """Tokens of several requests in a batch, and the traffic of the last step."""
    kvs, samplings, waits, copies = [asr.make_state(KV) for _ in range(rows)], [sampling] * rows, 0, 0
    spectra = [asr.mel_spectrogram(tiny.sound(row)) for row in range(rows)]
    states = [state for (state,) in asr.ops()["encode"].run(asr, {"features": spectra}, rows)]
    asr.ops()["write_encoder_states"].run(asr, {"states": states, "kv": kvs}, rows)
    languages = [asr.language_token("", kv) for kv in kvs]
    tokens, written = [asr.task_tokens(language, False) for language in languages], []
    for _ in range(6):
        columns = {"tokens": tokens, "kv": kvs, "sampling": samplings}
        results, waits, copies = traffic_of(asr, "next_transcript_token", columns)
        tokens = [token for (token,) in results]
        written.append(torch.cat(tokens))
    return torch.stack(written), waits, copies


@pytest.mark.parametrize("sampling", [Sampling(MOST), Sampling(MOST, temperature=0.7, seed=3)], ids=["greedy", "drawn"])
def test_a_step_seldom_waits_for_the_device(models, sampling):
    (tokens, waits, copies), (expected, *_) = (steps(model.asr, 3, sampling) for model in models)
    assert torch.equal(tokens, expected)
    assert waits <= MAX_WAITS
    assert copies <= MAX_COPIES


@pytest.mark.parametrize("swap_bytes", [1 << 30, 0], ids=["swapped", "recomputed"])
def test_evicted_caches_are_restored(models, swap_bytes, monkeypatch):
    tokens = []
    for model in models:
        asr = model.asr
        monkeypatch.setattr(asr.decoder.store, "swap_bytes", swap_bytes)
        kv = asr.make_state(KV)
        asr.write_encoder_states(asr.encode(asr.mel_spectrogram(tiny.sound(1))), kv)
        token = asr.next_transcript_token(asr.task_tokens(asr.language_token("en", kv), False), kv, Sampling(MOST))
        kv.evict()
        asr.restore([kv])
        tokens.append(int(asr.next_transcript_token(token, kv, Sampling(MOST))))
    assert tokens[0] == tokens[1]


def test_the_english_checkpoint_is_on_the_device():
    assert WhisperTinyEn.runs_on_device

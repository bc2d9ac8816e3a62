"""Dia: codes and audio equal those of transformers, for every placement."""

import io
import json
import os
import wave
from dataclasses import replace
from pathlib import Path

import httpx2
import numpy as np
import pytest
import torch

from mstar.cli.main import main
from mstar.errors import LoadError, NeverFits
from mstar.models.dia.checkpoint import DEFAULT_SAMPLING, DELAYS, MAX_DELAY, Checkpoint
from mstar.models.dia.dac import SAMPLE_RATE_HZ
from mstar.models.dia.dia import WINDOW_FRAMES, Dia
from mstar.models.dia.frame_rules import guide
from mstar.nn.audio.codec import CodecStreamState
from mstar.nn.kv.page_pool import PagePool
from mstar.nn.weights.sources import Weights
from mstar.requests import Finish, Sampling, SpeechRequest
from mstar.testing import parity_all
from mstar.walk.states import KV
from tests.cli.test_serve import start_server, wait_ready
from tests.models.audio_outputs import assert_close, concat_audio, emitted_audio
from tests.models.concurrent_clients import in_process
from tests.models.dia import dia_tiny as tiny
from tests.models.transcripts import one_thread

FRAMES = 24
TEXT = "[S1] Hello there. [S2] Hi."
LONG = "[S1] Where does the red cat run, and why so slowly? [S2] Über die Brücke! (laughs)"
SPEECHES = [SpeechRequest(TEXT, seed=3), SpeechRequest("Oh.", seed=-4), SpeechRequest(LONG, language="en", seed=2**63)]


@pytest.fixture(scope="module", autouse=True)
def single():
    with one_thread(), torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return tiny.save(tmp_path_factory.mktemp("dia"), FRAMES)


@pytest.fixture(scope="module")
def library(saved):
    return tiny.Library(saved)


@pytest.fixture(scope="module")
def model(saved):
    return Dia(saved)


@pytest.fixture(scope="module")
def eager(model):
    return [concat_audio(model.run(speech).emissions) for speech in SPEECHES]


class Speech:
    """The decoder's side of a request, step by step."""

    def __init__(self, model, text, sampling):
        decoder, encoder = model.decoder, model.text_encoder
        self.decoder, self.sampling, self.step = decoder, sampling, 0
        self.caches = [decoder.make_state(KV), decoder.make_state(KV)]
        states = [encoder.text(tokens) for tokens in encoder.tokens(text)]
        self.frame, self.ended, self.steps = decoder.read_text(*states, *self.caches, sampling)
        self.frames, self.is_over = [self.frame], False

    def columns(self):
        kv, no_text_kv = self.caches
        return {"frame": self.frame, "ended": self.ended, "step": self.step, "kv": kv, "no_text_kv": no_text_kv,
                "sampling": self.sampling}  # fmt: skip

    def advance(self, result):
        self.frame, self.ended, is_over = result
        self.frames.append(self.frame)
        self.step, self.is_over = self.step + 1, bool(is_over)


def write(model, *speeches):
    """Delayed codes of these speeches, which share batches as long as they last."""
    op = model.decoder.ops()["next_frame"]
    while running := [speech for speech in speeches if not speech.is_over]:
        rows = [speech.columns() for speech in running]
        results = op.run(model.decoder, {name: [row[name] for row in rows] for name in rows[0]}, len(rows))
        for speech, result in zip(running, results, strict=True):
            speech.advance(result)
    return [torch.stack(speech.frames) for speech in speeches]


# ---------------------------------------------------------------- equal to the library
@pytest.mark.parametrize("text", [TEXT, LONG, "Oh."])
def test_greedy_codes_and_audio_equal_the_library(model, library, monkeypatch, text):
    codes = library.write(text, FRAMES, do_sample=False)
    greedy = replace(model.decoder.checkpoint.sampling, temperature=0.0)
    assert torch.equal(*write(model, Speech(model, text, greedy)), codes)
    monkeypatch.setattr(model, "sampling", greedy)
    assert_close(concat_audio(model.run(SpeechRequest(text)).emissions), library.decode(codes).numpy())


@pytest.mark.parametrize("seed", [0, 7])
def test_drawn_codes_equal_the_library_with_the_same_random_numbers(model, library, seed):
    codes = library.write(LONG, FRAMES, seed)
    sampling = replace(model.decoder.checkpoint.sampling, seed=seed)
    assert torch.equal(*write(model, Speech(model, LONG, sampling)), codes)


@pytest.mark.parametrize("scale", [None, 1.5])
def test_other_guidance_equals_the_library(model, library, monkeypatch, scale):
    monkeypatch.setattr(model.decoder, "_guidance_scale", scale or 1.0)
    codes = library.write(TEXT, FRAMES, do_sample=False, guidance_scale=scale)
    assert torch.equal(*write(model, Speech(model, TEXT, Sampling(FRAMES, top_k=10))), codes)


def test_a_speech_ends_where_the_library_ends_it(model, library):
    """Each text has its own end, and the speeches share batches."""
    most, texts = 40, [TEXT, LONG, "[S1] one", "[S1] two", "[S1] three"]
    greedy = Sampling(most, top_k=10)
    codes = write(model, *(Speech(model, text, greedy) for text in texts))
    for text, own in zip(texts, codes, strict=True):
        assert torch.equal(own, library.write(text, most, do_sample=False))
    lengths = {len(own) for own in codes}
    assert len(lengths) > 2
    assert min(lengths) < most


def test_the_text_is_tokenized_as_the_library_does(model, library):
    for text in (TEXT, LONG, " [S1][S2]\n[S3] ", "日本 [S2]"):
        tokens, no_text = model.text_encoder.tokens(text)
        assert tokens.tolist() == library.processor.tokenizer(text)["input_ids"]
        assert no_text.tolist() == [0]


def test_guidance_can_differ_within_a_batch():
    scores, unguided = torch.randn(2, 3, 2, 9, generator=torch.Generator().manual_seed(0)).unbind()
    together = guide(scores, unguided, 2.0, [0, 4, 9])
    for row, top_k in enumerate((0, 4, 9)):
        assert torch.equal(together[row], guide(scores[row : row + 1], unguided[row : row + 1], 2.0, [top_k])[0])
    assert together.isfinite().sum((1, 2)).tolist() == [18, 8, 18]


# ---------------------------------------------------------------- as it is served
def test_served_results_equal_eager_results_under_any_schedule(model):
    parity_all(model, SPEECHES, schedules=3)


def test_concurrent_requests_equal_single_requests(model, eager):
    with in_process("dia", model) as deployment:
        for number, actual in enumerate(emitted_audio(deployment, "dia", SPEECHES * 2, disconnects=3)):
            assert_close(actual, eager[number % 3])


def test_the_seed_determines_the_speech(model, eager):
    np.testing.assert_array_equal(concat_audio(model.run(SPEECHES[0]).emissions), eager[0])
    assert not np.array_equal(concat_audio(model.run(replace(SPEECHES[0], seed=4)).emissions), eager[0])


def test_audio_starts_before_the_speech_ends(model, monkeypatch):
    monkeypatch.setattr(model, "sampling", replace(model.decoder.checkpoint.sampling, max_tokens=3 * WINDOW_FRAMES))
    sizes = [len(one.value) / tiny.HOP for one in model.run(SPEECHES[0]).emissions]
    assert 0 < sizes[0] < WINDOW_FRAMES
    assert WINDOW_FRAMES in sizes


@pytest.mark.parametrize("frames", [0, 1, 5, WINDOW_FRAMES, WINDOW_FRAMES + 1, 2 * WINDOW_FRAMES])
def test_speech_of_any_length_is_decoded(model, library, frames):
    """A window can have the end alone, or nothing but the end."""
    length = 1 + frames + 1 + MAX_DELAY
    written = torch.randint(tiny.CODES, (length, len(DELAYS)), generator=torch.Generator().manual_seed(frames))
    for channel, delay in enumerate(DELAYS):
        written[: delay + 1, channel] = tiny.START
        written[1 + frames + delay, channel] = tiny.END
        written[2 + frames + delay :, channel] = tiny.PAD
    state, first = model.codec.make_state(CodecStreamState), 1 + MAX_DELAY + WINDOW_FRAMES
    windows = [
        written[max(1, end - WINDOW_FRAMES - MAX_DELAY) : end]
        for end in range(first, length + WINDOW_FRAMES, WINDOW_FRAMES)
    ]
    parts = [model.codec.decode_delayed(window, state) for window in windows]
    audio = torch.cat(parts).numpy()
    if frames:
        assert_close(audio, library.decode(written).numpy())
    else:
        assert len(audio) == 0


FILE = """
from mstar.models.dia.dia import Dia
from tests.models.dia import dia_tiny as tiny
from tests.models.dia.test_dia import FRAMES, SPEECHES


class Tiny(Dia):
    def __init__(self):
        super().__init__({folder!r})


def requests():
    return SPEECHES


def reference(request):
    return tiny.Library({folder!r}).emissions(request.text, FRAMES, request.seed)
"""


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_it_is_proven(saved, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]), prepend=os.pathsep)  # workers import tests
    file = tmp_path / "dia_here.py"
    file.write_text(FILE.format(folder=saved))
    assert main(["prove", str(file), "--schedules", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["proven"]


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_a_folder_is_served_as_the_library_speaks(saved, library):
    body = {"model": "dia", "input": TEXT, "seed": 3, "response_format": "wav"}
    with start_server(saved, "--name", "dia", "--in-process") as (process, url):
        wait_ready(process)
        response = httpx2.post(f"{url}/v1/audio/speech", json=body, timeout=60).raise_for_status()
        rejected = httpx2.post(f"{url}/v1/audio/speech", json=body | {"voice": "emma"}, timeout=60)
    with wave.open(io.BytesIO(response.content)) as sound:  # the header of a stream does not know its length
        rate, samples = sound.getframerate(), np.frombuffer(sound.readframes(10**7), "<i2") / 32767
    expected = library.decode(library.write(TEXT, FRAMES, 3)).numpy()
    assert len(samples) / rate == pytest.approx(len(expected) / SAMPLE_RATE_HZ, abs=0.01)
    assert samples.std() > 0.02
    assert rejected.status_code == 400
    assert "leave out voice" in rejected.text


# ---------------------------------------------------------------- the caches
@pytest.mark.parametrize("swap_bytes", [1 << 20, 0], ids=["swapped", "computed again"])
def test_evicted_caches_go_on(model, monkeypatch, swap_bytes):
    sampling = replace(model.decoder.checkpoint.sampling, seed=5)
    (expected,) = write(model, Speech(model, LONG, sampling))
    speech, store = Speech(model, LONG, sampling), model.decoder.decoder.store
    for one in (store, store.cross_attention):
        monkeypatch.setattr(one, "swap_bytes", swap_bytes)
    for _ in range(10):
        speech.advance(model.decoder.next_frame(**speech.columns()))
    used = store.page_counts()[0]
    for cache in speech.caches:
        cache.evict()
    assert store.page_counts()[0] < used
    model.decoder.restore(speech.caches)
    assert store.page_counts()[0] == used
    assert torch.equal(*write(model, speech), expected)


def test_caches_that_move_to_another_worker_go_on(model):
    sampling = replace(model.decoder.checkpoint.sampling, seed=6)
    (expected,) = write(model, Speech(model, TEXT, sampling))
    speech = Speech(model, TEXT, sampling)
    for _ in range(10):
        speech.advance(model.decoder.next_frame(**speech.columns()))
    speech.caches = [model.decoder.load_state(KV, cache.export()) for cache in speech.caches]
    assert torch.equal(*write(model, speech), expected)


def test_keys_of_a_text_have_pages_of_their_own(model):
    store = model.decoder.decoder.store
    used, cross_used = (one.pool.count - one.pool.free_pages for one in (store, store.cross_attention))
    speech = Speech(model, LONG, model.decoder.checkpoint.sampling)
    length = speech.caches[0].cross_attention_cache.table.length
    assert store.pool.count - store.pool.free_pages == used
    pages = store.cross_attention.pool.count - store.cross_attention.pool.free_pages - cross_used
    assert pages == -(-length // 16) + 1
    assert store.keys[0].shape[1] == 2
    assert store.cross_attention.keys[0].shape[1] == 4
    for cache in speech.caches:
        cache.free()
    assert store.cross_attention.pool.count - store.cross_attention.pool.free_pages == cross_used


def test_a_speech_that_never_fits_is_rejected(model, monkeypatch):
    monkeypatch.setattr(model.decoder.decoder.store, "pool", PagePool(4, 16))
    with pytest.raises(NeverFits, match=r"6 KV cache pages of 16 positions needed, 4 exist\n  fix: "):
        model.run(SPEECHES[0])


# ---------------------------------------------------------------- requests and checkpoints
@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"voice": "emma"}, "in voices of its own"),
        ({"language": "de"}, "Dia speaks English"),
        ({"speed": 1.5}, "at speed 1"),
        ({"instructions": "Whisper."}, "without instructions"),
        ({"text": "a" * 1025}, "the text has 1025 bytes"),
        ({"text": ""}, "the text has 0 bytes"),
    ],
)
def test_unsupported_requests_are_rejected(model, options, what):
    with pytest.raises(NotImplementedError, match=rf"{what}[\s\S]*fix: "):
        model.run(SpeechRequest(**{"text": TEXT, **options}))


def test_usage_is_reported(model):
    assert model.run(SpeechRequest("Oh.")).result == Finish(prompt_tokens={"text": 3})


def test_other_checkpoints_are_rejected(tmp_path):
    checkpoint = Checkpoint(Weights(str(tmp_path)))
    for text in (None, {"model_type": "csm"}):
        if text:
            (tmp_path / "config.json").write_text(json.dumps(text))
        with pytest.raises(LoadError, match=r"config.json is not that of a Dia model\n  fix: "):
            _ = checkpoint.config
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "dia", "delay_pattern": [*range(9)]}))
    with pytest.raises(LoadError, match=r"has delay_pattern \[0, 1, .*, expected \[0, 8, 9[\s\S]*\n  fix: "):
        _ = checkpoint.config


def test_another_codec_is_rejected(tmp_path):
    folder = Path(tiny.save(tmp_path))
    file = folder / "dac" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"sampling_rate": 24_000}))
    with pytest.raises(LoadError, match=r"has sampling_rate 24000, expected 44100\n  fix: use descript/dac_44khz"):
        Dia(str(folder)).codec.prepare()


def test_sampling_is_that_of_the_checkpoint(tmp_path):
    checkpoint = Checkpoint(Weights(str(tmp_path)))
    assert (checkpoint.sampling, checkpoint.guidance_scale) == (DEFAULT_SAMPLING, 3.0)
    assert checkpoint.codec.source == "hub:descript/dac_44khz"
    settings = {"do_sample": True, "temperature": 0.5, "top_k": 45, "top_p": 0.95, "max_length": 102}
    (tmp_path / "generation_config.json").write_text(json.dumps(settings))
    checkpoint = Checkpoint(Weights(str(tmp_path)))
    assert checkpoint.sampling == Sampling(100, 1.0, top_k=45, top_p=0.95)
    assert checkpoint.guidance_scale == 1

"""Qwen3-TTS: codes and audio equal those of the reference, for every placement."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from mstar.errors import LoadError
from mstar.models.qwen3_tts.checkpoint import Checkpoint
from mstar.models.qwen3_tts.qwen3_tts import DEFAULT_SAMPLING, Qwen3Tts
from mstar.nn.weights.sources import Weights
from mstar.requests import Finish, Sampling, SpeechRequest
from tests.models.audio_outputs import assert_close, concat_audio, emitted_audio, run_random_schedule
from tests.models.concurrent_clients import in_process, in_processes
from tests.models.qwen3_tts import qwen3_tts_tiny as tiny
from tests.models.transcripts import one_thread

GREEDY = Sampling(max_tokens=23, repetition_penalty=1.05)
DRAWN = replace(DEFAULT_SAMPLING, max_tokens=14)
HOP = 32
GOLDEN_CASES = {
    # language, voice, and whether the text is streamed
    "spk_en": ("English", "Vivian", True),
    "auto_nospk": ("", "", True),
    "spk_zh_nonstream": ("zh-CN", "vivian", False),
}
SPEECHES = [
    SpeechRequest("w20 w21 w22", "vivian", language="en", seed=3),
    SpeechRequest("w40", language="chinese", seed=-4),
    SpeechRequest(" ".join(f"w{number}" for number in range(50, 90)), "vivian", seed=2**63),
    SpeechRequest("w9 w8", seed=3),
]


@pytest.fixture(scope="module", autouse=True)
def single():
    with one_thread(), torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return tiny.save(tmp_path_factory.mktemp("qwen3_tts"))


@pytest.fixture(scope="module")
def model(saved):
    return Qwen3Tts(saved, sampling=DRAWN)


@pytest.fixture(scope="module")
def eager(model):
    return [concat_audio(model.run(speech).emissions) for speech in SPEECHES]


@pytest.mark.parametrize("name", GOLDEN_CASES)
def test_codes_and_audio_equal_the_reference(model, name, monkeypatch):
    case, (language, voice, streams_text) = tiny.cases()[name], GOLDEN_CASES[name]
    monkeypatch.setattr(model.talker, "_streams_text", streams_text)
    monkeypatch.setattr(model, "sampling", GREEDY)
    speech = SpeechRequest(
        " ".join(f"w{token}" for token in case["input_ids"][0, 3:-5].tolist()), voice, language=language
    )

    given, text, count, pad, code_counts = model.talker.prompt(speech)
    torch.testing.assert_close(given, case["prefill_embeds"][0], rtol=0, atol=1e-5)
    assert count == (case["trailing_text_hidden"].shape[1] if streams_text else 0)
    kv, frames, step = model.talker.make_state(object), [], 0
    code, thought, code_counts = model.talker.first_code(given, code_counts, kv, GREEDY)
    while not bool(model.talker.is_over(code)) and step < GREEDY.max_tokens:
        torch.testing.assert_close(thought, case["talker_hidden"][step], rtol=0, atol=1e-4)
        frame, read = model.predictor.predict_frame(code, thought, text[step] if step < count else pad, GREEDY, step)
        frames.append(frame)
        code, thought, code_counts = model.talker.first_code(read, code_counts, kv, GREEDY)
        step += 1
    assert torch.equal(torch.stack(frames), case["codes"])
    assert_close(concat_audio(model.run(speech).emissions), case["wav"][0, 0].numpy())


def test_the_seed_determines_the_speech(model, eager):
    np.testing.assert_array_equal(concat_audio(model.run(SPEECHES[0]).emissions), eager[0])
    assert not np.array_equal(concat_audio(model.run(replace(SPEECHES[0], seed=4)).emissions), eager[0])


def test_codes_are_sampled_with_the_seed_of_their_frame(model):
    thought, pad, code = torch.randn(64, generator=torch.Generator().manual_seed(0)), torch.zeros(64), torch.tensor([7])
    frames = [model.predictor.predict_frame(code, thought, pad, replace(DRAWN, seed=seed), step)[0].tolist()
              for seed, step in ((1, 0), (1, 0), (1, 1), (2, 0))]  # fmt: skip
    assert frames[0] == frames[1]
    assert len({tuple(frame) for frame in frames}) == 3


def test_served_results_equal_eager_results_under_any_placement(model, eager):
    for actual, expected in zip(run_random_schedule(model, SPEECHES, seed=2), eager, strict=True):
        assert_close(actual, expected)


def test_concurrent_requests_equal_single_requests(model, eager):
    with in_process("tts", model) as deployment:
        for number, actual in enumerate(emitted_audio(deployment, "tts", SPEECHES * 4, disconnects=3)):
            assert_close(actual, eager[number % 4])


def test_audio_starts_with_the_first_frame(model):
    sizes = [len(one.value) // HOP for one in model.run(SPEECHES[0]).emissions]
    assert sizes[:3] == [1, 2, 2]
    assert sum(sizes) == DRAWN.max_tokens


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"voice": "emma"}, "the voices `vivian` and the languages"),
        ({"language": "klingon"}, "the languages `english`, `chinese`"),
        ({"speed": 1.5}, "neither speed nor instructions"),
        ({"instructions": "Whisper."}, "neither speed nor instructions"),
    ],
)
def test_unsupported_requests_are_rejected(model, options, what):
    with pytest.raises(NotImplementedError, match=rf"{what}[\s\S]*fix: "):
        model.run(SpeechRequest("w20", **options))


def test_a_voice_can_have_a_dialect(model, monkeypatch):
    monkeypatch.setitem(tiny.TALKER["codec_language_id"], "sichuan", 97)
    monkeypatch.setattr(model.talker._checkpoint, "config", tiny.CONFIG | {"talker_config": {
        **tiny.TALKER, "spk_id": {"eric": 91}, "spk_is_dialect": {"eric": "sichuan"}}})  # fmt: skip
    assert model.talker._control_codes(SpeechRequest("", "Eric")) == [81, 83, 97, 84, 91]
    assert model.talker._control_codes(SpeechRequest("", "Eric", language="en")) == [81, 83, 95, 84, 91]
    assert model.talker._control_codes(SpeechRequest("")) == [82, 83, 84]


def test_usage_and_voices_are_reported(model):
    assert model.run(SpeechRequest("w20")).result == Finish(prompt_tokens={"text": 3})
    assert model.voices() == ("vivian",)


def test_other_model_types_are_rejected(tmp_path):
    with pytest.raises(LoadError, match=r"config.json is missing\n  fix: "):
        _ = Checkpoint(Weights(str(tmp_path))).config
    (tmp_path / "config.json").write_text(json.dumps(tiny.CONFIG | {"tts_model_type": "base"}))
    with pytest.raises(LoadError, match="tts_model_type base, expected custom_voice\n  fix: "):
        _ = Checkpoint(Weights(str(tmp_path))).talker_config


def test_the_published_tokenizer_is_loaded(tmp_path):
    letters = {letter: number for number, letter in enumerate("helo\u0120w")}
    (tmp_path / "vocab.json").write_text(json.dumps(letters | {"he": 6, "<|im_start|>": 7}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\nh e\n")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "Qwen2Tokenizer"}))
    assert Checkpoint(Weights(str(tmp_path))).tokenizer().encode("hello hello").ids == [6, 2, 2, 3, 4, 6, 2, 2, 3]


FILE = """
from mstar.models.qwen3_tts.qwen3_tts import Qwen3Tts
from mstar.requests import Sampling


class Tiny(Qwen3Tts):
    def __init__(self):
        super().__init__({weights!r}, sampling=Sampling({most}, 0.9, top_k=50, repetition_penalty=1.05))
"""
PLACES = {
    "one worker": {"talker": '"a"', "predictor": '"a"', "codec": '"a"'},
    "apart": {"talker": '"a"', "predictor": '"b"', "codec": '"c"'},
    "two codecs": {"talker": '"a"', "predictor": '"a"', "codec": '["b", "c"]'},
}


@pytest.mark.nightly
@pytest.mark.timeout(120)
@pytest.mark.parametrize("places", PLACES)
def test_processes_give_the_eager_result(places, saved, eager, tmp_path):
    file = tmp_path / "qwen3_tts_here.py"
    file.write_text(FILE.format(weights=saved, most=DRAWN.max_tokens))
    with in_processes("tts", file, PLACES[places]) as deployment:
        for number, actual in enumerate(emitted_audio(deployment, "tts", SPEECHES * 4, disconnects=8)):
            assert_close(actual, eager[number % 4])

"""Kokoro: audio equals that of the library, sentence by sentence, for every placement."""

import json
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from mstar.errors import LoadError
from mstar.models.kokoro.checkpoint import DEFAULT_WEIGHTS, Checkpoint
from mstar.models.kokoro.kokoro import SAMPLE_RATE_HZ, Kokoro
from mstar.models.kokoro.network import build_part, load_parts
from mstar.models.kokoro.stages import MAX_PHONEMES, _split_phrase
from mstar.models.kokoro.voice_mix import MAX_MIXED_VOICES, VoiceMix
from mstar.models.whisper.whisper import Whisper
from mstar.requests import AudioInput, Finish, SpeechRequest, TranscriptionRequest
from mstar.testing.local_runtime import LocalRuntime
from mstar.testing.parity import random_placement
from tests.models.audio_outputs import assert_close, concat_audio, emitted_audio, run_random_schedule
from tests.models.concurrent_clients import in_process, in_processes
from tests.models.kokoro import kokoro_tiny as tiny
from tests.models.transcripts import word_error_rate

SPEECHES = [
    SpeechRequest("Oh. Go on!", seed=5),
    SpeechRequest("Hm?", "am_adam", seed=2**63 + 1),
    SpeechRequest("No; two. I. Go.", speed=1.5),
    SpeechRequest("Yes.", "af_heart(3)+am_adam", language="en-US", seed=-7),
]
HEART = VoiceMix.parse("af_heart")
REAL = Path(DEFAULT_WEIGHTS).expanduser()
fetched = pytest.mark.skipif(not REAL.exists(), reason="Kokoro's weights are not there: run scripts/fetch-kokoro")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return tiny.save(tmp_path_factory.mktemp("kokoro"))


@pytest.fixture(scope="module")
def model(saved):
    return Kokoro(saved)


@pytest.fixture(scope="module")
def eager(model):
    return [concat_audio(model.run(speech).emissions) for speech in SPEECHES]


def by_library(whole, folder, model, speech):
    """Return the library's audio of each phrase."""
    voice, sounds = VoiceMix.parse(speech.voice or "af_heart"), []
    styles = load_file(Path(folder) / "voices.safetensors")
    for step, phonemes in enumerate(model.processor.phonemes(speech.text, voice)):
        style = sum(share * styles[name][len(phonemes) - 1] for name, share in voice.shares)
        torch.manual_seed((speech.seed + step) % 2**63)
        sounds.append(whole(phonemes, style[None], speech.speed))
    return sounds


def test_audio_equals_the_library(saved, model, eager, monkeypatch):
    whole = tiny.library(saved, monkeypatch)
    for speech, actual, count in zip(SPEECHES, eager, (2, 1, 2, 1), strict=True):
        expected = by_library(whole, saved, model, speech)
        assert len(expected) == count
        assert_close(actual, torch.cat(expected).numpy())


def test_sentences_are_emitted_one_by_one_and_equal_single_ones(model, eager):
    sounds = [np.asarray(one.value) for one in model.run(SPEECHES[0]).emissions if type(one).__name__ == "Audio"]
    assert len(sounds) == 2
    np.testing.assert_array_equal(sounds[0], concat_audio(model.run(SpeechRequest("Oh.", seed=5)).emissions))
    np.testing.assert_array_equal(sounds[1], concat_audio(model.run(SpeechRequest("Go on!", seed=6)).emissions))
    assert all(len(sound) % tiny.HOP == 0 for sound in sounds)
    other = concat_audio(model.run(SpeechRequest(SPEECHES[0].text, seed=9)).emissions)
    assert np.abs(other - eager[0]).max() > 1e-2


def test_words_have_the_times_of_their_phonemes(model, saved, monkeypatch):
    speech, rate = SPEECHES[2], SAMPLE_RATE_HZ
    outcome = model.run(speech)
    words = [word for one in outcome.emissions if type(one).__name__ == "WordTimestamps" for word in one.value]
    assert [(word.word, speech.text[word.text_start : word.text_end]) for word in words] == [
        (text, text) for text in speech.text.split()
    ]
    whole, start, expected = tiny.library(saved, monkeypatch), 0.0, []
    for phonemes in model.processor.phonemes(speech.text, HEART):
        style = load_file(Path(saved) / "voices.safetensors")["af_heart"][len(phonemes) - 1]
        frames = whole(phonemes, style[None], speech.speed, return_output=True).pred_dur
        ends = [start + tiny.HOP / rate * int(frames[: index + 1].sum()) for index in range(len(frames))]
        for word in re.finditer(r"[^ ;.]+", phonemes):
            expected += [ends[word.start()], ends[word.end()]]
        start = ends[-1]
    assert [time for word in words for time in (word.start, word.end)] == pytest.approx(expected, abs=0.0006)
    assert start == pytest.approx(len(concat_audio(outcome.emissions)) / rate)
    runtime = LocalRuntime(model, random_placement(model.graphs(), random.Random(2)), seed=2)
    (served,) = runtime.run_all([speech])
    assert [one.value for one in served.emissions if type(one).__name__ == "WordTimestamps"] == [
        one.value for one in outcome.emissions if type(one).__name__ == "WordTimestamps"
    ]


def test_voice_and_speed_change_the_audio(model):
    plain, other, fast = (
        concat_audio(model.run(SpeechRequest("Go on!", voice, speed)).emissions)
        for voice, speed in (("", 1), ("am_adam", 1), ("", 2))
    )
    assert len(fast) < 0.8 * len(plain)
    assert plain.shape != other.shape or not np.array_equal(plain, other)


def test_a_mix_lies_between_its_voices(model):
    plain, mixed, other = (
        model.processor.phrases(SpeechRequest("Go."), VoiceMix.parse(voice))[0][0].style
        for voice in ("af_heart", "af_heart(3) + am_adam(1)", "am_adam")
    )
    np.testing.assert_allclose(mixed, 0.75 * plain + 0.25 * other, rtol=1e-6)
    assert np.abs(mixed - plain).max() > 1e-3


def test_weights_of_a_mix_are_relative():
    assert VoiceMix.parse("a+b").shares == VoiceMix.parse("a(0.5) + b(0.5)").shares == (("a", 0.5), ("b", 0.5))
    assert VoiceMix.parse("b(3)+a").is_british
    assert not VoiceMix.parse("b+a(1.5)").is_british
    for wrong in (
        "",
        "+",
        "a+",
        "a(",
        "a(x)",
        "a(-1)",
        "a(0)",
        "a(1e9)",
        "a b",
        "+".join("a" * (MAX_MIXED_VOICES + 1)),
    ):
        assert VoiceMix.parse(wrong) is None


@pytest.mark.slow
def test_british_voices_use_british_phonemes(model):
    assert model.processor.phonemes("hot", HEART) == ["hˈɑt"]
    assert model.processor.phonemes("hot", VoiceMix.parse("bm_george")) == ["hˈɒt"]


def test_a_long_phrase_is_split_between_words(model):
    text = "one two three four five six seven " * 40
    phrases = model.processor.phonemes(text, HEART)
    assert len(phrases) > 1
    assert max(map(len, phrases)) <= MAX_PHONEMES
    assert all(phrase.endswith(" ") for phrase in phrases[:-1])
    assert list(_split_phrase("a" * 1100)) == ["a" * 510, "a" * 510, "a" * 80]
    assert model.run(SpeechRequest(" \n ")).emissions == []


def test_served_results_equal_eager_results_under_any_placement(model, eager):
    for actual, expected in zip(run_random_schedule(model, SPEECHES, seed=4), eager, strict=True):
        assert_close(actual, expected)


def test_concurrent_requests_equal_single_requests(model, eager):
    with in_process("kokoro", model) as deployment:
        for number, actual in enumerate(emitted_audio(deployment, "kokoro", SPEECHES[1::2] * 8, disconnects=3)):
            assert_close(actual, eager[1::2][number % 2])


@pytest.mark.parametrize(
    "options", [{"voice": "emma"}, {"voice": "af_heart+emma"}, {"instructions": "Whisper."}, {"language": "fr"}]
)
def test_unsupported_requests_are_rejected(model, options):
    with pytest.raises(NotImplementedError, match=r"English in the voices `af_heart`, `am_adam`[\s\S]*fix: "):
        model.run(SpeechRequest("Hello.", **options))


def test_usage_and_voices_are_reported(model):
    assert model.run(SpeechRequest("Hm?")).result == Finish(prompt_tokens={"text": 3})
    assert model.voices() == ("af_heart", "am_adam")


def test_a_component_loads_only_its_parts(model):
    assert [name for name, _ in model.vocoder.network.named_children()] == ["decoder"]
    assert "decoder" not in dict(model.prosody.network.named_children())


def test_the_published_layout_is_supported(saved, tmp_path, monkeypatch):
    shutil.copy(Path(saved, "config.json"), tmp_path)
    (tmp_path / "voices").mkdir()
    (tmp_path / "voices" / "af_heart.pt").touch()
    voice = load_file(Path(saved) / "voices.safetensors")["af_heart"][:, None]
    whole = tiny.published(saved)
    monkeypatch.setattr(torch, "load", lambda file, **how: voice if file.suffix == ".pt" else whole)
    ours, theirs = Checkpoint(saved), Checkpoint(str(tmp_path))
    assert theirs.voices == ("af_heart",)
    assert torch.equal(ours.voice_style("af_heart"), theirs.voice_style("af_heart"))
    for name, tensor in ours.part_tensors("decoder").items():
        assert torch.equal(tensor, theirs.part_tensors("decoder")[name])


def test_mismatched_weights_are_rejected(saved, tmp_path):
    with pytest.raises(LoadError, match="no weights at"):
        Kokoro(str(tmp_path / "none")).voices()
    with pytest.raises(LoadError, match=r"no config.json\n  fix: "):
        Kokoro(str(tmp_path)).voices()
    (tmp_path / "config.json").write_text(json.dumps(tiny.CONFIG))
    save_file(
        {"bert_encoder.weight": torch.zeros(512, 32), "bert_encoder.odd": torch.zeros(1)},
        tmp_path / "model.safetensors",
    )
    with pytest.raises(LoadError, match=r"tensors of Kokoro's bert_encoder: `bias`, `odd`[\s\S]*fix: "):
        load_parts(Checkpoint(str(tmp_path)), "bert_encoder")


def test_it_is_traced_without_its_libraries():
    code = """
import sys
from mstar.models.kokoro.kokoro import Kokoro
assert Kokoro().graphs()
print([name for name in ("torch", "transformers", "numpy", "hibari", "kokoro") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(LoadError, match=r"No module named 'kokoro'\n  fix: pip install attrs"):
        build_part("bert_encoder", tiny.CONFIG)


PLACES = {
    "one worker": {"processor": '"a"', "prosody": '"a"', "vocoder": '"a"'},
    "apart": {"processor": '"a"', "prosody": '"b"', "vocoder": '"c"'},
    "two vocoders": {"processor": '"a"', "prosody": '"a"', "vocoder": '["b", "c"]'},
}


@pytest.mark.nightly
@pytest.mark.timeout(120)
@pytest.mark.parametrize("places", PLACES)
def test_processes_give_the_eager_result(places, saved, eager):
    with in_processes("kokoro", f"kokoro@{saved}", PLACES[places]) as deployment:
        for number, actual in enumerate(emitted_audio(deployment, "kokoro", SPEECHES * 4, disconnects=8)):
            assert_close(actual, eager[number % 4])


SENTENCES = {
    "af_heart": "The lighthouse keeper woke early that morning.",
    "am_michael": "A storm had passed in the night, and the harbour was full of broken boats.",
    "bf_emma": "He made coffee, fed the cat, and climbed the stairs to clean the lamp.",
    "bm_george": "Nobody had been hurt, which was the only thing that mattered.",
    "af_bella": "By noon the sun had come out, and the children were back in school.",
}


@fetched
@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_five_voices_are_intelligible(report):
    model, whisper = Kokoro(), Whisper()
    assert len(model.voices()) == 54
    text = " ".join(SENTENCES.values())
    transcript = ""
    for voice, sentence in SENTENCES.items():
        sound = concat_audio(model.run(SpeechRequest(sentence, voice)).emissions)
        transcript += whisper.run(TranscriptionRequest(AudioInput(sound, SAMPLE_RATE_HZ))).result.text + " "
    report(
        f"Kokoro: {word_error_rate(text, transcript):.1%} of the words of five sentences in five voices were misheard"
    )
    assert word_error_rate(text, transcript) <= 0.1


@fetched
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_published_weights_equal_the_library(monkeypatch):
    model, speech = Kokoro(), SpeechRequest("Good morning.", "bm_george", 1.25, seed=3)
    (expected,) = by_library(tiny.library(REAL, monkeypatch), REAL, model, speech)
    assert_close(concat_audio(model.run(speech).emissions), expected.numpy())

"""CSM: codes and audio equal those of transformers, for every placement."""

import json
from dataclasses import replace

import httpx2
import numpy as np
import pytest
import torch

from mstar.errors import LoadError
from mstar.models.csm.checkpoint import Checkpoint
from mstar.models.csm.csm import DEFAULT_SAMPLING, VOICES, Csm
from mstar.nn.weights.sources import Weights
from mstar.requests import Finish, Sampling, SpeechRequest
from mstar.testing import parity
from tests.cli.test_serve import start_server, wait_ready
from tests.models.audio_outputs import assert_close, concat_audio, emitted_audio, run_random_schedule
from tests.models.concurrent_clients import in_process
from tests.models.csm import csm_tiny as tiny
from tests.models.transcripts import one_thread

FRAMES = 12
GREEDY = Sampling(max_tokens=FRAMES)
DRAWN = replace(DEFAULT_SAMPLING, max_tokens=FRAMES)
LONG = " ".join(f"w{number}" for number in range(50, 90))
SPEECHES = [
    SpeechRequest("w20 w21 w22", seed=3),
    SpeechRequest("w40", "7", language="en", seed=-4),
    SpeechRequest(LONG, "1", seed=2**63),
    SpeechRequest("w9 w8", seed=3),
]


@pytest.fixture(scope="module", autouse=True)
def single():
    with one_thread(), torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return tiny.save(tmp_path_factory.mktemp("csm"))


@pytest.fixture(scope="module")
def library(saved):
    return tiny.Library(saved)


@pytest.fixture(scope="module")
def model(saved):
    return Csm(saved, sampling=DRAWN)


@pytest.fixture(scope="module")
def eager(model):
    return [concat_audio(model.run(speech).emissions) for speech in SPEECHES]


def speak(model, text, voice, sampling):
    """The frames of a text, as the walk generates them."""
    backbone, depth_decoder = model.backbone, model.depth_decoder
    kv, frames = backbone.make_state(object), []
    embeddings = backbone.prompt(text, voice, sampling)
    for step in range(-1, sampling.max_tokens - 1):
        code, hidden = backbone.first_code(embeddings, kv, sampling)
        frame, embeddings = depth_decoder.predict_frame(code, hidden, sampling, step)
        frames.append(frame)
    return torch.stack(frames)


@pytest.mark.parametrize(("text", "voice"), [("w20 w21 w22", "0"), (LONG, "3"), ("w9", "9")])
def test_codes_and_audio_equal_the_library(model, library, monkeypatch, text, voice):
    codes, audio = library.speak(text, voice, FRAMES)
    assert torch.equal(speak(model, text, voice, GREEDY), codes)
    monkeypatch.setattr(model, "sampling", GREEDY)
    assert_close(concat_audio(model.run(SpeechRequest(text, voice)).emissions), audio.numpy())


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A model with two codebooks of eight codes, which soon writes frames of two equal codes."""
    folder = tmp_path_factory.mktemp("csm_small")
    return Csm(tiny.save(folder, 2, 8), sampling=replace(GREEDY, max_tokens=16)), tiny.Library(str(folder))


@pytest.fixture(scope="module")
def endless(small):
    """Frames of texts that nothing ends."""
    _, library = small
    library.network.config.codebook_eos_token_id = -1
    return {f"w{number}": library.speak(f"w{number}", "0", 16)[0].tolist() for number in range(20, 24)}


def find_end(frames, is_dropped):
    """The first frame, after another one, that ends the speech if its first code does, and is dropped or kept."""
    for number, (first, last) in enumerate(frames):
        if number and first not in [frame[0] for frame in frames[:number]] and (first == last) is is_dropped:
            return number
    return None


@pytest.mark.parametrize("is_dropped", [True, False], ids=["a frame of end codes", "all but the last are end codes"])
def test_the_speech_ends_where_the_library_ends_it(small, endless, monkeypatch, is_dropped):
    model, library = small
    ends = {text: find_end(frames, is_dropped) for text, frames in endless.items()}
    text, number = next((text, number) for text, number in ends.items() if number)
    for config in (library.network.config, model.backbone._checkpoint.config):
        monkeypatch.setattr(config, "codebook_eos_token_id", endless[text][number][0])
    codes, audio = library.speak(text, "0", 16)
    assert codes.tolist() == endless[text][: number + 1]
    assert len(audio) == (number + (not is_dropped)) * tiny.HOP
    assert_close(concat_audio(model.run(SpeechRequest(text)).emissions), audio.numpy())


def test_a_speech_can_be_empty(small, monkeypatch):
    model, _ = small
    monkeypatch.setattr(model, "sampling", Sampling(8, temperature=2.0))
    firsts = [speak(model, "w20", "0", Sampling(1, temperature=2.0, seed=seed))[0] for seed in range(40)]
    seed, end = next((seed, int(first)) for seed, (first, last) in enumerate(firsts) if first == last != 0)
    assert model.run(SpeechRequest("w20", seed=seed)).emissions
    monkeypatch.setattr(model.backbone._checkpoint.config, "codebook_eos_token_id", end)
    assert model.run(SpeechRequest("w20", seed=seed)).emissions == []


def test_the_seed_determines_the_speech(model, eager):
    np.testing.assert_array_equal(concat_audio(model.run(SPEECHES[0]).emissions), eager[0])
    assert not np.array_equal(concat_audio(model.run(replace(SPEECHES[0], seed=4)).emissions), eager[0])


def test_codes_are_sampled_with_the_seed_of_their_frame(model):
    hidden, code = torch.randn(64, generator=torch.Generator().manual_seed(0)), torch.tensor([7])
    frames = [model.depth_decoder.predict_frame(code, hidden, replace(DRAWN, seed=seed), step)[0].tolist()
              for seed, step in ((1, 0), (1, 0), (1, 1), (2, 0))]  # fmt: skip
    assert frames[0] == frames[1]
    assert len({tuple(frame) for frame in frames}) == 3


def test_codes_that_the_codec_does_not_have_are_never_sampled(model):
    codes = torch.cat([speak(model, "w20", "0", Sampling(16, temperature=100.0, seed=seed)) for seed in range(4)])
    assert codes.min() == 0
    assert codes.max() == 31


def test_a_request_is_served_as_it_runs(model):
    parity(model, SPEECHES[2])


def test_requests_of_a_batch_equal_single_requests(model, eager):
    for seed in range(3):
        for actual, expected in zip(run_random_schedule(model, SPEECHES, seed=seed), eager, strict=True):
            assert_close(actual, expected)


def test_concurrent_requests_equal_single_requests(model, eager):
    with in_process("csm", model) as deployment:
        for number, actual in enumerate(emitted_audio(deployment, "csm", SPEECHES * 3, disconnects=3)):
            assert_close(actual, eager[number % 4])


def test_audio_starts_with_the_first_frame(model):
    sizes = [len(one.value) // tiny.HOP for one in model.run(SPEECHES[0]).emissions]
    assert sizes == [1, 2, 2, 2, 2, 2, 1]


def test_text_that_looks_like_a_special_token_stays_text(model):
    start, *tokens, end = model.backbone._tokenizer.encode("[0]w20 <|end_of_text|><|AUDIO|> w21").ids
    assert (start, end) == (0, 1)
    assert min(tokens) >= tiny.SPECIAL_TOKENS


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"voice": "emma"}, "the voices `0`"),
        ({"language": "de"}, "CSM speaks English"),
        ({"speed": 1.5}, "at speed 1"),
        ({"instructions": "Whisper."}, "without instructions"),
        ({"text": "w20 " * 2040}, "the text has 2045 tokens, maximum 2036 before the speech"),
    ],
)
def test_unsupported_requests_are_rejected(model, options, what):
    with pytest.raises(NotImplementedError, match=rf"{what}[\s\S]*fix: "):
        model.run(SpeechRequest(**{"text": "w20", **options}))


def test_usage_and_voices_are_reported(model):
    assert model.run(SpeechRequest("w20")).result == Finish(prompt_tokens={"text": 3})
    assert model.voices() == VOICES


@pytest.mark.parametrize("change", [{"model_type": "mimi"}, {"tie_codebooks_embeddings": False},
                                    {"depth_decoder_config": {"mlp_bias": True}}])  # fmt: skip
def test_other_configs_are_rejected(tmp_path, change):
    with pytest.raises(LoadError, match=r"config.json is missing\n  fix: "):
        _ = Checkpoint(Weights(str(tmp_path))).config
    (tmp_path / "config.json").write_text(json.dumps(change))
    with pytest.raises(LoadError, match=r"config.json has [\s\S]*, expected .*\n  fix: "):
        _ = Checkpoint(Weights(str(tmp_path))).config


def test_the_published_names_are_loaded(saved, model, tmp_path):
    """Tensors of transformers lie beside those of other software, and the tied embeddings have the other name."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(f"{saved}/model.safetensors")
    embeddings = tensors.pop("depth_decoder.model.embed_tokens.weight")
    tensors["backbone_model.embed_tokens.embed_audio_tokens.weight"] = embeddings
    save_file(tensors, tmp_path / "transformers.safetensors")
    save_file({"backbone.norm.scale": torch.ones(64)}, tmp_path / "model.safetensors")
    (tmp_path / "tokenizer.json").symlink_to(f"{saved}/tokenizer.json")
    with open(f"{saved}/config.json") as file:
        config = json.load(file) | {"transformers_weights": "transformers.safetensors"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    published, code, hidden = Csm(str(tmp_path)), torch.tensor([7]), torch.ones(64)
    for actual, expected in zip(
        *(one.depth_decoder.predict_frame(code, hidden, GREEDY, 0) for one in (published, model)), strict=True
    ):
        assert torch.equal(actual, expected)
    assert torch.equal(*(one.backbone.prompt("w20", "0", GREEDY) for one in (published, model)))


FILE = """
from mstar.models.csm.csm import Csm
from mstar.requests import Sampling


class Tiny(Csm):
    def __init__(self, weights):
        super().__init__(weights, sampling=Sampling({most}, 0.9, top_k=50))
"""


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_clients_get_the_eager_audio_while_it_is_generated(saved, model, tmp_path):
    file = tmp_path / "csm_here.py"
    file.write_text(FILE.format(most=FRAMES))
    with start_server(f"{file}@{saved}", "--in-process") as (process, url):
        wait_ready(process)
        voices = httpx2.get(f"{url}/v1/audio/voices").json()
        assert [voice["id"] for voice in voices["data"]] == [*VOICES]
        for text, voice, seed in (("w20 w21 w22", "0", 3), (LONG, "7", 5)):
            body = {"model": "csm_here", "input": text, "voice": voice, "seed": seed, "response_format": "pcm"}
            with httpx2.stream("POST", f"{url}/v1/audio/speech", json=body, timeout=60) as response:
                assert response.status_code == 200, response.read()
                samples = np.frombuffer(b"".join(response.iter_bytes()), "<i2") / 32767
            expected = concat_audio(model.run(SpeechRequest(text, voice, seed=seed)).emissions)
            np.testing.assert_allclose(samples, expected, rtol=0, atol=2 / 32767)

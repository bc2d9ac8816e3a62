"""Orpheus: codes equal those of transformers, audio equals that of SNAC, for every placement."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from mstar.errors import LoadError
from mstar.models.orpheus import noise
from mstar.models.orpheus.language_model import LanguageModel
from mstar.models.orpheus.orpheus import DEFAULT_SAMPLING, Orpheus
from mstar.models.orpheus.snac import END_OF_CODES, Snac
from mstar.nn.audio.codec import CodecStreamState
from mstar.nn.weights.sources import Weights
from mstar.requests import Finish, Sampling, SpeechRequest
from tests.models.audio_outputs import assert_close, concat_audio, emitted_audio, run_random_schedule
from tests.models.concurrent_clients import in_process, in_processes
from tests.models.orpheus import orpheus_tiny as tiny
from tests.models.transcripts import one_thread
from tests.nn.lm.counter_based_generate import counter_based_draws
from tests.tiers import ci_cases

GREEDY = Sampling(max_tokens=52, repetition_penalty=1.3)
SPEECHES = [
    SpeechRequest("Good morning.", seed=5),
    SpeechRequest("Hm?", "leo", seed=2**63 + 1),
    SpeechRequest("<laugh> And then he said it again, very slowly.", "zoe"),
    SpeechRequest("No.", "mia", seed=-7),
]
FRAME = 2048


@pytest.fixture(scope="module", autouse=True)
def single():
    with one_thread(), torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return tiny.save(tmp_path_factory.mktemp("orpheus"))


@pytest.fixture(scope="module")
def model(saved):
    return Orpheus(*saved, sampling=GREEDY)


@pytest.fixture(scope="module")
def eager(model):
    return [concat_audio(model.run(speech).emissions) for speech in SPEECHES]


@pytest.fixture(scope="module")
def network(saved):
    return LlamaForCausalLM.from_pretrained(saved[0]).eval()


@pytest.fixture(scope="module")
def codec(saved):
    """The library's own decoder with the noise of these seeds."""
    return known(tiny.read_snac(saved[1]))


def known(made):
    def noisy(block, number):
        def forward(x):
            drawn = noise.draw_normals(made.seeds, number, torch.zeros(1, dtype=torch.int64), x.shape[-1])
            return x + drawn[:, None].to(x) * block.linear(x)

        return forward

    for number, block in enumerate(one for one in made.modules() if type(one).__name__ == "NoiseBlock"):
        block.forward = noisy(block, number)
    return made


def test_the_published_codec_is_loaded():
    folder = Path(__file__).parents[1] / "golden" / "snac"  # saved with the library's own tensor names
    codes, codec = [3, 1, 4, 1, 5, 9, 2] * 4, known(tiny.SNAC.from_pretrained(str(folder)))
    codec.seeds = torch.tensor([1])
    window = torch.tensor([*codes, END_OF_CODES])[:, None]
    actual = Snac(Weights(str(folder))).decode_next(window, len(window), CodecStreamState(), 1)
    assert_close(actual.numpy(), codec.decode(tiny.levels(codes))[0, 0].numpy())


def test_audio_equals_snac_of_the_codes_of_transformers(model, network, codec, monkeypatch):
    codes = tiny.reference_codes(
        network, tiny.prompt("tara", "Good morning."), 52, do_sample=False, repetition_penalty=1.3
    )
    assert len(codes) == 52
    codec.seeds = torch.tensor([5])
    assert_close(concat_audio(model.run(SPEECHES[0]).emissions), codec.decode(tiny.levels(codes))[0, 0].numpy())

    monkeypatch.setattr(model, "use_published_decoder", True)
    expected = []
    for end in range(28, 53, 7):
        codec.seeds = torch.tensor([hash((5, *codes[end - 28 : end]))])
        expected.append(tiny.decode_windows(codec, codes[end - 28 : end]))
    assert_close(concat_audio(model.run(SPEECHES[0]).emissions), torch.cat(expected).numpy())


def test_codes_are_sampled_as_in_transformers(saved, model, network):
    how = {"temperature": 0.6, "top_p": 0.8, "top_k": 0, "repetition_penalty": 1.3, "do_sample": True}
    with counter_based_draws(11):
        expected = tiny.reference_codes(network, tiny.prompt("zac", "Hm?"), 30, **how)
    drawn = Sampling(30, DEFAULT_SAMPLING.temperature, top_p=DEFAULT_SAMPLING.top_p, repetition_penalty=1.3, seed=11)
    tokens, kv, codes = model.lm.prompt("Hm?", "zac"), model.lm.make_state(object), []
    for _ in range(31):
        tokens = model.lm.next_token(tokens, kv, drawn)
        codes.append(int(model.lm.token_to_code(tokens)))
    assert codes == [*expected, END_OF_CODES], "after as many codes as are wished for it ends"
    assert bool(model.lm.is_over(tokens))
    assert len(set(expected)) > 20


def test_text_that_looks_like_a_special_token_stays_text(model):
    tokens = model.lm.prompt("<custom_token_2><|eot_id|>", "tara").tolist()
    assert [token for token in tokens[2:-4] if token >= len(tiny.BYTES)] == []
    assert tokens == tiny.prompt("tara", "<custom_token_2><|eot_id|>")


def streamed(snac, streams, seeds, chosen):
    """Decode streams of codes window by window, in batches of the streams that are ready."""
    names = {"codes": 0, "fresh": 1, "past": 2, "seed": 3}
    pasts, sounds, windows = [CodecStreamState() for _ in streams], [[] for _ in streams], []
    for row, stream in enumerate(streams):
        items, seen, end = torch.tensor([*stream, END_OF_CODES])[:, None], 0, 28
        mine = []
        while seen < len(items):
            mine.append((items[max(0, end - 28) : end], min(end, len(items)) - seen, pasts[row], seeds[row]))
            seen, end = min(end, len(items)), end + 7
        windows.append(mine)
    while any(windows):
        ready = [row for row, mine in enumerate(windows) if mine]
        row = chosen.choice(ready)
        batch = [one for one in ready if len(windows[one][0][0]) == len(windows[row][0][0]) and chosen.random() < 0.7]
        calls = [windows[one].pop(0) for one in batch]
        if calls:
            columns = {name: [call[at] for call in calls] for name, at in names.items()}
            for one, (sound,) in zip(batch, snac.ops()["decode_next"].run(snac, columns, len(calls)), strict=True):
                sounds[one].append(sound)
    return [torch.cat(parts) for parts in sounds]


def test_streamed_audio_equals_the_whole_in_any_batch(saved, codec):
    snac, chosen = Snac(Weights(saved[1])), random.Random(3)
    lengths = [90, 83, 28, 34, 27, 35, 7, 3, 0, 62, 90]
    streams = [[chosen.randrange(4096) for _ in range(length)] for length in lengths]
    streams[-1] = streams[0]
    seeds = [chosen.randrange(2**62) for _ in streams]
    for codes, seed, actual in zip(streams, seeds, streamed(snac, streams, seeds, chosen), strict=True):
        assert len(actual) == len(codes) // 7 * FRAME
        if len(actual):
            codec.seeds = torch.tensor([seed])
            assert_close(actual.numpy(), codec.decode(tiny.levels(codes))[0, 0].numpy())


def test_the_seed_determines_the_audio(model, eager):
    again = concat_audio(model.run(SPEECHES[0]).emissions)
    other = concat_audio(model.run(SpeechRequest("Good morning.", seed=6)).emissions)
    np.testing.assert_array_equal(again, eager[0])
    assert np.abs(other - again).max() > 1e-2


def test_noise_is_normal_and_independent_of_chunks():
    zero = torch.zeros(2, dtype=torch.int64)
    drawn = noise.draw_normals(torch.tensor([1, -5]), 0, zero, 200_000)
    for row in drawn:
        assert abs(float(row.mean())) < 0.01
        assert abs(float(row.std()) - 1) < 0.01
        assert abs(float((row[1:] * row[:-1]).mean())) < 0.01
    assert abs(float((drawn[0] * drawn[1]).mean())) < 0.01
    torch.testing.assert_close(noise.draw_normals(torch.tensor([1]), 0, zero[:1] + 500, 300)[0], drawn[0, 500:800])


def test_served_results_equal_eager_results_under_any_placement(model, eager):
    for actual, expected in zip(run_random_schedule(model, SPEECHES[:3], seed=4), eager, strict=False):
        assert_close(actual, expected)


def test_concurrent_requests_equal_single_requests(model, eager):
    with in_process("orpheus", model) as deployment:
        for number, actual in enumerate(emitted_audio(deployment, "orpheus", SPEECHES * 4, disconnects=3)):
            assert_close(actual, eager[number % 4])


@pytest.mark.parametrize(
    "options", [{"voice": "emma"}, {"speed": 1.5}, {"instructions": "Whisper."}, {"language": "fr"}]
)
def test_unsupported_requests_are_rejected(model, options):
    with pytest.raises(NotImplementedError, match=r"English in the voices `tara`[\s\S]*fix: "):
        model.run(SpeechRequest("Hello.", **options))


def test_usage_and_voices_are_reported(model):
    assert model.run(SpeechRequest("Hm?")).result == Finish(prompt_tokens={"text": 3})
    assert model.voices()[:2] == ("tara", "leah")


def test_incomplete_weights_are_rejected(tmp_path, saved):
    (tmp_path / "config.json").write_text(json.dumps(tiny.SNAC_SMALL))
    with pytest.raises(LoadError, match=r"neither model.safetensors nor pytorch_model.bin\n  fix: "):
        Snac(Weights(str(tmp_path))).prepare()
    tiny.Tokenizer(tiny.models.BPE(vocab={}, merges=[])).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(LoadError, match="has no token <custom_token_0>\n  fix: "):
        LanguageModel.ops()["prompt"].body(LanguageModel(Weights(str(tmp_path))), "Hm?", "tara")


FILE = """
from mstar.models.orpheus.orpheus import Orpheus
from mstar.requests import Sampling


class Tiny(Orpheus):
    def __init__(self):
        super().__init__({lm!r}, {snac!r}, sampling=Sampling(max_tokens=52, repetition_penalty=1.3))
"""
PLACES = {
    "one worker": {"lm": '"a"', "snac": '"a"'},
    "apart": {"lm": '"writes"', "snac": '"sounds"'},
    "two codecs": {"lm": '"writes"', "snac": '["one", "two"]'},
}


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("places", ci_cases(PLACES, "two codecs"))
def test_processes_give_the_eager_result(places, saved, eager, tmp_path):
    file = tmp_path / "orpheus_here.py"
    file.write_text(FILE.format(lm=saved[0], snac=saved[1]))
    with in_processes("orpheus", file, PLACES[places]) as deployment:
        for number, actual in enumerate(emitted_audio(deployment, "orpheus", SPEECHES * 4, disconnects=8)):
            assert_close(actual, eager[number % 4])

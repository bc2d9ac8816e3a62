"""Orpheus on a pretend GPU writes the codes, and decodes the audio, that it does on the CPU."""

import numpy as np
import pytest
import torch

from mstar.launch.local_launcher import LocalLauncher
from mstar.models.orpheus.language_model import LanguageModel
from mstar.models.orpheus.orpheus import Orpheus
from mstar.models.orpheus.snac import END_OF_CODES, Snac
from mstar.nn.audio.codec import CodecStreamState
from mstar.nn.pretend_gpu import pretend_gpu
from mstar.nn.weights.sources import Weights
from mstar.requests import Sampling, SpeechRequest
from mstar.walk.states import KV
from tests.models.audio_outputs import assert_close, concat_audio, emitted_audio
from tests.models.on_device import audio_on_host, place, traffic_of
from tests.models.orpheus import orpheus_tiny as tiny
from tests.models.orpheus.test_orpheus import FILE, GREEDY, SPEECHES
from tests.models.transcripts import one_thread

SAMPLING = Sampling(max_tokens=21, temperature=0.6, top_p=0.8, repetition_penalty=1.3, seed=11)
SPOKEN = Sampling(max_tokens=45, temperature=0.6, top_p=0.8, repetition_penalty=1.3)
SPEECH = SpeechRequest("Good morning.", seed=5)
MAX_WAITS, MAX_COPIES = 2, 3


@pytest.fixture(scope="module", autouse=True)
def single():
    with one_thread(), torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return tiny.save(tmp_path_factory.mktemp("orpheus"))


def write(saved, device):
    lm = Orpheus(*saved).lm
    assert type(lm) is LanguageModel
    lm.device = device
    tokens, kv, codes = lm.prompt("Hm?", "zac"), lm.make_state(KV), []
    for _ in range(SAMPLING.max_tokens):
        tokens = lm.next_token(tokens, kv, SAMPLING)
        codes.append(int(lm.token_to_code(tokens)))
    assert device is None or lm.decoder.device == device
    return codes


def test_the_codes_are_those_of_the_cpu(saved):
    assert write(saved, pretend_gpu()) == write(saved, None)


@pytest.mark.parametrize("use_published_decoder", [False, True])
def test_the_audio_is_that_of_the_cpu(saved, use_published_decoder):
    audio = [
        audio_on_host(put(Orpheus(*saved, sampling=SPOKEN, use_published_decoder=use_published_decoder)).run(SPEECH))
        for put in (place, lambda model: model)
    ]
    assert_close(*audio)


def columns(states, first, count, fresh, *, is_last=False):
    """Windows of 28 codes, of one stream per state."""
    windows = [
        torch.randint(4096, (count,), generator=torch.Generator().manual_seed(row)) for row in range(len(states))
    ]
    ended = torch.tensor([END_OF_CODES] if is_last else [], dtype=torch.int64)
    rows = [torch.cat([codes[first : first + 28], ended])[:, None] for codes in windows]
    return {"codes": rows, "fresh": [fresh] * len(states), "past": states, "seed": list(range(len(states)))}


@pytest.mark.parametrize("streams", [1, 8])
def test_a_step_of_the_codec_seldom_waits_for_the_device(saved, streams):
    decoded = []
    for device in (pretend_gpu(), None):
        snac = Snac(Weights(saved[1]))
        snac.device = device
        states = [CodecStreamState() for _ in range(streams)]
        first, *_ = traffic_of(snac, "decode_next", columns(states, 0, 42, 28))
        step, waits, copies = traffic_of(snac, "decode_next", columns(states, 7, 42, 7))
        assert waits <= MAX_WAITS
        assert copies <= MAX_COPIES
        moved = [
            snac.load_state(CodecStreamState, {name: kept.cpu() for name, kept in state.export().items()})
            for state in states
        ]
        last, *_ = traffic_of(snac, "decode_next", columns(moved, 14, 42, 8, is_last=True))
        decoded.append(
            [np.concatenate([part.cpu() for (part,) in parts]) for parts in zip(first, step, last, strict=True)]
        )
    for ours, expected in zip(*decoded, strict=True):
        assert_close(ours, expected)


PLACEMENT = """
[place]
lm = "gpu0"
snac = "gpu1"

[workers.gpu0]
device = "pretend"

[workers.gpu1]
device = "pretend"
"""


@pytest.mark.nightly
@pytest.mark.timeout(120)
def test_workers_with_devices_give_the_audio_of_the_cpu(saved, tmp_path):
    file = tmp_path / "orpheus_here.py"
    file.write_text(FILE.format(lm=saved[0], snac=saved[1]))
    with LocalLauncher({"orpheus": str(file)}, {"orpheus": PLACEMENT}, standby=False) as deployment:
        audio = emitted_audio(deployment, "orpheus", SPEECHES)
        assert not deployment.recent_exits
    model = Orpheus(*saved, sampling=GREEDY)
    for actual, speech in zip(audio, SPEECHES, strict=True):
        assert_close(actual, concat_audio(model.run(speech).emissions))

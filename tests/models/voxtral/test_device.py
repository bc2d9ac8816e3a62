"""Voxtral on a pretend GPU writes what transformers writes on the CPU."""

import pytest

from mstar.models.voxtral.voxtral import Voxtral
from mstar.nn.pretend_gpu import pretend_gpu
from mstar.testing.local_runtime import LocalRuntime
from tests.models.on_device import is_on_device, place, weights_device
from tests.models.transcripts import one_thread
from tests.models.voxtral import voxtral_tiny as tiny
from tests.models.voxtral.test_voxtral import tokens_of, uncaptured

NAMES = ["text", "several", "turns"]
REQUESTS = [tiny.REQUESTS[name] for name in NAMES]


@pytest.fixture(scope="module", autouse=True)
def single():
    with one_thread():
        yield


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return tiny.save(tmp_path_factory.mktemp("voxtral"))


@pytest.fixture(scope="module")
def expected(saved):
    reference = tiny.Reference(saved)
    return [reference.write(name) for name in NAMES]


@pytest.mark.parametrize("names", [("audio_encoder", "lm"), ("audio_encoder",), ("lm",)], ids="+".join)
def test_the_tokens_are_those_of_the_cpu(saved, expected, names):
    model = uncaptured(place(Voxtral(saved), *names))
    outcomes = LocalRuntime(model, max_batched_tokens=60, seed=1).run_all(REQUESTS)
    assert [tokens_of(outcome) for outcome in outcomes] == expected
    devices = {"lm": model.lm.decoder.device, "audio_encoder": weights_device(model.audio_encoder.network)}
    assert {name for name, device in devices.items() if device == pretend_gpu()} == {*names}
    cached = [*model.audio_encoder.cache._entries.values()]
    assert len(cached) == 2  # different windows
    assert all(is_on_device(value) == ("audio_encoder" in names) for value in cached)

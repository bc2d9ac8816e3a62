"""CSM on a pretend GPU: the codes and the audio of the CPU."""

from dataclasses import replace

import pytest
import torch

from mstar.models.csm.csm import DEFAULT_SAMPLING, Csm
from mstar.requests import Sampling, SpeechRequest
from mstar.walk.states import KV
from tests.models.audio_outputs import assert_close
from tests.models.csm import csm_tiny as tiny
from tests.models.on_device import audio_on_host, place, traffic_of
from tests.models.transcripts import one_thread

GREEDY = Sampling(max_tokens=9)
DRAWN = replace(DEFAULT_SAMPLING, max_tokens=9)
MAX_WAITS, MAX_COPIES = 2, 3


@pytest.fixture(scope="module", autouse=True)
def single():
    with one_thread(), torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    saved = tiny.save(tmp_path_factory.mktemp("csm"))
    return place(Csm(saved)), Csm(saved)


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_the_audio_is_that_of_the_cpu(models, sampling, monkeypatch):
    for model in models:
        monkeypatch.setattr(model, "sampling", sampling)
    assert_close(*(audio_on_host(model.run(SpeechRequest("w20 w21 w22", "3", seed=3))) for model in models))


def steps(model, rows, sampling):
    """Frames of several requests in a batch, and the traffic of the last step of both components."""
    backbone, depth_decoder = model.backbone, model.depth_decoder
    kvs, samplings = (
        [backbone.make_state(KV) for _ in range(rows)],
        [replace(sampling, seed=row) for row in range(rows)],
    )
    inputs = [backbone.prompt(f"w{20 + row} w9", "0", sampling) for row in range(rows)]
    traffic, frames = {}, []
    for step in range(4):
        columns = {"embeddings": inputs, "kv": kvs, "sampling": samplings}
        results, *traffic["backbone"] = traffic_of(backbone, "first_code", columns)
        codes, hidden = map(list, zip(*results, strict=True))
        columns = {"code": codes, "hidden_state": hidden, "sampling": samplings, "step": [step] * rows}
        results, *traffic["depth_decoder"] = traffic_of(depth_decoder, "predict_frame", columns)
        frame, inputs = map(list, zip(*results, strict=True))
        frames.append(torch.stack(frame))
    return torch.stack(frames), traffic


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_a_frame_seldom_waits_for_the_device(models, rows, sampling):
    (frames, traffic), (expected, _) = (steps(model, rows, sampling) for model in models)
    assert torch.equal(frames, expected)
    for name, (waits, copies) in traffic.items():
        assert waits <= MAX_WAITS, name
        assert copies <= MAX_COPIES, name

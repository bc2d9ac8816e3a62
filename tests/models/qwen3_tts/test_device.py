"""Qwen3-TTS on a pretend GPU: the codes of the reference, and the audio of the CPU."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from mstar.models.qwen3_tts.qwen3_tts import DEFAULT_SAMPLING, Qwen3Tts
from mstar.nn.audio.codec import CodecStreamState
from mstar.requests import Sampling, SpeechRequest
from mstar.walk.states import KV
from tests.models.audio_outputs import assert_close
from tests.models.on_device import audio_on_host, place, traffic_of
from tests.models.qwen3_tts import qwen3_tts_tiny as tiny
from tests.models.transcripts import one_thread

GREEDY = Sampling(max_tokens=9, repetition_penalty=1.05)
DRAWN = replace(DEFAULT_SAMPLING, max_tokens=9)
SPEECH = SpeechRequest("w20 w21 w22", "vivian", language="en", seed=3)
CLOSE = {"rtol": 0, "atol": 1e-5}
MAX_WAITS, MAX_COPIES = 2, 3


@pytest.fixture(scope="module", autouse=True)
def single():
    with one_thread(), torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    saved = tiny.save(tmp_path_factory.mktemp("qwen3_tts"))
    return place(Qwen3Tts(saved)), Qwen3Tts(saved)


@pytest.mark.parametrize("streams_text", [False, True])
@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_the_audio_is_that_of_the_cpu(models, streams_text, sampling, monkeypatch):
    for model in models:
        monkeypatch.setattr(model, "sampling", sampling)
        monkeypatch.setattr(model.talker, "_streams_text", streams_text)
    assert_close(*(audio_on_host(model.run(SPEECH)) for model in models))


def steps(model, rows, sampling):
    """Frames of several requests in a batch, and the traffic of the last step of each component."""
    talker, predictor, codec = model.talker, model.predictor, model.codec
    kvs, samplings = [talker.make_state(KV) for _ in range(rows)], [replace(sampling, seed=row) for row in range(rows)]
    states = [CodecStreamState() for _ in range(rows)]
    prompts = [talker.prompt(replace(SPEECH, text=f"w{20 + row} w9")) for row in range(rows)]
    inputs, counts, pads = [one[0] for one in prompts], [one[4] for one in prompts], [one[3] for one in prompts]
    traffic, frames, audio = {}, [], []
    for step in range(4):
        columns = {"embeddings": inputs, "code_counts": counts, "kv": kvs, "sampling": samplings}
        results, *traffic["talker"] = traffic_of(talker, "first_code", columns)
        codes, hidden, counts = map(list, zip(*results, strict=True))
        columns = {"code": codes, "hidden_state": hidden, "text": pads, "sampling": samplings, "step": [step] * rows}
        results, *traffic["predictor"] = traffic_of(predictor, "predict_frame", columns)
        frame, inputs = map(list, zip(*results, strict=True))
        frames.append(torch.stack(frame))
        results, *traffic["codec"] = traffic_of(
            codec, "decode", {"codes": [one[None] for one in frame], "state": states}
        )
        audio.append(np.stack([samples.cpu() for (samples,) in results]))
    return torch.stack(frames), np.concatenate(audio, 1), traffic


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_a_frame_seldom_waits_for_the_device(models, rows, sampling):
    (frames, audio, traffic), (expected, expected_audio, _) = (steps(model, rows, sampling) for model in models)
    assert torch.equal(frames, expected)
    np.testing.assert_allclose(audio, expected_audio, **CLOSE)
    for name, (waits, copies) in traffic.items():
        assert waits <= MAX_WAITS, name
        assert copies <= MAX_COPIES, name

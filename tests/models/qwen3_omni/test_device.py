"""Qwen3-Omni on a pretend GPU: text and speech of the CPU, for all media, and few waits per step."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from mstar.models.qwen3_omni.processor import Processor
from mstar.models.qwen3_omni.qwen3_omni import Qwen3Omni
from mstar.models.qwen3_omni.talker import CODE_SAMPLING
from mstar.nn.audio.codec import CodecStreamState
from mstar.nn.compile import graph_capture
from mstar.nn.compile.captured_forward import CapturedForward
from mstar.requests import AudioInput, ChatRequest, ImageInput, Message, Sampling, VideoInput
from mstar.walk.states import KV
from tests.models.audio_outputs import assert_close
from tests.models.on_device import audio_on_host, place, traffic_of
from tests.models.qwen3_omni import qwen3_omni_tiny as tiny
from tests.models.transcripts import one_thread

DRAWN = replace(CODE_SAMPLING, max_tokens=9)
GREEDY = Sampling(max_tokens=9, repetition_penalty=1.05)
RANDOM = np.random.default_rng(0)
SOUND = AudioInput(RANDOM.normal(0, 0.3, 32_999).astype(np.float32), 16_000)
PICTURE = ImageInput(RANDOM.integers(0, 255, (40, 60, 3), np.uint8))
CLIP = VideoInput(RANDOM.integers(0, 255, (15, 32, 48, 3), np.uint8), 5.0)
MAX_WAITS, MAX_COPIES = 2, 3


@pytest.fixture(scope="module", autouse=True)
def single():
    with one_thread(), torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """One on a pretend GPU and one on the CPU, with uncaptured networks: graph capture takes longer than the tests."""
    saved = tiny.save(tmp_path_factory.mktemp("omni"))

    def eager(network, **modes):
        assert not modes["is_int8"]
        return CapturedForward(graph_capture.eager_forward(network))

    made = place(Qwen3Omni(saved)), Qwen3Omni(saved)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph_capture, "flatten", eager)
        for model in made:
            for component in model.components().values():
                component.prepare_once()
    return made


def chat(*parts, temperature=0.0):
    sampling = Sampling(max_tokens=7, temperature=temperature, seed=4)
    return ChatRequest((Message("user", parts),), sampling, audio_output=True)


CHATS = {
    "text": (chat("Hello you."), GREEDY),
    "sampled": (chat("Hello you.", temperature=0.8), DRAWN),
    "media": (chat("Say ", PICTURE, SOUND, CLIP, " and tell."), GREEDY),
}


@pytest.mark.parametrize("name", CHATS)
def test_text_and_speech_are_those_of_the_cpu(models, name, monkeypatch):
    request, codes = CHATS[name]
    texts, sounds = [], []
    for model in models:
        monkeypatch.setattr(model, "code_sampling", codes)
        outcome = model.run(request)
        texts.append([int(one.value) for one in outcome.emissions if type(one).__name__ == "Text"])
        sounds.append(audio_on_host(outcome))
    assert texts[0] == texts[1]
    assert_close(*sounds)


def test_only_the_processor_stays_on_the_cpu(models):
    kinds = {type(one) for one in models[0].components().values() if not one.runs_on_device}
    assert kinds == {Processor}


def prompts(model, rows):
    """Talker prompts of several requests, with their thinker caches."""
    thinker, talker, made = model.thinker, model.talker, []
    for row in range(rows):
        tokens, offsets, sounds, _, indices, talker_offsets = model.processor.process(chat(f"Hi {row}", SOUND))
        kv, states = thinker.make_state(KV), [model.audio_encoder.spectrum(sound) for sound in sounds]
        sampling = Sampling(max_tokens=7, temperature=0.7, seed=row)
        embeddings = thinker.merge_embeddings(tokens, offsets, states, [])
        first, hidden = thinker.prefill(tokens, embeddings, kv, sampling)
        opening = thinker.opening_embeddings(first)
        prompt = talker.prompt(talker.project_prompt(tokens, hidden, indices), talker_offsets, opening, "ethan")
        made.append((first, kv, sampling, opening[0], prompt))
    return map(list, zip(*made, strict=True))


def steps(model, rows, sampling):
    """Tokens, frames and audio of several requests in a batch, and the traffic of the last step of each component."""
    tokens, thinker_kvs, thinker_samplings, texts, inputs = prompts(model, rows)
    kvs, samplings = [model.talker.make_state(KV) for _ in inputs], [replace(sampling, seed=row) for row in range(rows)]
    states, traffic, written, frames, audio = [CodecStreamState() for _ in inputs], {}, [], [], []
    columns = {"embeddings": inputs, "kv": kvs, "sampling": samplings}
    results, *_ = traffic_of(model.talker, "prefill", columns)
    for step in range(4):
        columns = {"tokens": tokens, "kv": thinker_kvs, "sampling": thinker_samplings}
        results_text, *traffic["thinker"] = traffic_of(model.thinker, "next_token", columns)
        tokens = [token for (token,) in results_text]
        written.append(torch.cat(tokens))
        codes, hidden = map(list, zip(*results, strict=True))
        columns = {"code": codes, "hidden_state": hidden, "sampling": samplings, "step": [step] * rows}
        results, *traffic["predictor"] = traffic_of(model.predictor, "predict_frame", columns)
        frame, embeddings = map(list, zip(*results, strict=True))
        frames.append(torch.stack(frame))
        windows = [one.expand(3 if step == 0 else 1, -1) for one in frame]
        decoded, *traffic["vocoder"] = traffic_of(model.vocoder, "decode", {"codes": windows, "state": states})
        audio.append(np.stack([samples.cpu() for (samples,) in decoded]))
        columns = {"code": codes, "frame_embedding": embeddings, "text": texts, "kv": kvs, "sampling": samplings}
        results, *traffic["talker"] = traffic_of(model.talker, "next_code", columns)
    return torch.stack(written), torch.stack(frames), np.concatenate(audio, 1), traffic


@pytest.mark.parametrize("swap_bytes", [1 << 30, 0], ids=["swapped", "recomputed"])
def test_evicted_caches_are_restored(models, swap_bytes, monkeypatch):
    written = []
    for model in models:
        thinker = model.thinker
        monkeypatch.setattr(thinker.decoder.store, "swap_bytes", swap_bytes)
        (first,), (kv,), (sampling,), _, _ = prompts(model, 1)
        second = thinker.next_token(first, kv, sampling)
        kv.evict()
        thinker.restore([kv])
        written.append([int(first), int(second), int(thinker.next_token(second, kv, sampling))])
    assert written[0] == written[1]


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_a_step_seldom_waits_for_the_device(models, rows, sampling):
    ours, expected = (steps(model, rows, sampling) for model in models)
    assert torch.equal(ours[0], expected[0])
    assert torch.equal(ours[1], expected[1])
    np.testing.assert_allclose(ours[2], expected[2], rtol=0, atol=1e-4)
    for name, (waits, copies) in ours[3].items():
        assert waits <= MAX_WAITS, name
        assert copies <= MAX_COPIES, name

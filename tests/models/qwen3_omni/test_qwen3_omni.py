"""Qwen3-Omni: text and speech equal those of transformers, for all media and placements."""

import functools
import shutil
import subprocess
import sys
import warnings
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from mstar import KV
from mstar.errors import LoadError
from mstar.graph import ir
from mstar.launch.local_launcher import LocalLauncher
from mstar.models.qwen3_omni.checkpoint import PARTS, Checkpoint
from mstar.models.qwen3_omni.qwen3_omni import Qwen3Omni, Qwen3Thinker
from mstar.nn.compile import graph_capture
from mstar.nn.lm.decoder import SlowPath
from mstar.plan.compile import plan
from mstar.plan.planned_model import PlannedModel
from mstar.requests import AudioInput, ChatRequest, Finish, ImageInput, Message, Sampling, VideoInput
from mstar.testing.local_runtime import LocalRuntime
from mstar.walk.component import Op
from tests.models.audio_outputs import assert_close, concat_audio, emitted_audio
from tests.models.concurrent_clients import in_process
from tests.models.qwen3_omni import qwen3_omni_tiny as tiny

FRAMES = 33
CODES = Sampling(max_tokens=FRAMES, repetition_penalty=1.05)
SHORT = Sampling(max_tokens=7)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return tiny.save(tmp_path_factory.mktemp("omni"))


@pytest.fixture(scope="module")
def recorded(saved):
    return Qwen3Omni(saved, code_sampling=CODES)


@pytest.fixture(scope="module")
def model(saved):
    return unrecorded(saved)


def unrecorded(saved):
    """A model with uncaptured networks: graph capture would take longer than these tests."""

    def refuse(_, **modes):
        raise RuntimeError(f"is not recorded, whatever the modes: {modes}")

    made = Qwen3Omni(saved, code_sampling=CODES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph_capture, "flatten", refuse)
        for part in (made.thinker, made.talker):
            with pytest.warns(SlowPath):
                part.prepare()
    return made


def chat(*parts, **more):
    return ChatRequest((Message("system", ("Be kind.",)), Message("user", parts)), SHORT, audio_output=True, **more)


def drawn(seed):
    return np.random.default_rng(seed)


SOUND = AudioInput(drawn(0).normal(0, 0.3, 32_999).astype(np.float32), 16_000)
LATER = AudioInput(drawn(1).normal(0, 0.2, 11_000).astype(np.float32), 8_000)
PICTURE = ImageInput(drawn(2).integers(0, 255, (40, 60, 3), np.uint8))
WIDE = ImageInput(drawn(3).integers(0, 255, (30, 70, 3), np.uint8))
CLIP = VideoInput(drawn(4).integers(0, 255, (15, 32, 48, 3), np.uint8), 5.0)
BEFORE = (Message("user", (PICTURE, "What is this?")), Message("assistant", ("A cat.",)))
CHATS = {
    "text": chat("Hello you."),
    "sound": chat("What?", SOUND, voice="chelsie"),
    "picture": chat("See ", PICTURE, " and tell."),
    "clip": chat("A film: ", CLIP, SOUND),
    "everything": ChatRequest((*BEFORE, Message("user", (LATER, WIDE, SOUND, "And now?"))), SHORT, audio_output=True),
}


@pytest.fixture(scope="module")
def expected(saved):
    """Text and audio of transformers for each request."""
    reference, reader = tiny.Reference(saved), Qwen3Omni(saved)

    @functools.cache
    def answer(name):
        chat = CHATS[name]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about the repetition penalty over generated codes
            return reference.speak(reader, chat, FRAMES, speaker=chat.voice or "Ethan")

    return answer


def text_of(emissions):
    return [int(one.value) for one in emissions if type(one).__name__ == "Text"]


def assert_right(outcome, expected):
    text, sound = expected
    assert text_of(outcome.emissions) == text
    assert_close(concat_audio(outcome.emissions), sound.numpy())


def test_text_and_speech_equal_transformers(model, expected):
    for name in ("text", "everything"):
        assert_right(model.run(CHATS[name]), expected(name))
    assert expected("text")[0] != expected("everything")[0]


def test_concurrent_requests_equal_single_requests(model, expected):
    names = ["text", "everything"] * 8
    with in_process("omni", model) as deployment:
        sounds = emitted_audio(deployment, "omni", [CHATS[name] for name in names], disconnects=4)
    for name, actual in zip(names, sounds, strict=True):
        assert_close(actual, expected(name)[1].numpy())


@pytest.mark.nightly
def test_captured_networks_give_the_same(recorded, expected):
    for name, one in CHATS.items():
        assert_right(recorded.run(one), expected(name))
    assert len({tuple(expected(name)[0]) for name in CHATS}) == len(CHATS), "the question does not matter"


# ---------------------------------------------------------------- without speech
SPEAKING = {"talker", "predictor", "vocoder"}


def test_a_text_answer_runs_no_talker(model, monkeypatch):
    ran, run = Counter(), Op.run
    monkeypatch.setattr(
        Op, "run", lambda op, one, *more, **others: ran.update([type(one).__name__]) or run(op, one, *more, **others)
    )
    outcome = model.run(replace(CHATS["picture"], audio_output=False))
    assert outcome.result == Finish("length", {"text": 37, "image": 8})
    assert set(ran) == {"Processor", "VisionEncoder", "Thinker"}
    assert ran["Thinker"] > SHORT.max_tokens


def test_a_deployment_without_speech_has_no_talker(saved):
    def used(model):
        calls = [one for graph in model.graphs().values() for one in ir.flat(graph.body) if isinstance(one, ir.Call)]
        return {one.component for one in calls}

    assert used(Qwen3Omni(saved)) == used(Qwen3Thinker(saved)) | SPEAKING
    deployed = PlannedModel(Qwen3Thinker(saved), plan(Qwen3Thinker(saved).graphs()))
    assert {*deployed.components_at(*deployed.plans.workers)} == {
        "processor",
        "audio_encoder",
        "vision_encoder",
        "thinker",
    }
    with pytest.raises(NotImplementedError, match="this model does not speak\n  fix: "):
        Qwen3Thinker(saved).run(CHATS["text"])


@pytest.mark.nightly
def test_bfloat16_weights_are_supported(saved, tmp_path):
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    tiny.Reference(saved).network.to(torch.bfloat16).save_pretrained(tmp_path)
    sound = concat_audio(unrecorded(str(tmp_path)).run(CHATS["everything"]).emissions)
    assert sound.dtype == np.float32
    assert sound.std() > 0.01


@pytest.mark.slow
def test_a_part_is_loaded_alone(saved):
    names = {part: {*Checkpoint(saved).network(part).state_dict()} for part in PARTS}
    whole = {*tiny.Reference(saved).network.state_dict()}
    assert set().union(*names.values()) == {name for name in whole if ".code_predictor." not in name}
    assert sum(map(len, names.values())) == len(set().union(*names.values()))


def test_it_is_traced_without_its_libraries():
    code = """
import sys
from mstar.models.qwen3_omni.qwen3_omni import Qwen3Omni
assert Qwen3Omni().graphs()
print([name for name in ("torch", "transformers", "numpy", "tokenizers") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# ---------------------------------------------------------------- talker cache
def test_a_preempted_talker_gives_the_same_codes(model):
    draw, decoder = torch.Generator().manual_seed(3), model.talker.decoder
    given = torch.randn((9, decoder.embed(torch.tensor([0])).shape[1]), generator=draw)
    frame_embeddings, texts = (torch.randn((12, size), generator=draw) for size in (given.shape[1] - 3, 32))

    def decode_speech(is_dropped):
        kv = model.talker.make_state(KV)
        code, thought = model.talker.prefill(given, kv, CODES)
        codes = [int(code)]
        for frame, text in zip(frame_embeddings, texts, strict=True):
            if is_dropped:
                kv.evict()
                decoder.restore([kv])
            code, thought = model.talker.next_code(code, frame, text, kv, CODES)
            codes.append(int(code))
        return codes, thought

    codes, thought = decode_speech(is_dropped=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoder.store, "swap_bytes", 0)
        again, thought_again = decode_speech(is_dropped=True)
    assert codes == again
    assert len(set(codes)) > 3
    torch.testing.assert_close(thought_again, thought, rtol=0, atol=1e-4)


def test_the_seed_determines_the_speech(model, monkeypatch):
    monkeypatch.setattr(model, "code_sampling", replace(CODES, temperature=0.9, top_k=50))
    seeds = [replace(CHATS["text"], sampling=replace(SHORT, seed=seed)) for seed in (1, 1, 2)]
    first, again, other = (concat_audio(model.run(one).emissions) for one in seeds)
    np.testing.assert_array_equal(first, again)
    assert first.shape != other.shape or np.abs(first - other).max() > 1e-2


# ---------------------------------------------------------------- prompts and errors
def test_text_that_looks_like_a_special_token_stays_text(model):
    tokens = model.processor.process(chat("<|im_end|>", "<|audio_pad|>"))[0].tolist()
    assert sum(token >= tiny.IDS["<|im_start|>"] for token in tokens) == 2 + 2 + 1
    assert model.detokenize(tokens).count("<|audio_pad|>") == 1


def test_an_answer_ends_at_a_stop_string(model, expected):
    text = expected("text")[0]
    stopping = replace(SHORT, stop_token_ids=(text[3],))
    outcome = model.run(replace(CHATS["text"], sampling=stopping, audio_output=False))
    assert text_of(outcome.emissions) == text[: text.index(text[3])]
    assert outcome.result.finish_reason == "stop"


def test_an_empty_answer_is_silent(model, expected):
    stopping = replace(SHORT, stop_token_ids=(expected("text")[0][0],))
    assert model.run(replace(CHATS["text"], sampling=stopping)).emissions == []


def test_unsupported_requests_are_rejected(model, tmp_path):
    assert set(model.voices()) == {"ethan", "chelsie"}
    with pytest.raises(NotImplementedError, match=r"unknown voice .*\n  fix: use one of `chelsie`, `ethan`"):
        model.run(replace(CHATS["text"], voice="emma"))
    with pytest.raises(NotImplementedError, match=r"a message of role assistant has media[\s\S]*\n  fix: "):
        model.run(ChatRequest((Message("assistant", (PICTURE,)),)))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(LoadError, match="names no voices\n  fix: "):
        Qwen3Omni(str(tmp_path)).voices()


# ---------------------------------------------------------------- placements
@pytest.mark.nightly
def test_chunked_prefill_gives_the_same(recorded, expected):
    outcomes = LocalRuntime(recorded, None, max_batched_tokens=9, seed=3).run_all([*CHATS.values()])
    for outcome, name in zip(outcomes, CHATS, strict=True):
        assert_right(outcome, expected(name))


FILE = """
from mstar.models.qwen3_omni.qwen3_omni import Qwen3Omni
from mstar.requests import Sampling


class Tiny(Qwen3Omni):
    def __init__(self):
        super().__init__({saved!r}, code_sampling=Sampling(max_tokens={frames}, repetition_penalty=1.05))
"""
THINKER_PARTS, TALKER_PARTS = ("processor", "audio_encoder", "vision_encoder", "thinker"), ("talker", "predictor")
PLACES = {
    "one": dict.fromkeys((*THINKER_PARTS, *TALKER_PARTS, "vocoder"), '"a"'),
    "apart": {**dict.fromkeys(THINKER_PARTS, '"a"'), **dict.fromkeys(TALKER_PARTS, '"b"'), "vocoder": '"c"'},
    "replicas": {**dict.fromkeys((*THINKER_PARTS, *TALKER_PARTS), '"b"'), "vocoder": '["a", "c"]'},
}
"""One worker; one worker per component; two vocoders. All three on the same three workers."""


@pytest.mark.nightly
@pytest.mark.timeout(180)
def test_processes_equal_transformers_under_any_placement(saved, expected, tmp_path):
    file = tmp_path / "omni_here.py"
    file.write_text(FILE.format(saved=saved, frames=FRAMES))
    texts = {name: "[place]\n" + "\n".join(map(" = ".join, places.items())) for name, places in PLACES.items()}
    names = ["text", "sound", "picture", "everything"] * 4
    with LocalLauncher(dict.fromkeys(PLACES, str(file)), texts, standby=False) as deployment:
        for place in PLACES:
            sounds = emitted_audio(deployment, place, [CHATS[name] for name in names], disconnects=6)
            for name, actual in zip(names, sounds, strict=True):
                assert_close(actual, expected(name)[1].numpy())
        assert not deployment.recent_exits

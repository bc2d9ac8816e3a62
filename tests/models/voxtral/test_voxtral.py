"""Voxtral: answers and transcripts equal those of transformers, alone, in batches, in chunks and in any placement."""

import io
import json
import os
import shutil
import wave
from base64 import b64encode
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soxr
import torch
from openai import BadRequestError, OpenAI

from mstar.cli.main import main
from mstar.cli.prove.proof import Proof
from mstar.cli.prove.subject import Subject
from mstar.errors import LoadError, NeverFits, Unsupported
from mstar.models.voxtral.checkpoint import PARTS, Checkpoint
from mstar.models.voxtral.voxtral import Voxtral
from mstar.nn.compile import graph_capture
from mstar.nn.encoder import TenantState
from mstar.nn.lm.decoder import SlowPath
from mstar.requests import (
    AudioInput,
    ChatRequest,
    Finish,
    ImageInput,
    Message,
    Segment,
    Tool,
    ToolCall,
    Transcript,
    TranscriptionRequest,
)
from mstar.testing.local_runtime import LocalRuntime
from tests.cli.test_serve import start_server, wait_ready
from tests.integration.deployment_clients import add_frontend
from tests.models.concurrent_clients import emitted_values, in_process, in_processes, run_clients
from tests.models.transcripts import one_thread
from tests.models.voxtral import voxtral_tiny as tiny

LOCAL_STAGES = ["walks", "repeats", "reference", "schedules", "batches", "states"]
NAMES = [*tiny.REQUESTS]
REQUESTS = [*tiny.REQUESTS.values()]


@pytest.fixture(scope="module", autouse=True)
def single():
    with one_thread():
        yield


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return tiny.save(tmp_path_factory.mktemp("voxtral"))


@pytest.fixture(scope="module")
def reference(saved):
    return tiny.Reference(saved)


@pytest.fixture(scope="module")
def expected(reference):
    """Tokens of transformers for each request."""
    return [reference.write(name) for name in NAMES]


@pytest.fixture
def model(saved):
    return uncaptured(Voxtral(saved))


def uncaptured(model):
    """A model whose networks are not captured: graph capture would take longer than these tests."""

    def refuse(_, **modes):
        raise RuntimeError(f"is not captured, whatever the modes: {modes}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph_capture, "flatten", refuse)
        with pytest.warns(SlowPath):
            model.lm.prepare()
    return model


def tokens_of(outcome):
    return [int(one.value) for one in outcome.emissions]


def prompt_of(model, request):
    """Tokens and windows of a request."""
    make = model.processor.chat_prompt if isinstance(request, ChatRequest) else model.processor.transcription_prompt
    return make(request)[:2]


# ---------------------------------------------------------------- equal to the reference
def test_answers_and_transcripts_equal_transformers(model, expected):
    for request, tokens in zip(REQUESTS, expected, strict=True):
        assert tokens_of(model.run(request)) == tokens
    assert len({tuple(tokens) for tokens in expected}) == len(expected), "the requests do not matter"


@pytest.mark.parametrize("name", NAMES)
def test_prompts_equal_mistral_common(saved, reference, name):
    assert prompt_of(Voxtral(saved), tiny.REQUESTS[name])[0].tolist() == reference.prompts[name]


def test_features_equal_those_of_the_library(saved, reference):
    model = Voxtral(saved)
    for request in (tiny.CHATS["several"], tiny.CHATS["long"], tiny.TRANSCRIPTIONS["long transcript"]):
        windows, features = prompt_of(model, request)[1], reference.features(tiny.sounds_of(request))
        assert torch.equal(torch.stack(windows), features)
    assert [len(prompt_of(model, tiny.chat(tiny.sound(1, s)))[1]) for s in (0.001, 2, 2.001, 5.5)] == [1, 1, 2, 3]


def test_audio_of_another_rate_is_resampled(saved, reference):
    sound = tiny.sound(3, 1.5, 44_100)
    samples = soxr.resample(sound.samples, 44_100, tiny.RATE)
    (window,) = prompt_of(Voxtral(saved), TranscriptionRequest(sound))[1]
    assert torch.equal(window, reference.features([AudioInput(samples, tiny.RATE)])[0])


def test_windows_of_30_s_equal_transformers(tmp_path):
    folder = tiny.save(tmp_path, window_s=30)
    reference, sound = tiny.Reference(folder, 30), tiny.sound(8, 31.0)
    model = uncaptured(Voxtral(folder))
    request = tiny.chat(sound, steps=3)
    tokens, windows = prompt_of(model, request)
    assert torch.equal(torch.stack(windows), reference.features([sound]))
    assert (tokens == tiny.IDS["[AUDIO]"]).sum() == 2 * 375
    assert tokens_of(model.run(request)) == reference.generate(tokens.tolist(), [sound], 3)


def test_an_answer_ends_with_the_end_token(tmp_path):
    folder = tiny.save(tmp_path, ends=True)
    reference, model = tiny.Reference(folder), uncaptured(Voxtral(folder))
    request = tiny.chat(tiny.sound(1), "what is the word?", steps=200)
    outcome = model.run(request)
    assert tokens_of(outcome) == reference.generate(reference.prompts["audio"], [tiny.sound(1)], 200)
    assert outcome.result == Finish("stop", {"text": 17, "audio": 25})
    assert len(outcome.emissions) < 200


# ---------------------------------------------------------------- results
def test_finish_reason_and_usage_are_reported(model):
    assert model.run(tiny.CHATS["several"]).result == Finish("length", {"text": 12, "audio": 75})
    assert model.run(tiny.CHATS["text"]).result == Finish("length", {"text": 15})


def test_a_transcript_is_one_segment(model, expected):
    text = model.detokenize(expected[NAMES.index("long transcript")]).strip()
    result = model.run(tiny.TRANSCRIPTIONS["long transcript"]).result
    assert result == Transcript(text, (Segment(0.0, 4.1, text),), "fr", 4.1)
    assert text


def test_the_temperature_of_a_transcription_is_used(model):
    greedy, sampled = (
        tokens_of(model.run(replace(tiny.TRANSCRIPTIONS["plain"], temperature=temperature))) for temperature in (0, 1)
    )
    assert len(greedy) == len(sampled) == 25
    assert greedy != sampled


def test_a_part_is_loaded_alone(saved, reference):
    names = {part: {*Checkpoint(saved).network(part).state_dict()} for part in PARTS}
    assert names["audio_encoder"] | names["lm"] == {*reference.network.state_dict()}
    assert not names["audio_encoder"] & names["lm"]


def test_weights_in_bfloat16_give_the_embeddings_of_transformers(reference, tmp_path):
    folder = tiny.save(tmp_path)
    tiny.Reference(folder).network.to(torch.bfloat16).save_pretrained(folder)
    library, ours = tiny.Reference(folder).network, Voxtral(folder).audio_encoder.network
    dtypes = {parameter.dtype for parameter in ours.parameters()}
    assert dtypes == {torch.bfloat16, torch.float32}, "positions stay in float32"
    features = reference.features([tiny.sound(1)])
    with torch.inference_mode():
        embeddings = [network.get_audio_features(features).pooler_output for network in (library, ours)]
    assert torch.equal(*embeddings)


def test_a_tokenizer_of_transformers_is_read_too(saved, tmp_path, reference):
    folder = Path(shutil.copytree(saved, tmp_path / "other"))
    Checkpoint(saved).tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tekken.json").unlink()
    assert prompt_of(Voxtral(str(folder)), tiny.CHATS["long"])[0].tolist() == reference.prompts["long"]


# ---------------------------------------------------------------- caches
class Work:
    """Number of encoded windows and of prefilled positions."""

    def __init__(self, model, monkeypatch):
        self.windows = self.positions = 0
        encode, forward = model.audio_encoder._hidden, model.lm.decoder._forward

        def counted_windows(batch):
            self.windows += len(batch)
            return encode(batch)

        def counted_positions(embeddings, positions, last):
            self.positions += embeddings.shape[1]
            return forward(embeddings, positions, last)

        monkeypatch.setattr(model.audio_encoder, "_hidden", counted_windows)
        monkeypatch.setattr(model.lm.decoder, "_forward", counted_positions)


def test_questions_about_the_same_audio_encode_and_prefill_it_once(model, monkeypatch):
    work = Work(model, monkeypatch)
    questions = [tiny.chat(tiny.sound(6, 5.5), f"what is {number}?", steps=1) for number in range(4)]
    for question in questions:
        model.run(question)
    length = len(prompt_of(model, questions[0])[0])
    assert work.windows == 3
    assert work.positions < length + 3 * 20, "the audio was read again"


def test_a_conversation_without_audio_encodes_nothing(model, monkeypatch):
    work = Work(model, monkeypatch)
    model.run(tiny.CHATS["text"])
    assert work.windows == 0
    assert work.positions == 15 + 12


def test_cached_audio_is_not_shared_between_tenants(model, monkeypatch):
    work, did = Work(model, monkeypatch), []
    with in_process("voxtral", model) as deployment:
        front_end = add_frontend(deployment)
        for tenant in ("a", "b", "a", "b"):
            before = work.windows
            assert len(list(front_end.open_stream("voxtral", tiny.CHATS["audio"], tenant=tenant))) == 9
            did.append(work.windows - before)
    assert did == [1, 1, 0, 0]


# ---------------------------------------------------------------- refused
REFUSED = {
    "has the role assistant": ChatRequest((Message("assistant", ("a",)),)),
    "has the role none": ChatRequest(()),
    "system messages beside audio": ChatRequest((Message("system", ("a",)), Message("user", (tiny.sound(1),)))),
    "is not of the user": ChatRequest((Message("assistant", (tiny.sound(1),)), Message("user", ("a",)))),
    "unsupported part ImageInput": tiny.chat(ImageInput(np.zeros((8, 8, 3), np.uint8))),
    "calls no tools": replace(tiny.CHATS["text"], tools=(Tool("f", "", {}),)),
    "no tools and no messages of them": ChatRequest((Message("tool", ("a",)), Message("user", ("a",)))),
    "send no tools": ChatRequest((Message("assistant", (), (ToolCall("", "f", "{}"),)), Message("user", ("a",)))),
    "does not speak": replace(tiny.CHATS["text"], audio_output=True),
    "has no samples": tiny.chat(AudioInput(np.zeros(0, np.float32), tiny.RATE)),
    "without translation": replace(tiny.TRANSCRIPTIONS["plain"], is_translation=True),
    "translation, prompt": replace(tiny.TRANSCRIPTIONS["plain"], prompt="a"),
    "times of words": replace(tiny.TRANSCRIPTIONS["plain"], word_timestamps=True),
    "language is 'english', expected": replace(tiny.TRANSCRIPTIONS["plain"], language="english"),
}


@pytest.mark.parametrize("message", REFUSED)
def test_unsupported_requests_are_rejected(saved, message):
    with pytest.raises(Unsupported, match=rf"{message}[^\n]*(\n  fix: .*)?$"):
        Voxtral(saved).run(REFUSED[message])


def test_text_above_the_bound_exceeds_the_context(saved):
    model = Voxtral(saved)
    limit = model.max_text_bytes()
    assert limit == 2048 * max(map(len, model.checkpoint.tokenizer.get_vocab()))
    with pytest.raises(NeverFits, match="the context holds 2048\n  fix: send less audio or text"):
        model.run(tiny.chat("x" * (limit + 1)))
    with pytest.raises(NeverFits):
        model.run(TranscriptionRequest(tiny.sound(1, 170.0)))


def test_text_that_looks_like_a_special_token_stays_text(saved):
    tokens = prompt_of(Voxtral(saved), tiny.chat("[AUDIO]</s>"))[0].tolist()
    assert [token for token in tokens if token < len(tiny.NAMES)] == [1, 3, 4]


@pytest.mark.filterwarnings("ignore:At least one mel filter")
def test_a_tokenizer_or_spectrogram_of_another_model_is_refused(saved, tmp_path):
    folder = Path(shutil.copytree(saved, tmp_path / "other"))
    tokenizer = json.loads((folder / "tekken.json").read_text())
    tokenizer["special_tokens"][tiny.IDS["[TRANSCRIBE]"]]["token_str"] = "<SPECIAL_34>"
    (folder / "tekken.json").write_text(json.dumps(tokenizer))
    with pytest.raises(LoadError, match=r"the tokenizer has no token \[TRANSCRIBE\]\n  fix: use the tekken.json"):
        Voxtral(str(folder)).processor.prepare()
    extractor = json.loads((folder / "preprocessor_config.json").read_text()) | {"sampling_rate": 8000}
    (folder / "preprocessor_config.json").write_text(json.dumps(extractor))
    with pytest.raises(LoadError, match="reads 8000 Hz, expected 16000\n  fix: "):
        Voxtral(str(folder)).processor.prepare()


# ---------------------------------------------------------------- several requests
@pytest.mark.parametrize("budget", [None, 30])
def test_requests_in_batches_and_chunks_equal_single_requests(model, expected, budget):
    outcomes = LocalRuntime(model, max_batched_tokens=budget, seed=1).run_all(REQUESTS)
    assert [tokens_of(outcome) for outcome in outcomes] == expected


def test_windows_in_a_batch_equal_single_windows(model, reference):
    request = tiny.CHATS["long"]
    features = [*reference.features(tiny.sounds_of(request))]
    owners = [model.audio_encoder.make_state(TenantState) for _ in features]
    together = model.audio_encoder.ops()["encode"].run(
        model.audio_encoder, {"features": features, "owner": owners}, len(features)
    )
    with torch.inference_mode():
        alone = [reference.network.get_audio_features(one[None]).pooler_output for one in features]
    for (actual,), one in zip(together, alone, strict=True):
        assert torch.equal(actual, one)


def test_concurrent_requests_equal_single_requests(model, expected):
    with in_process("voxtral", model) as deployment:
        clients = run_clients(deployment, "voxtral", REQUESTS, disconnects=4, within_s=0.1)
    assert [[*map(int, emitted_values(client, "Text"))] for client in clients] == expected


@pytest.mark.slow
def test_captured_networks_give_the_same_with_chunked_prefill(saved, expected):
    captured = Voxtral(saved)
    for budget in (None, 9, 60):
        outcomes = LocalRuntime(captured, None, max_batched_tokens=budget, seed=3).run_all(REQUESTS)
        assert [tokens_of(outcome) for outcome in outcomes] == expected


PLACES = {
    "one": {"audio_encoder": '"a"', "processor": '"a"', "lm": '"a"'},
    "apart": {"audio_encoder": '"a"', "processor": '"b"', "lm": '"b"'},
    "two_audio_encoders": {"audio_encoder": '["a", "c"]', "processor": '"b"', "lm": '"b"'},
}


@pytest.mark.nightly
@pytest.mark.timeout(180)
@pytest.mark.parametrize("place", PLACES)
def test_processes_equal_transformers_under_any_placement(saved, expected, place):
    with in_processes("voxtral", f"voxtral@{saved}", PLACES[place]) as deployment:
        clients = run_clients(deployment, "voxtral", REQUESTS, disconnects=4)
    assert [[*map(int, emitted_values(client, "Text"))] for client in clients] == expected


# ---------------------------------------------------------------- proof
FILE = """
from mstar.models.voxtral.voxtral import Voxtral
from tests.models.voxtral import voxtral_tiny as tiny

NAMES = ["audio", "language", "turns", "text", "long transcript"]


class Here(Voxtral):
    def __init__(self):
        super().__init__({weights!r})


def requests():
    return [tiny.REQUESTS[name] for name in NAMES]


def reference(request):
    (name,) = (name for name in NAMES if tiny.REQUESTS[name] is request)
    return [[token] for token in tiny.Reference({weights!r}).write(name)]  # an emission is a tensor with one token
"""


@pytest.fixture
def file(saved, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]), prepend=os.pathsep)  # workers import tests
    path = tmp_path / "voxtral_here.py"
    path.write_text(FILE.format(weights=saved))
    return path


@pytest.mark.slow
def test_all_stages_of_a_proof_in_this_process_pass(file):
    stages = Proof(Subject(str(file)), schedules=2).run()
    results = [next(stages) for _ in LOCAL_STAGES]
    assert [(result.name, result.state) for result in results] == [(name, "ok") for name in LOCAL_STAGES]


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_it_is_proven(file, capsys):
    assert main(["prove", str(file), "--schedules", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["proven"]


# ---------------------------------------------------------------- over HTTP
def wav(samples):
    """A file of 16-bit samples, and what a decoder reads from it."""
    pcm, file = np.round(samples * 32767).astype("<i2"), io.BytesIO()
    with wave.open(file, "wb") as written:
        written.setparams((1, 2, tiny.RATE, 0, "NONE", ""))
        written.writeframes(pcm.tobytes())
    return file.getvalue(), AudioInput((pcm / np.float32(32768)).astype(np.float32), tiny.RATE)


@pytest.mark.nightly
@pytest.mark.timeout(120)
def test_a_folder_is_served_over_http(saved, reference):
    data, sound = wav(tiny.sound(1).samples)
    audio = {"type": "input_audio", "input_audio": {"data": b64encode(data).decode(), "format": "wav"}}
    message = {"role": "user", "content": [audio, {"type": "text", "text": "what is the word?"}]}
    with start_server(saved, "--name", "voxtral") as (process, url):
        wait_ready(process)
        client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)
        transcribe = client.audio.transcriptions.create
        texts = [
            transcribe(model="voxtral", file=("a.wav", data), **options).text
            for options in ({}, {"language": "en"}, {"response_format": "verbose_json"})
        ]
        answer = client.chat.completions.create(model="voxtral", messages=[message], max_tokens=9)
        with pytest.raises(BadRequestError, match="transcribes without translation, prompt and times of words"):
            transcribe(model="voxtral", file=("a.wav", data), prompt="names")
    decode = Checkpoint(saved).tokenizer.decode
    plain, english = (
        decode(reference.generate(reference.prompts[name], [sound], 25)).strip() for name in ("plain", "language")
    )
    assert texts == [plain, english, plain]
    assert answer.choices[0].message.content == decode(reference.generate(reference.prompts["audio"], [sound], 9))
    assert answer.usage.prompt_tokens_details.audio_tokens == 25

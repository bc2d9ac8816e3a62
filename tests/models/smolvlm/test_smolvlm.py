"""SmolVLM: answers equal those of transformers, for all images and placements."""

import json
import shutil
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from mstar.errors import LoadError, NeverFits
from mstar.launch.local_launcher import LocalLauncher
from mstar.models.smolvlm.checkpoint import PARTS, Checkpoint
from mstar.models.smolvlm.smolvlm import SmolVlm, SmolVlmText
from mstar.nn.compile import graph_capture
from mstar.nn.lm.decoder import SlowPath
from mstar.plan.compile import plan
from mstar.plan.planned_model import PlannedModel
from mstar.requests import ChatRequest, Finish, Grammar, ImageInput, Message, Sampling, VideoInput
from mstar.testing.local_runtime import LocalRuntime
from mstar.walk.component import Op
from tests.integration.deployment_clients import add_frontend
from tests.models.concurrent_clients import emitted_values, in_process, run_clients
from tests.models.smolvlm import smolvlm_tiny as tiny


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return tiny.save(tmp_path_factory.mktemp("smolvlm"))


@pytest.fixture(scope="module")
def reference(saved):
    return tiny.Reference(saved)


@pytest.fixture
def model(saved):
    return unrecorded(SmolVlm(saved))


def unrecorded(model):
    """A model with uncaptured networks: graph capture would take longer than these tests."""

    def refuse(_, **modes):
        raise RuntimeError(f"is not recorded, whatever the modes: {modes}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph_capture, "flatten", refuse)
        with pytest.warns(SlowPath):
            model.lm.prepare()
    return model


def picture(seed, height, width):
    return ImageInput(np.random.default_rng(seed).integers(0, 255, (height, width, 3), np.uint8))


def chat(*parts, steps=9, **sampling):
    return ChatRequest((Message("user", parts),), Sampling(max_tokens=steps, **sampling))


WIDE, TALL, SMALL, SQUARE, LONG = (
    picture(seed, *size) for seed, size in enumerate([(40, 60), (70, 30), (20, 20), (64, 64), (100, 31)])
)
BEFORE = (
    Message("system", ("Be kind.",)),
    Message("user", (WIDE, "What is a this?")),
    Message("assistant", ("A cat.",)),
)
CHATS = {
    "words": chat("Hello you.", steps=12),
    "one": chat(WIDE, "What is a this?"),
    "two": chat("See ", TALL, SMALL, steps=5),
    "turns": ChatRequest((*BEFORE, Message("user", ("And now?",))), Sampling(max_tokens=7)),
    "several": ChatRequest((*BEFORE, Message("user", ("a", SQUARE, LONG, " as", TALL))), Sampling(max_tokens=14)),
    "words again": ChatRequest(
        (Message("user", ("Hi",)), Message("assistant", ("So?",)), Message("user", ("Go on.",)))
    ),
}


@pytest.fixture(scope="module")
def expected(reference):
    """Tokens of transformers for each request."""
    return {name: reference.write(one) for name, one in CHATS.items()}


def tokens_of(outcome):
    return [int(one.value) for one in outcome.emissions]


# ---------------------------------------------------------------- single requests
def test_answers_equal_transformers(model, expected, reference):
    for name, one in CHATS.items():
        assert model.processor.process(one)[0].tolist() == reference.given(one)["input_ids"][0].tolist()
        assert tokens_of(model.run(one)) == expected[name]
    assert len({tuple(tokens) for tokens in expected.values()}) == len(CHATS), "the question does not matter"


def test_idefics3_checkpoints_are_supported(tmp_path):
    first = tiny.save(tmp_path, kind="Idefics3")
    reference = tiny.Reference(first)
    assert type(reference.network).__name__ == "Idefics3ForConditionalGeneration"
    assert tokens_of(unrecorded(SmolVlm(first)).run(CHATS["several"])) == reference.write(CHATS["several"])


def test_image_tokens_count_for_the_repetition_penalty(model, reference):
    repeating, plain = chat(TALL, "aaaa", steps=12, repetition_penalty=1.7), chat(TALL, "aaaa", steps=12)
    assert tokens_of(model.run(repeating)) == reference.write(repeating) != reference.write(plain)


@pytest.mark.parametrize("size", [(1, 1), (1, 90), (33, 64), (65, 64), (640, 480)])
def test_images_of_any_size_have_placeholders(model, reference, size):
    one = chat(picture(7, *size), "So?", steps=2)
    assert tokens_of(model.run(one)) == reference.write(one)


def test_finish_reason_and_usage_are_reported(model, expected):
    assert model.run(CHATS["one"]).result == Finish("length", {"text": 44, "image": 20})
    stopping = replace(CHATS["words"], sampling=Sampling(max_tokens=12, stop_token_ids=(expected["words"][5],)))
    outcome = model.run(stopping)
    assert tokens_of(outcome) == expected["words"][: expected["words"].index(expected["words"][5])]
    assert outcome.result == Finish("stop", {"text": 27})


def test_an_answer_about_an_image_follows_a_grammar(model):
    outcome = model.run(chat(WIDE, "Which?", grammar=Grammar.choice(["yes", "no"])))
    assert model.detokenize(tokens_of(outcome)) in {"yes", "no"}


# ---------------------------------------------------------------- unneeded ops do not run
@pytest.fixture
def ran(monkeypatch):
    """Number of runs per op."""
    counts, run = Counter(), Op.run

    def counted(op, one, *more, **others):
        counts[f"{type(one).__name__}.{op.name}"] += 1
        return run(op, one, *more, **others)

    monkeypatch.setattr(Op, "run", counted)
    return counts


def test_ops_run_only_for_requests_that_need_them(model, ran):
    model.run(CHATS["words"])
    once = {"Processor.process": 1, "LanguageModel.finish": 1}
    assert ran == once | {"LanguageModel.next_token": 13, "LanguageModel.is_over": 13}
    assert "network" not in vars(model.vision_encoder), "it is loaded"
    ran.clear()
    model.run(CHATS["two"])
    once |= {"LanguageModel.merge_embeddings": 1, "LanguageModel.next_token_mixed": 1}
    assert ran == once | {"VisionEncoder.encode": 2, "LanguageModel.next_token": 5, "LanguageModel.is_over": 6}


def test_a_text_deployment_has_no_vision_encoder(saved, expected):
    words = SmolVlmText(saved)
    deployed = PlannedModel(words, plan(words.graphs()))
    assert {*deployed.components_at(*deployed.plans.workers)} == {"processor", "lm"}
    assert words.input_types() == (str,)
    assert tokens_of(unrecorded(words).run(CHATS["words"])) == expected["words"]
    with pytest.raises(NotImplementedError, match="this model reads no images\n  fix: "):
        words.run(CHATS["one"])


def test_a_part_is_loaded_alone(saved, reference):
    names = {part: {*Checkpoint(saved).network(part).state_dict()} for part in PARTS}
    assert names["vision_encoder"] | names["lm"] == {*reference.network.state_dict()}
    assert not names["vision_encoder"] & names["lm"]


class Work:
    """Number of encoded images and of prefilled positions."""

    def __init__(self, model, monkeypatch):
        self.pictures = self.positions = 0
        see, forward = model.vision_encoder._hidden, model.lm.decoder._forward

        def seeing(batch):
            self.pictures += 1
            return see(batch)

        def reading(embeddings, positions, last):
            self.positions += embeddings.shape[1]
            return forward(embeddings, positions, last)

        monkeypatch.setattr(model.vision_encoder, "_hidden", seeing)
        monkeypatch.setattr(model.lm.decoder, "_forward", reading)


QUESTIONS = [chat(SQUARE, WIDE, f"What is {number}?", steps=number + 1) for number in range(8)]
PAGE = 16


@pytest.fixture(scope="module")
def answers(reference):
    return [reference.write(one) for one in QUESTIONS]


@pytest.mark.parametrize("options", ["one by one", "at once", "in pieces"])
def test_an_image_is_encoded_and_prefilled_once_for_all_questions(model, answers, monkeypatch, options):
    prompts = [model.processor.process(one)[0].tolist() for one in QUESTIONS]
    shared = [len({*column}) == 1 for column in zip(*prompts, strict=False)].index(False) // PAGE * PAGE
    written = sum(one.sampling.max_tokens for one in QUESTIONS)
    most = len(prompts[0]) + sum(len(prompt) - shared for prompt in prompts[1:]) + written
    # Of a request that has ended, the last page is shared too, up to the first token that differs.
    least = written + sum(
        len(prompt) - max([0, *(common_length(prompt, before) for before in prompts[:number])])
        for number, prompt in enumerate(prompts)
    )
    work = Work(model, monkeypatch)
    if options == "one by one":
        outcomes = [model.run(one) for one in QUESTIONS]
    else:
        outcomes = LocalRuntime(model, max_batched_tokens=None if options == "at once" else 50).run_all(QUESTIONS)
    assert [tokens_of(outcome) for outcome in outcomes] == answers
    assert work.pictures == 2
    again = PAGE * (sum(map(len, prompts)) // 50) if options == "in pieces" else 0
    most = least if options == "one by one" else most
    assert least <= work.positions <= most + again, "of a piece the last page is read again"
    assert shared >= 4 * PAGE


def common_length(first, second):
    """Length of the longest common prefix."""
    equal = [one == other for one, other in zip(first, second, strict=False)]
    return [*equal, False].index(False)


def test_cached_images_are_not_shared_between_tenants(model, monkeypatch):
    work = Work(model, monkeypatch)
    did = []
    with in_process("vlm", model) as deployment:
        front_end = add_frontend(deployment)
        for tenant in ("a", "b", "a", "b"):
            before = work.pictures, work.positions
            assert len(list(front_end.open_stream("vlm", CHATS["one"], tenant=tenant))) == 9
            did.append((work.pictures - before[0], work.positions - before[1]))
    assert did == [(1, 64 + 9)] * 2 + [(0, 1 + 9)] * 2


# ---------------------------------------------------------------- prompts and errors
def test_text_that_looks_like_a_special_token_stays_text(model):
    tokens = model.processor.process(chat("<image><end_of_utterance>"))[0].tolist()
    assert [token for token in tokens if token >= tiny.IDS["<|im_start|>"]] == [
        tiny.IDS["<|im_start|>"],
        tiny.IDS["<end_of_utterance>"],
    ]


def test_sampling_defaults_are_those_of_the_checkpoint(saved, tmp_path):
    assert SmolVlmText(saved).default_sampling() == Sampling()  # its generation_config.json does not sample
    (tmp_path / "generation_config.json").write_text('{"do_sample": true, "temperature": 0.4, "top_k": 5}')
    assert SmolVlmText(str(tmp_path)).default_sampling() == Sampling(temperature=0.4, top_k=5)


def test_text_above_the_bound_exceeds_the_context(model):
    limit = model.max_text_bytes()
    assert limit == 4096 * max(map(len, model.checkpoint.tokenizer.get_vocab()))
    with pytest.raises(NeverFits):
        model.run(chat("x" * (limit + 1)))


def test_unsupported_requests_are_rejected(model, saved, tmp_path):
    with pytest.raises(NotImplementedError, match="unsupported part VideoInput\n  fix: "):
        model.run(chat(VideoInput(np.zeros((2, 8, 8, 3), np.uint8), 1.0)))
    with pytest.raises(NeverFits, match=r"has \d+ tokens, the context holds 4096\n  fix: send fewer than 4096"):
        model.run(chat("long " * 1000))
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    options = json.loads((tmp_path / "preprocessor_config.json").read_text())
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(options | {"size": {"longest_edge": 70}}))
    with pytest.raises(LoadError, match="longest edge of 70 give tiles of 32, the encoder reads 32\n  fix: "):
        SmolVlm(str(tmp_path)).run(CHATS["one"])


# ---------------------------------------------------------------- concurrent clients
def written(deployment, name, requests, leavers=0):
    """Return the tokens of concurrent clients, while others connect and disconnect."""
    return [
        [*map(int, emitted_values(client, "Text"))] for client in run_clients(deployment, name, requests, leavers, 0.1)
    ]


CROWD = [*CHATS, "several", "two"]


def test_concurrent_requests_equal_single_requests(model, expected):
    with in_process("vlm", model) as deployment:
        texts = written(deployment, "vlm", [CHATS[name] for name in CROWD], leavers=4)
    assert texts == [expected[name] for name in CROWD]


@pytest.mark.slow
def test_captured_networks_give_the_same_with_chunked_prefill(saved, expected):
    recorded = SmolVlm(saved)
    for budget in (None, 9, 60):
        outcomes = LocalRuntime(recorded, None, max_batched_tokens=budget, seed=3).run_all([*CHATS.values()])
        assert [tokens_of(outcome) for outcome in outcomes] == [*expected.values()]


@pytest.mark.nightly
def test_bfloat16_weights_are_supported(saved, reference, tmp_path):
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    copy = tiny.Reference(saved).network.to(torch.bfloat16)
    copy.save_pretrained(tmp_path)
    assert len(tokens_of(unrecorded(SmolVlm(str(tmp_path))).run(CHATS["several"]))) == 14


PLACES = {
    "one": {"vision_encoder": '"a"', "processor": '"a"', "lm": '"a"'},
    "apart": {"vision_encoder": '"a"', "processor": '"b"', "lm": '"b"'},
    "two_vision_encoders": {"vision_encoder": '["a", "c"]', "processor": '"b"', "lm": '"b"'},
}
"""One worker; the vision encoder on its own; two vision encoders. All three on the same three workers."""


@pytest.mark.nightly
@pytest.mark.timeout(180)
def test_processes_equal_transformers_under_any_placement(saved, expected):
    texts = {name: "[place]\n" + "\n".join(map(" = ".join, places.items())) for name, places in PLACES.items()}
    with LocalLauncher(dict.fromkeys(PLACES, f"smolvlm@{saved}"), texts, standby=False) as deployment:
        for place in PLACES:
            given = written(deployment, place, [CHATS[name] for name in CROWD * 2], leavers=6)
            assert given == [expected[name] for name in CROWD * 2]
        assert not deployment.recent_exits

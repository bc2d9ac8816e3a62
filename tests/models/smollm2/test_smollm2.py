"""SmolLM2 with its published weights: answers equal those of its library, with the right finish reason."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from mstar.errors import NeverFits
from mstar.models.smollm2.smollm2 import MAX_CONTEXT_TOKENS, SmolLm2
from mstar.requests import ChatRequest, Finish, ImageInput, Message, Sampling
from mstar.testing.parity import parity_all
from tests.models.transcripts import detokenize_emissions, one_thread

PROMPT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\nWhat is 2 + 3?<|im_end|>\n<|im_start|>assistant\n"
)


def chat(*texts, **sampling):
    roles = ("user", "assistant")
    turns = (Message(roles[number % 2], (text,)) for number, text in enumerate(texts))
    return ChatRequest(tuple(turns), Sampling(**({"max_tokens": 48} | sampling)))


@pytest.fixture(scope="module")
def model():
    with one_thread():
        yield SmolLm2()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_answers_and_finish_reasons(model):
    capital = model.run(chat("What is the capital of France?"))
    assert detokenize_emissions(model, capital.emissions) == "The capital of France is Paris."
    assert capital.result == Finish("stop", {"text": 37})
    follow_up = chat("What is the capital of France?", "The capital of France is Paris.", "And of Italy?")
    assert "Rome" in detokenize_emissions(model, model.run(follow_up).emissions)
    cut = model.run(chat("What is the capital of France?", max_tokens=3))
    assert (detokenize_emissions(model, cut.emissions), cut.result.finish_reason) == ("The capital of", "length")
    last = int(capital.emissions[2].value)
    stopped = model.run(chat("What is the capital of France?", stop_token_ids=(last,)))
    assert (detokenize_emissions(model, stopped.emissions), stopped.result.finish_reason) == ("The capital", "stop")
    silent = model.run(chat("What is the capital of France?", logit_bias=((model.lm.eos_token_id, 100.0),)))
    assert (silent.emissions, silent.result.finish_reason) == ([], "stop")
    wild = chat("Name a colour.", temperature=0.8, seed=3, max_tokens=6)
    parity_all(model, [chat("What is 2 + 3?", max_tokens=6), wild], schedules=2)


@pytest.mark.slow
def test_the_chat_template_is_applied(model):
    tokens, most = model.lm.prompt(chat("What is 2 + 3?"))
    assert model.lm.tokenizer.decode(tokens.tolist(), skip_special_tokens=False) == PROMPT
    assert most == 48
    briefed = ChatRequest((Message("system", ("Be brief.",)), Message("user", ("Hi",))))
    assert "SmolLM" not in model.detokenize(model.lm.prompt(briefed)[0].tolist())
    forged, _ = model.lm.prompt(chat("<|im_end|>"))
    assert forged.tolist().count(model.lm.eos_token_id) == 2  # of the system message and of the user message
    long, most = model.lm.prompt(chat("a " * (MAX_CONTEXT_TOKENS - 100), max_tokens=4096))
    assert len(long) + most == MAX_CONTEXT_TOKENS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        (
            "It is Paris. It costs 3.14 euros!\nDoes it? Yes",
            ["It is Paris.", " It costs 3.14 euros!\n", "Does it?", " Yes"],
        ),
        ("One: a cat;\n\n\ntwo", ["One:", " a cat;\n\n\n", "two"]),
    ],
)
def test_answers_are_split_into_sentences(model, text, sentences):
    tokens = torch.tensor(model.lm.tokenize(text))[:, None]
    groups = [[tokens[0]]]
    for token, following in pairwise(tokens):
        if model.lm.is_sentence_end(token, following):
            groups.append([])
        groups[-1].append(following)
    assert [model.lm.decode_sentence(part, 20)[0] for part in groups] == sentences
    assert model.lm.decode_sentence(groups[0], len(groups[0]))[1:] == (0, True)


@pytest.mark.slow
def test_unsupported_prompts_are_rejected(model):
    with pytest.raises(NeverFits, match="tokens, the context holds 8192\n  fix: send fewer than 8192"):
        model.run(chat("a " * MAX_CONTEXT_TOKENS))
    with pytest.raises(NotImplementedError, match="reads text only"):
        model.run(ChatRequest((Message("user", (ImageInput(np.zeros((1, 1, 3), np.uint8)),)),)))

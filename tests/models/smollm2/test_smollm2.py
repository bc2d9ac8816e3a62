"""SmolLM2 with its real weights: it answers as it does in its library, and says how an answer ended."""

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


def chat(*said, **sampling):
    roles = ("user", "assistant")
    turns = (Message(roles[number % 2], (text,)) for number, text in enumerate(said))
    return ChatRequest(tuple(turns), Sampling(**({"max_tokens": 48} | sampling)))


@pytest.fixture(scope="module")
def model():
    with one_thread():
        yield SmolLm2()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_answers_and_how_they_ended(model):
    capital = model.run(chat("What is the capital of France?"))
    assert detokenize_emissions(model, capital.emissions) == "The capital of France is Paris."
    assert capital.result == Finish("stop", {"text": 37})
    asked_again = chat("What is the capital of France?", "The capital of France is Paris.", "And of Italy?")
    assert "Rome" in detokenize_emissions(model, model.run(asked_again).emissions)
    cut = model.run(chat("What is the capital of France?", max_tokens=3))
    assert (detokenize_emissions(model, cut.emissions), cut.result.finish_reason) == ("The capital of", "length")
    last = int(capital.emissions[2].value)
    stopped = model.run(chat("What is the capital of France?", stop=(last,)))
    assert (detokenize_emissions(model, stopped.emissions), stopped.result.finish_reason) == ("The capital", "stop")
    silent = model.run(chat("What is the capital of France?", logit_bias=((model.lm.end, 100.0),)))
    assert (silent.emissions, silent.result.finish_reason) == ([], "stop")
    wild = chat("Name a colour.", temperature=0.8, seed=3, max_tokens=6)
    parity_all(model, [chat("What is 2 + 3?", max_tokens=6), wild], schedules=2)


@pytest.mark.slow
def test_a_conversation_is_read_as_it_was_trained(model):
    tokens, most = model.lm.prompt(chat("What is 2 + 3?"))
    assert model.lm.tokenizer.decode(tokens.tolist(), skip_special_tokens=False) == PROMPT
    assert most == 48
    told = ChatRequest((Message("system", ("Be brief.",)), Message("user", ("Hi",))))
    assert "SmolLM" not in model.detokenize(model.lm.prompt(told)[0].tolist())
    forged, _ = model.lm.prompt(chat("<|im_end|>"))
    assert forged.tolist().count(model.lm.end) == 2  # of the system's turn and of the user's
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
def test_where_an_answer_pauses(model, text, sentences):
    tokens = torch.tensor(model.lm._tokenize(text))[:, None]
    found = [[tokens[0]]]
    for said, following in pairwise(tokens):
        if model.lm.is_sentence_end(said, following):
            found.append([])
        found[-1].append(following)
    assert [model.lm.decode_sentence(part, 20)[0] for part in found] == sentences
    assert model.lm.decode_sentence(found[0], len(found[0]))[1:] == (0, True)


@pytest.mark.slow
def test_what_it_cannot_read_is_refused(model):
    with pytest.raises(NeverFits, match="tokens\n  fix: have fewer than 8192"):
        model.run(chat("a " * MAX_CONTEXT_TOKENS))
    with pytest.raises(NotImplementedError, match="reads text only"):
        model.run(ChatRequest((Message("user", (ImageInput(np.zeros((1, 1, 3), np.uint8)),)),)))

"""SmolLM2-135M with its real weights, as a walk: the text is what it writes, word for word."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from mstar.testing.local_runtime import LocalRuntime

FILE = Path(__file__).parents[3] / "examples" / "real" / "smollm2.py"
ANSWERS = {
    "What is the capital of France?": "The capital of France is Paris.",
    "Write one sentence about the sea.": (
        "The sea is a vast and mysterious realm, teeming with life and unending in its own way, a testament to the "
        "unending beauty of the universe."
    ),
    "What is 2 + 3?": "2 + 3 = 5",
}


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("mstar_real_smollm2", FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and type hints look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_three_answers_alone_together_and_by_the_library(example):
    model = example.SmolLm2()
    alone = {question: example.emissions_to_text(model, model.run(question).emissions) for question in ANSWERS}
    assert alone == ANSWERS
    runtime = LocalRuntime(model, seed=1)
    together = runtime.run_all([*ANSWERS])
    assert [example.emissions_to_text(model, outcome.emissions) for outcome in together] == [*ANSWERS.values()]
    assert max(count for _, count in runtime.batches) > 1
    library = example.load_weights().network().eval()
    for question, answer in ANSWERS.items():
        prompt = model.lm.tokenize(question)
        with torch.inference_mode():
            made = library.generate(prompt[None], max_new_tokens=48, do_sample=False, eos_token_id=2)
        text = model.lm.tokenizer.decode(made[0, len(prompt) :].tolist(), skip_special_tokens=True)
        assert text == answer

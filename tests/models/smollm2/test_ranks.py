"""SmolLM2 by `mstar serve` on three ranks: it answers what one process answers."""

from pathlib import Path

import pytest
from openai import OpenAI

from mstar.models.smollm2.smollm2 import SmolLm2
from mstar.requests import ChatRequest, Message, Sampling
from tests.cli.test_serve import start_server, wait_ready
from tests.models.transcripts import detokenize_emissions, one_thread

PLACEMENT = Path(__file__).parents[3] / "examples" / "placements" / "smollm2-ranks.toml"
QUESTIONS = ("What is the capital of France?", "Write two sentences about the sea.")


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_three_ranks_answer_what_one_process_answers():
    with one_thread():
        model = SmolLm2()
        expected = [
            detokenize_emissions(model, model.run(chat).emissions)
            for question in QUESTIONS
            for chat in [ChatRequest((Message("user", (question,)),), Sampling(max_tokens=16))]
        ]
    with start_server("smollm2", "--placement", str(PLACEMENT)) as (process, url):
        wait_ready(process)
        with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120) as client:
            for question, answer in zip(QUESTIONS, expected, strict=True):
                written = client.chat.completions.create(
                    model="smollm2",
                    messages=[{"role": "user", "content": question}],
                    max_completion_tokens=16,
                    temperature=0,
                    frequency_penalty=0,
                )
                assert written.choices[0].message.content == answer

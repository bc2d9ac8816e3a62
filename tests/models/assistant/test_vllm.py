"""The assistant with its language model in vLLM, by a placement: it answers what it answers without."""

from pathlib import Path

import pytest
from openai import OpenAI

from mstar.models.assistant.assistant import Assistant
from mstar.requests import ChatRequest, Message, Sampling
from tests.cli.test_serve import start_server, wait_ready
from tests.models.transcripts import detokenize_emissions, one_thread
from tests.vllm_interpreter import vllm_python

PLACEMENT = Path(__file__).parents[3] / "examples" / "placements" / "assistant-vllm.toml"
QUESTIONS = ("What is the capital of France?", "Write two sentences about the sea.")


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_answers_and_speech_are_those_without_vllm():
    vllm_python()
    with one_thread():
        model = Assistant()
        expected = [
            detokenize_emissions(model, model.run(chat).emissions)
            for question in QUESTIONS
            for chat in [ChatRequest((Message("user", (question,)),), Sampling(max_tokens=24))]
        ]
    with start_server("assistant", "--placement", str(PLACEMENT)) as (process, url):
        wait_ready(process)
        with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120) as client:
            for question, answer in zip(QUESTIONS, expected, strict=True):
                spoken = client.chat.completions.create(
                    model="assistant",
                    messages=[{"role": "user", "content": question}],
                    modalities=["text", "audio"],
                    audio={"voice": "heart", "format": "wav"},
                    max_completion_tokens=24,
                    temperature=0,
                    frequency_penalty=0,
                )
                assert spoken.choices[0].message.audio.transcript == answer
                assert len(spoken.choices[0].message.audio.data) > 10_000

"""SmolLM2 with speculative decoding answers what it answers without, alone and beside others, by `mstar serve`."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest
from openai import OpenAI

from mstar.models.smollm2.smollm2 import SmolLm2
from mstar.requests import ChatRequest, Message, Sampling
from tests.cli.test_serve import start_server, wait_ready
from tests.models.transcripts import detokenize_emissions, one_thread

PLACEMENT = Path(__file__).parents[3] / "examples" / "placements" / "smollm2-speculative.toml"
QUESTIONS = (
    "Copy this list: red, green, blue, red, green, blue, red, green, blue, red, green, blue.",
    "Copy these lines:\nan apple a day\na pear a day\na plum a day\na fig a day",
    "What is the capital of France?",
    "Write two sentences about the sea.",
)
TOKENS = 48


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_answers_are_those_without_drafts():
    expected = []
    with one_thread():
        model = SmolLm2()
        for question in QUESTIONS:
            chat = ChatRequest((Message("user", (question,)),), Sampling(max_tokens=TOKENS))
            expected.append(detokenize_emissions(model, model.run(chat).emissions))
    with start_server("smollm2", "--placement", str(PLACEMENT)) as (process, url):
        wait_ready(process)
        with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120) as client:

            def ask(question):
                answer = client.chat.completions.create(
                    model="smollm2",
                    messages=[{"role": "user", "content": question}],
                    max_completion_tokens=TOKENS,
                    temperature=0,
                    frequency_penalty=0,
                )
                return answer.choices[0].message.content

            assert [ask(question) for question in QUESTIONS] == expected
            with ThreadPoolExecutor(len(QUESTIONS)) as pool:
                assert [*pool.map(ask, QUESTIONS)] == expected
        page = httpx2.get(f"{url}/metrics").text
        stats = {line.split()[0]: float(line.split()[1]) for line in page.splitlines() if "draft_tokens" in line}
        (drafted,) = [count for name, count in stats.items() if 'stat="draft_tokens"' in name]
        (accepted,) = [count for name, count in stats.items() if 'stat="draft_tokens_accepted"' in name]
        assert drafted >= accepted > 0

"""First answers of the assistant and of SmolLM2 without any parameter: chat, realtime, and the body of the studio."""

import json
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
from openai import OpenAI

from mstar.models.assistant.assistant import Assistant
from mstar.models.smollm2.smollm2 import SmolLm2
from tests.models.assistant.simple_questions import REQUIRED_RIGHT, SIMPLE_QUESTIONS, wrong_answers
from tests.server.model_server import serve_models

# The OpenAI SDK uses the deprecated call of its websockets library.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings(r"ignore:connect\(\) must be used:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def model_server():
    with serve_models({"assistant": Assistant(), "smollm2": SmolLm2()}) as started:
        yield started


@pytest.fixture(scope="module")
def openai(model_server):
    url = f"127.0.0.1:{model_server.port}/v1"
    with OpenAI(api_key="none", base_url=f"http://{url}", websocket_base_url=f"ws://{url}", timeout=300) as client:
        yield client


def assert_mostly_right(answer_question):
    with ThreadPoolExecutor(len(SIMPLE_QUESTIONS)) as threads:
        answers = dict(zip(SIMPLE_QUESTIONS, threads.map(answer_question, SIMPLE_QUESTIONS), strict=True))
    wrong = wrong_answers(answers)
    assert len(SIMPLE_QUESTIONS) == 20
    assert len(SIMPLE_QUESTIONS) - len(wrong) >= REQUIRED_RIGHT, wrong


@pytest.mark.nightly
@pytest.mark.parametrize("model", ["assistant", "smollm2"])
def test_first_answers_in_chat(openai, model):
    def ask(question):
        messages = [{"role": "user", "content": question}]
        return openai.chat.completions.create(model=model, messages=messages).choices[0].message.content

    assert_mostly_right(ask)


@pytest.mark.nightly
def test_first_answers_in_realtime(openai):
    def ask(question):
        with openai.realtime.connect(model="assistant") as session:
            session.session.update(session={"type": "realtime", "output_modalities": ["text"]})
            content = [{"type": "input_text", "text": question}]
            session.conversation.item.create(item={"type": "message", "role": "user", "content": content})
            session.response.create()
            event = next(event for event in session if event.type in ("response.done", "error"))
            assert event.type == "response.done", event
            return event.response.output[0].content[0].text

    assert_mostly_right(ask)


@pytest.mark.nightly
def test_first_answers_with_the_body_of_the_studio(model_server):
    """tests/studio/test_chat_and_audio.py asserts that the page sends this body."""

    def ask(question):
        body = {"model": "assistant", "messages": [{"role": "user", "content": question}], "stream": True}
        body |= {"stream_options": {"include_usage": True}}
        answer = httpx2.post(f"{model_server.url}/v1/chat/completions", json=body, timeout=300)
        chunks = [json.loads(line.removeprefix("data: ")) for line in answer.text.split("\n\n") if "{" in line]
        return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])

    assert_mostly_right(ask)

"""Several choices of one request (`n` > 1): one client, one request, one prompt."""

import json
import socket
import time

import pytest

from tests.integration.isolation.two_keys import CHAT, KEYS, chat_body

LETTERS = 4000
"""Letters of a response that takes 20 s."""


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "collected"])
@pytest.mark.parametrize("count", [2, 4])
def test_a_disconnect_cancels_all_choices(two_keys, stream, count):
    recorder = two_keys.models["every"].recorder
    recorder.calls.clear()
    body = json.dumps(chat_body("slow" + "x" * LETTERS, n=count, stream=stream)).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEYS['alice']}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", two_keys.port), timeout=10) as connection:
        connection.sendall(head.encode() + body)
        deadline = time.monotonic() + 10
        while len(recorder.calls) < 4 * count:
            assert time.monotonic() < deadline
            time.sleep(0.005)
    assert two_keys.wait_until_idle(5)
    assert len(recorder.calls) < LETTERS


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_prompt_counts_once_in_the_usage(alice, count):
    usage = alice.post(CHAT, json=chat_body("seven..", n=count)).json()["usage"]
    assert usage["prompt_tokens"] == 7
    assert usage["completion_tokens"] == 7 * count
    assert usage["total_tokens"] == 7 + 7 * count
    assert usage["prompt_tokens_details"] == {"text_tokens": 7}


def test_the_prompt_counts_once_in_the_usage_of_a_stream(alice):
    body = chat_body("seven..", n=3, stream=True, stream_options={"include_usage": True})
    with alice.stream("POST", CHAT, json=body) as response:
        lines = [line for line in response.iter_lines() if line.startswith("data: {")]
    usage = json.loads(lines[-1].removeprefix("data: "))["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (7, 21, 28)

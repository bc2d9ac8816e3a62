"""docs/request-path.md: the functions it lists exist, and a real request calls them in that order."""

import json
import re
import sys
import threading
from pathlib import Path

import pytest

import mstar
from tests.server.toy_server import chat_body, run_toy_server

ROOT = Path(__file__).parents[2]
SOURCE = str(Path(mstar.__file__).parent)
PAGE = (ROOT / "docs" / "request-path.md").read_text("utf-8")
STEP = re.compile(r"^\| \d+ \| `([^`]+\.py)` \| `([^`]+)` \|", re.MULTILINE)
TO_FIRST_OP, TO_SOCKET = (STEP.findall(part) for part in PAGE.split("## One token, from the op to the socket"))
Call = tuple[str, str]


class CallRecorder:
    """Records every call of a function of mstar, in all threads that start while it is active."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def __call__(self, frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(SOURCE):
            path = frame.f_code.co_filename.removeprefix(f"{SOURCE}/")
            self.calls.append((path, frame.f_code.co_qualname))

    def __enter__(self):
        threading.setprofile(self)
        sys.setprofile(self)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)
        threading.setprofile(None)


@pytest.fixture(scope="module")
def calls() -> list[Call]:
    """What one streamed chat of three tokens calls, from its first byte to its last."""
    with CallRecorder() as recorder, run_toy_server() as server, server.client() as client:
        client.post("/v1/chat/completions", json=chat_body("warm up", max_tokens=2)).raise_for_status()
        assert server.wait_until_idle()
        recorder.calls.clear()
        body = chat_body("one two three", stream=True)
        with client.stream("POST", "/v1/chat/completions", json=body) as response:
            lines = [line for line in response.iter_lines() if line.startswith("data: {")]
        assert json.loads(lines[0].removeprefix("data: "))["object"] == "chat.completion.chunk"
        return list(recorder.calls)


def first_missing(path: list[Call], calls: list[Call]) -> Call | None:
    """The first step of a path that does not come after those before it."""
    remaining = iter(calls)
    return next((step for step in path if step not in remaining), None)


@pytest.mark.parametrize(("file", "function"), sorted({*TO_FIRST_OP, *TO_SOCKET}))
def test_every_function_exists(file, function):
    name = function.split(".")[-1]
    assert re.search(rf"^\s*(?:async )?def {name}\b", (Path(SOURCE) / file).read_text("utf-8"), re.MULTILINE)


def test_a_request_takes_this_path_to_its_first_op(calls):
    assert len(TO_FIRST_OP) >= 20
    assert first_missing(TO_FIRST_OP, calls) is None


def test_a_token_takes_this_path_to_the_socket(calls):
    assert len(TO_SOCKET) >= 10
    first_op = max(index for index, call in enumerate(calls) if call == TO_FIRST_OP[-1])
    assert first_missing(TO_SOCKET, calls) is None
    assert first_op > 0

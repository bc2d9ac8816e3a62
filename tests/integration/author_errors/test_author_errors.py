"""Where the reason appears when the code of a model fails: the log, the trace, the client and `mstar run`."""

import json
import re
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from mstar.cli import main
from tests.integration.author_errors.cases import CASES, LOAD_MODEL, MODEL, START_CASES, render_table
from tests.tiers import ci_cases

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "author-errors.md"
LOCAL_CASES = [case for case in CASES if not case.served_only]
SLOW_CASE = next(case for case in CASES if case.name == "op_slow")
SERVED_CASES = [case for case in CASES if case is not SLOW_CASE]
NAMES_IN_CI = {"op_raises", "torch_shape", "result_shape", "batch_raises", "state_fork", "walk_index", "route_raises"}
SERVED_IN_CI = [case for case in SERVED_CASES if case.served_only or case.name in NAMES_IN_CI]
"""`test_mstar_run` has the other cases, in this process."""


def by_name(cases):
    return {"argvalues": cases, "ids": [case.name for case in cases]}


def has_line(case, text):
    """Whether a text has a line of the model's file that is to blame."""
    matches = {int(line) for line in re.findall(r'failing_model\.py(?::|", line )(\d+)', text)}
    return bool(matches & case.lines)


@contextmanager
def start_server(*flags):
    """A server with processes of its own; yields its URL and a function that returns its log lines."""
    command = [sys.executable, "-m", "mstar.cli", "serve", f"{MODEL}:Failing", "--name", "m", "--port", "0"]
    command += ["--log-format", "json", *flags]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    lines = []

    def read_until(event):
        for line in process.stderr:
            lines.append(json.loads(line))
            if event(lines[-1]):
                return lines
        raise AssertionError(lines)

    try:
        ready = read_until(lambda line: line["event"] == "ready")
        yield next(line["url"] for line in ready if "url" in line), read_until
    finally:
        process.terminate()
        process.communicate(timeout=30)


@pytest.fixture(scope="module")
def server():
    with start_server() as started:
        yield started


def ask(url, case):
    body = {"model": "m", "messages": [{"role": "user", "content": case.name}]}
    return httpx2.post(f"{url}/v1/chat/completions", json=body, headers={"X-Request-Id": case.name}, timeout=60)


# ---------------------------------------------------------------- a server
@pytest.mark.slow
@pytest.mark.parametrize("case", ci_cases(SERVED_CASES, *SERVED_IN_CI), ids=lambda case: case.name)
def test_log_trace_and_client(case, server):
    check_server(case, *server)


@pytest.mark.nightly
def test_log_trace_and_client_of_a_slow_op():
    with start_server("--request-timeout-s", "1") as server:
        check_server(SLOW_CASE, *server)


def is_about(line, request_id):
    return line.get("id") == request_id or line["event"] == f"request {request_id}"


def check_server(case, url, read_until):
    """Send the request of a case, and look for its reason everywhere."""
    response = ask(url, case)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (case.status, case.code)
    if case.status == 500:
        assert case.message in error["message"]
        assert f"request id {case.name}" in error["message"]
        if case.code != "poison_request":
            assert case.error in error["message"]
    assert str(ROOT) not in error["message"]
    lines = read_until(lambda line: line["event"] == "request" and line["id"] == case.name)
    reasons = [line for line in lines if line["level"] in ("error", "warning") and is_about(line, case.name)]
    assert len(reasons) == case.is_logged
    if case.is_logged:
        reason = reasons[0]
        assert reason["error"] == case.error
        assert case.message in reason.get("message", "")
        assert reason.get("op", "") == case.op
        assert has_line(case, reason.get("location", "")) == case.has_line
        assert has_line(case, reason.get("traceback", "")) == case.has_line
    trace = httpx2.get(f"{url}/v1/requests/{case.name}/trace", timeout=30).json()
    texts = [span["text"] for span in trace["spans"] if case.error in span["text"]]
    assert texts
    assert any(has_line(case, text) for text in texts) == case.has_line
    shown = trace["error"]  # the page of the request in the studio
    assert (shown["message"], shown["type"], shown["op"]) == (error["message"], case.error, case.op)
    assert has_line(case, shown["location"]) == case.has_line


@pytest.mark.slow
def test_hidden_errors_have_the_type_only():
    with start_server("--no-expose-errors") as (url, _):
        for case in [case for case in LOCAL_CASES if case.name in NAMES_IN_CI and case.code == "model_error"]:
            message = ask(url, case).json()["error"]["message"]
            assert message == f"the model failed at this request: {case.error} (request id {case.name})"


# ---------------------------------------------------------------- mstar run
@pytest.mark.parametrize("case", **by_name(LOCAL_CASES))
def test_mstar_run(case, capsys):
    try:
        status = main(["run", f"{MODEL}:Failing", case.name])
    except Exception as error:  # noqa: BLE001 - a traceback in the terminal
        status, text = 1, f"{type(error).__name__}: {error}"
    else:
        text = capsys.readouterr().err
    assert status == 1
    assert f"{case.error}: {case.message}" in text or (case.error in text and case.message in text)
    assert has_line(case, text) == case.has_line
    assert case.op in text


# ---------------------------------------------------------------- the start
def broken_model(case, folder):
    """Write the model of a case; returns its path and the line that is to blame."""
    text = LOAD_MODEL.read_text("utf-8")
    line = 1 + text[: text.index(case.old)].count("\n")
    path = folder / "broken.py"
    path.write_text(text.replace(case.old, case.new, 1))
    return path, line


@pytest.mark.parametrize("case", **by_name([case for case in START_CASES if not case.served_only]))
def test_a_run_that_cannot_start(case, tmp_path, capsys):
    path, line = broken_model(case, tmp_path)
    assert main(["run", str(path), "x"]) == 1
    text = capsys.readouterr().err
    for message in case.messages:
        assert message.format(file=path, line=line) in text


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    ci_cases(START_CASES, *(case for case in START_CASES if case.served_only or case.name == "syntax")),
    ids=lambda case: case.name,
)
def test_a_server_that_cannot_start(case, tmp_path):
    path, line = broken_model(case, tmp_path)
    command = [sys.executable, "-m", "mstar.cli", "serve", str(path), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
    text, deadline = "", time.monotonic() + 60
    try:
        while not all(message.format(file=path, line=line) in text for message in case.messages):
            assert time.monotonic() < deadline, text
            text += process.stdout.readline()
    finally:
        process.kill()
        process.communicate()


# ---------------------------------------------------------------- the page
def test_the_page_has_this_table():
    assert render_table() in PAGE.read_text("utf-8"), render_table()


def test_there_are_many_cases():
    assert len(CASES) + len(START_CASES) >= 30

"""Progress of a start, and that no client is admitted before warm-up has finished."""

import json
import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import pytest

from mstar.cli.serving.progress import BarProgress, LineProgress, LogProgress, StartStage
from mstar.cli.serving.serve import ModelServer
from mstar.frontend.response_stream import FrontendActor
from mstar.launch.in_process import InProcessLauncher
from mstar.plan.planned_model import load_planned_models
from mstar.server.state import ServerState
from mstar.server.telemetry import logs
from mstar.wire.messages import Peer

WARM = """
from collections.abc import Iterator
from mstar import Component, Model, Text, loop, op, walk

class Part(Component):
    @op
    def letter(self, text: str, step: int) -> str:
        if text == "bad":
            raise RuntimeError("no such word")
        self.given.append(text[step])
        return text[step]

class Warm(Model):
    def __init__(self) -> None:
        self.part = Part()
        self.part.given = []

    @walk
    def say(self, text: str, steps: int) -> Iterator[Text]:
        for step in loop(steps=steps):
            yield Text(self.part.letter(text, step))

    def warmup_requests(self):
        return [{"text": "ab", "steps": 2}, {"text": "bad", "steps": 1}, {"text": "c", "steps": 1}]
"""
STAGES = [
    {"conductor": StartStage("", 0, 1), "w": StartStage("", 0, 3)},
    {"conductor": StartStage("up", 1, 1), "w": StartStage("loading m.a (1 of 2)", 0, 3)},
    {"conductor": StartStage("up", 1, 1), "w": StartStage("loading m.b (2 of 2)", 1, 3)},
    {"conductor": StartStage("up", 1, 1), "w": StartStage("up", 3, 3)},
]


def test_lines_say_each_thing_once(capsys):
    lines = LineProgress()
    for stages in [*STAGES, STAGES[-1]]:
        lines.show(stages)
    assert capsys.readouterr().out.splitlines() == [
        "[1/2] conductor is up",
        "[1/2] w: loading m.a (1 of 2)",
        "[1/2] w: loading m.b (2 of 2)",
        "[2/2] w is up",
    ]


def test_log_lines_say_the_same(capsys):
    with logs.logging_to_stderr("json"):
        shown = LogProgress()
        for stages in STAGES:
            shown.show(stages)
        shown.log_event("ready")
    payload = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [one["event"] for one in payload][-2:] == ["[2/2] w is up", "ready"]
    assert payload[0]["part"] == "conductor"


def test_bars_show_how_far_each_is(capsys):
    bars = BarProgress()
    for stages in STAGES[:3]:
        bars.show(stages)
    bars.log_event("ready")
    bars.close()
    payload = capsys.readouterr().out
    assert re.search(r"conductor .* up", payload)
    assert re.search(r"w .* loading m.b \(2 of 2\)", payload)
    assert "ready" in payload


def test_warm_up_requests_run_before_the_server_is_ready(tmp_path, capsys, caplog):
    (tmp_path / "warm.py").write_text(WARM)
    deployed = load_planned_models({"warm": str(tmp_path / "warm.py")}, {})
    model = deployed["warm"].model
    state, shown = ServerState({"warm": model}), LineProgress()
    with InProcessLauncher(deployed) as together:
        front = FrontendActor(together.actor_loop, Peer("front", 0), together.conductors)
        together.add_frontend(front)
        ModelServer(state, deployed, shown, reload_keys=str, url="")._warm_up(front)
        assert not any(front.query_counts(together.conductor).result(1.0)[what] for what in ("requests", "queue"))
    assert model.part.given == ["a", "b", "c"]
    assert (state.phase.name, state.phase.done, state.phase.total) == ("warming up", 3, 4)
    assert "warm-up of warm with dict failed: RuntimeError" in caplog.text  # and the others were served
    assert capsys.readouterr().out.splitlines()[-1] == "[1/1] warm-up is done"


@pytest.mark.slow
def test_what_a_worker_loads_is_reported_on_the_way(tmp_path):
    slow = "    def prepare(self) -> None:\n        import time\n\n        time.sleep(1.0)\n\n    @op"
    (tmp_path / "slow.py").write_text(WARM.replace("    @op", slow, 1).replace('{"text": "bad", "steps": 1}, ', ""))
    command = [sys.executable, "-m", "mstar.cli", "serve", str(tmp_path / "slow.py"), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        url = process.stdout.readline().split()[-1]
        lines = iter(process.stdout.readline, "")
        seen = next(line for line in lines if "loading" in line)
        assert seen.endswith("] local: loading slow.part (1 of 1)\n")
        answer = httpx2.get(f"{url}/ready")
        assert answer.status_code == 503
        assert (answer.json()["phase"], answer.json()["total"]) == ("starting", 3)
        assert next(line for line in lines if line.startswith("[2/2]")) in (
            "[2/2] local is up\n",
            "[2/2] conductor is up\n",
        )
        assert [next(lines) for _ in range(3)] == [
            "[2/3] warm-up: dict for slow\n",
            "[2/3] warm-up: dict for slow\n",
            "[3/3] warm-up is done\n",
        ]
        process.terminate()
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.nightly
def test_a_terminal_shows_bars():
    noop = Path(__file__).parents[2] / "examples" / "noop.py"
    parent, child = pty.openpty()
    command = [sys.executable, "-m", "mstar.cli", "serve", str(noop), "--port", "0"]
    process = subprocess.Popen(command, stdout=child, stderr=child)
    os.close(child)
    try:
        payload, deadline = "", time.monotonic() + 30
        while "ready" not in payload and time.monotonic() < deadline:
            payload += os.read(parent, 4096).decode()
        assert "━━━" in payload
        assert re.search(r"noop: generate\s+worker local: noop\.\w+ on cpu\s+no API key required", payload)
        process.terminate()
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        os.close(parent)

"""SIGKILL of a worker between two calls of a tool: each call leaves exactly one line in a file."""

import json
import os
import signal
from pathlib import Path

import pytest
from openai import OpenAI

from tests.cli.test_serve import ROOT, start_server, wait_ready
from tests.server.tools.records import TOOL, Records

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
MODEL = ROOT / "tests" / "server" / "toy_tool_model.py"
PAUSE = "slow" + "." * 60


def worker_pid(launcher):
    """Process id of the worker `w` of a server."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            title, status = (process / "cmdline").read_text(), (process / "status").read_text()
        except (FileNotFoundError, ProcessLookupError):  # it has exited
            continue
        if title.startswith("mstar: worker w") and f"\nPPid:\t{launcher}\n" in status:
            return int(process.name)
    return None


@pytest.mark.parametrize(
    ("kills", "flags"), [pytest.param(1, (), marks=pytest.mark.nightly), (3, ("--frontends", "2"))]
)
def test_a_killed_worker_repeats_no_call(tmp_path, kills, flags):
    records, manifest = Records(tmp_path / "lines"), tmp_path / "mstar.toml"
    place = '[models.scripted.place]\nletters = "w"\n'
    manifest.write_text(f'[models.scripted]\nmodel = "{MODEL}"\n{place}{records.manifest}')
    rounds = [[PAUSE, ["record", {"text": str(number)}]] for number in range(kills)]
    script = json.dumps([[["record", {"text": "first"}]], *rounds, "done: {results}"])
    killed, text = set(), ""
    with (
        start_server(manifest, *flags) as (process, url),
        OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as openai,
    ):
        wait_ready(process)
        for event in openai.responses.create(model="scripted", input=script, tools=[TOOL], stream=True):
            if event.type == "response.output_text.delta":
                text += event.delta
                if "." in event.delta and event.output_index not in killed:  # the middle of a round, between two calls
                    killed.add(event.output_index)
                    os.kill(worker_pid(process.pid), signal.SIGKILL)
    assert len(killed) == kills
    assert records.lines == ["first", *map(str, range(kills))]
    assert text == PAUSE * kills + "done: " + ",".join(f"recorded {line}" for line in records.lines)
    assert event.type == "response.completed"

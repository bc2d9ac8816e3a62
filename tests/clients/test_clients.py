"""Compatibility with client libraries for chat, voice agents and robots, each in its own venv, against `mstar serve`.

`scripts/install-clients` creates the venvs. The libraries run with their defaults.
"""

import json
import subprocess
from contextlib import contextmanager
from urllib.parse import urlsplit

import httpx2
import numpy as np
import pytest
import soundfile
from openai import OpenAI

from mstar.requests import ActionRequest
from tests.cli.test_serve import ROOT, SMOLLM2, start_server, wait_ready
from tests.models.transcripts import word_error_rate
from tests.server.tools.records import TOOL, Records
from tests.server.toy_robot_models import Arm, observation

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
VENVS = ROOT / ".venv-clients"
TEXT = "The capital of France is Paris."
SPOKEN_TEXT = "Good morning. My name is Peter, and I live in London."
VOICE_MANIFEST = '[models.hibari]\nmodel = "hibari"\n[models.whisper]\nmodel = "whisper"\n'


def run_client(library, script, *words):
    """Run a script in the venv of a library; return its output lines."""
    python = VENVS / library / "bin" / "python"
    if not python.exists():
        pytest.skip(f"{library} has no venv; fix: run scripts/install-clients")
    command = [python, ROOT / "tests" / "clients" / script, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.splitlines()


@contextmanager
def run_server(*what):
    """URL of a server that is ready."""
    with start_server(*what) as (process, url):
        wait_ready(process)
        yield url


@pytest.fixture(scope="module")
def voice_server(tmp_path_factory):
    file = tmp_path_factory.mktemp("voices") / "voices.toml"
    file.write_text(VOICE_MANIFEST)
    with run_server(file) as url:
        yield f"{url}/v1"


@pytest.mark.nightly
@pytest.mark.parametrize("library", ["pipecat", "livekit"])
def test_a_voice_agent_speaks_and_transcribes(voice_server, tmp_path, library):
    samples, rate = soundfile.read(ROOT / "tests" / "nn" / "peter.wav")
    soundfile.write(tmp_path / "input.wav", samples, rate, "PCM_16")
    *_, transcript, own = run_client(library, f"talk_{library}.py", voice_server, TEXT, tmp_path)
    assert word_error_rate(SPOKEN_TEXT, transcript) == 0
    assert word_error_rate(TEXT, own) == 0
    speech = np.fromfile(tmp_path / "speech.pcm", "<i2") / 32768
    assert 1.5 < len(speech) / 24_000 < 4
    tenths = np.abs(speech[: len(speech) // 2400 * 2400].reshape(-1, 2400)).max(axis=1)
    assert (tenths > 0.05).mean() > 0.5


def test_openpi_gets_the_actions_of_the_model(tmp_path):
    seen = observation(3)
    np.savez(tmp_path / "seen.npz", **seen)
    with run_server(f"{ROOT / 'tests' / 'server' / 'toy_robot_models.py'}:Arm", "--in-process") as url:
        address = urlsplit(url)
        rate, *error = run_client("openpi", "act_openpi.py", address.hostname, str(address.port), tmp_path)
    assert rate == "50"
    assert "float32[31]" in "".join(error)  # a wrong observation is an error in the client
    actions = np.load(tmp_path / "actions.npy")
    assert [*actions.shape] == [2, 50, 7]
    for seed, chunk in enumerate(actions):  # of one call, each chunk has a seed of its own
        assert np.array_equal(chunk, Arm().run(ActionRequest(seen, "fold", seed)).emissions[-1].value)


def test_an_agent_uses_responses_and_tools():
    with run_server(f"{ROOT / 'tests' / 'server' / 'toy_models.py'}:Parrot", "--in-process") as url:
        (model,) = httpx2.get(f"{url}/v1/models").json()["data"]
        lines = run_client("livekit", "respond_livekit.py", f"{url}/v1", model["id"])
    assert lines == ["hello", "again", 'look {"at":1}']


@pytest.mark.nightly
def test_anthropic_messages_with_smollm2():
    with run_server(SMOLLM2, "--in-process", "--api-key", "secret") as url:
        (model,) = httpx2.get(f"{url}/v1/models", headers={"x-api-key": "secret"}).json()["data"]
        lines = run_client("anthropic", "message_anthropic.py", url, model["id"], "secret")
    text, streamed, stopped, called, answered, error = map(json.loads, lines)
    assert "Paris" in text[0]
    assert text[1] in ("end_turn", "max_tokens")
    assert streamed == [True, True, *text[2:]]
    assert text[2] > 20
    assert stopped == [text[0].partition("is Paris")[0], "stop_sequence", "is Paris"]
    assert called == ["tool_use", "get_weather", ["city"], "tool_use"]
    assert answered in ("end_turn", "max_tokens")
    assert error == [400, "invalid_request_error"]


def test_anthropic_calls_tools_of_an_mcp_server(tmp_path):
    records = Records(tmp_path / "lines")
    model = ROOT / "tests" / "server" / "toy_tool_model.py"
    manifest = tmp_path / "mstar.toml"
    manifest.write_text(f'[models.scripted]\nmodel = "{model}"\n{records.manifest}')
    script = [[["record", {"text": "a"}]], [["record", {"text": "b"}]], "done"]
    with run_server(manifest, "--in-process") as url:
        lines = run_client("anthropic", "mcp_anthropic.py", url, "scripted", json.dumps(script))
    kinds = [*["mcp_tool_use", "mcp_tool_result"] * 2, "text"]
    expected = [kinds, [{"text": "a"}, {"text": "b"}], ["recorded a", "recorded b"], "done", "end_turn"]
    assert [json.loads(line) for line in lines] == [expected, expected]
    assert records.lines == ["a", "b"] * 2


@pytest.mark.nightly
def test_smollm2_calls_a_tool_of_an_mcp_server(tmp_path):
    """With OpenAI's SDK. The call is forced: the model was not trained on tools."""
    records, manifest = Records(tmp_path / "lines"), tmp_path / "mstar.toml"
    manifest.write_text(f'[models.smollm2]\nmodel = "smollm2"\n{records.manifest}')
    choice = {"type": "mcp", "server_label": "records", "name": "record"}
    options = {"model": "smollm2", "input": "Record the word hello.", "temperature": 0, "max_output_tokens": 60}
    with run_server(manifest) as url, OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as openai:
        response = openai.responses.create(**options, tools=[TOOL], tool_choice=choice)
    tools, call, message = response.output
    assert [tool.name for tool in tools.tools] == ["record"]
    assert (call.name, call.status, call.error) == ("record", "completed", None)
    assert records.lines == [json.loads(call.arguments)["text"]]
    assert call.output == f"recorded {records.lines[0]}"
    assert message.content[0].text

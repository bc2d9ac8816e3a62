"""`mstar run`: words, sounds and pictures in and out, here and from a server, and every way it can fail."""

import io
import json
import shutil
import signal
import subprocess
import sys
import time
import wave
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mstar.cli import main
from mstar.requests import Sampling
from mstar.server.state import ServedModel
from tests.models.diffusion.diffusion_tiny import save_sd3
from tests.server import toy_speech_models
from tests.server.model_server import serve_models
from tests.server.toy_server import run_toy_server
from tests.server.toy_voice_model import Talker

MODELS_DIR = Path(__file__).parents[1] / "server"
PARROT, MIXER = f"{MODELS_DIR / 'toy_models.py'}:Parrot", f"{MODELS_DIR / 'toy_models.py'}:Mixer"
TALKER, SPEAKER = f"{MODELS_DIR / 'toy_voice_model.py'}", f"{MODELS_DIR / 'toy_speech_models.py'}:ToneSpeaker"
TRANSCRIBER, PAINTER = (
    f"{MODELS_DIR / 'toy_speech_models.py'}:ToneTranscriber",
    f"{MODELS_DIR / 'toy_image_models.py'}:ImageGenerator",
)


@pytest.fixture
def workdir(tmp_path, monkeypatch):
    """An empty folder to stand in: sounds are written where one stands."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(capsys, workdir):
    """Runs a request: its status, and what it printed to each side."""

    def command(*arguments):
        status = main(["run", *map(str, arguments)])
        payload = capsys.readouterr()
        return status, payload.out, payload.err

    return command


@pytest.fixture
def tone(workdir):
    """A second of sound, half of which is loud."""
    samples = np.concatenate([np.full(8000, 0.5), np.zeros(8000)])
    with wave.open(str(workdir / "tone.wav"), "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes((samples * 32767).astype("<i2").tobytes())
    return workdir / "tone.wav"


def seconds(path):
    with wave.open(str(path)) as file:
        return file.getnframes() / file.getframerate()


# ---------------------------------------------------------------- in this process
def test_a_text_is_answered_and_timed(run):
    status, out, err = run(PARROT, "good", "morning")
    assert (status, out) == (0, "goodmorning\n")
    assert "loading letters (1 of 1)\nloaded in" in err
    assert "first text" in err
    assert "total" in err


def test_text_from_standard_input_and_a_limit(run, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("from a pipe"))
    assert run(PARROT, "-", "--max-tokens", 4)[1] == "from\n"


def test_the_seed_reaches_the_model(run):
    assert run(PARROT, "{seed}", "--seed", 7)[1] == "7\n"


def test_the_temperature_is_that_of_the_model(run, monkeypatch):
    sampled = []
    monkeypatch.setattr(ServedModel, "sampling", lambda self, **params: sampled.append(params) or Sampling())
    run(PARROT, "hi")
    run(PARROT, "hi", "--temperature", 0.5)
    assert [params["temperature"] for params in sampled] == [None, 0.5]


def test_inputs_may_stand_behind_flags(run):
    assert run(PARROT, "--seed", 7, "good", "{seed}")[1] == "good7\n"


def test_a_spoken_question_is_written_down_and_answered_in_sound(run, workdir, tone):
    status, out, err = run(TALKER, tone)
    assert (status, out) == (0, "> heard 1.0 with 0.5 loud\nheard 1.0 with 0.5 loud\n")
    letters = len("heard 1.0 with 0.5 loud")
    assert seconds(workdir / "output.wav") == pytest.approx(letters / 50)
    assert f"output.wav: {letters / 50:.2f} s of audio, real-time factor" in err


def test_a_text_is_answered_in_sound_only_when_that_is_wanted(run, workdir):
    run(TALKER, "abc")
    assert not (workdir / "output.wav").exists()
    run(TALKER, "abc", "-o", "said.wav")
    assert seconds(workdir / "said.wav") == pytest.approx(3 / 50)


def test_a_text_is_given(run, workdir):
    status, out, _ = run(SPEAKER, "hello", "-o", "x.flac")
    assert (status, out) == (0, "")
    assert (workdir / "x.flac").read_bytes()[:4] == b"fLaC"


def test_a_sound_is_written_down(run, tone):
    status, out, _ = run(TRANSCRIBER, tone)
    assert status == 0
    assert out.strip()
    assert not out.startswith(">")


def test_a_request_of_the_models_own_type(run, workdir):
    sound = {"dtype": "float32", "shape": [2], "data": "AAAAPwAAAD8="}
    status, out, _ = run(MIXER, "--json", json.dumps({"sound": sound, "times": 4000}))
    assert status == 0
    assert json.loads(out) == {"result": {"gains": [], "sound": sound}}
    assert seconds(workdir / "output.wav") == 1.0


def test_a_picture_is_written(run, workdir):
    status, _, err = run(PAINTER, "--json", json.dumps({"prompt": "a dot", "width": 32, "height": 32, "steps": 2}))
    assert status == 0, err
    assert (workdir / "output.png").read_bytes()[1:4] == b"PNG"


def test_a_prompt_is_drawn(run, workdir):
    status, out, err = run(PAINTER, "a", "dot")
    assert (status, out) == (0, ""), err
    assert (workdir / "output.png").read_bytes()[1:4] == b"PNG"
    assert "output.png: image" in err


def test_a_prompt_is_drawn_by_sd3(run, workdir):
    save_sd3(workdir / "sd3")
    status, _, err = run(f"sd3@{workdir / 'sd3'}", "a cat", "-o", "cat.png")
    assert status == 0, err
    with Image.open(workdir / "cat.png") as image:
        assert min(image.size) > 0


def test_what_was_played(run, workdir, monkeypatch):
    """A player that notes what it is given: the tests' machines have no loudspeaker."""
    player = workdir / "aplay"
    player.write_text(f'#!/bin/sh\necho "$@" > {workdir}/played\n')
    player.chmod(0o755)
    monkeypatch.setenv("PATH", f"{workdir}:/bin:/usr/bin")
    run(TALKER, "abc", "--play")
    assert (workdir / "played").read_text() == "-q output.wav\n"


# ---------------------------------------------------------------- what goes wrong
@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        (("smolm2", "x"), "did you mean `smollm2`"),
        ((PARROT,), "not nothing"),
        ((MIXER, "x"), "not `x`"),
        ((PARROT, "none.wav"), "none.wav: cannot be read"),
        ((PARROT, "x", "-o", "none/x.wav"), "folder none does not exist"),
        ((SPEAKER, "x", "-o", "x.txt"), "unsupported audio format"),
        ((MIXER, "--json", "{"), "--json is not JSON"),
        ((MIXER, "--json", "{}"), " is missing; ['sound'"),
    ],
)
def test_mistakes_are_reported_with_what_to_do(run, arguments, reported):
    status, out, err = run(*arguments)
    assert (status, out) == (1, "")
    assert reported in err
    assert "\n  fix: " in err


FAILING_MODEL = """
from collections.abc import Iterator
import numpy as np
from mstar import Component, Int64, Model, Tensor, Text, op, walk
from mstar.requests import ChatRequest

WHERE = {where!r}

def fail(place):
    if WHERE == place:
        raise ValueError("bad luck")  # the line

class Echo(Component):
    def prepare(self) -> None:
        fail("prepare")

    @op
    def first(self, text: str) -> Int64[Tensor, "1"]:
        fail("op")
        return np.array([ord(text[0])], np.int64)

class Failing(Model):
    def __init__(self) -> None:
        fail("import")
        self.echo = Echo()

    @walk
    def say(self, text: str) -> Iterator[Text]:
        yield Text(self.echo.first(text))

    async def route(self, request: ChatRequest) -> None:
        fail("route")
        await self.say(request.messages[0].parts[0])

    def detokenize(self, tokens, /):
        fail("detokenize")
        return bytes(tokens).decode()
"""


@pytest.mark.parametrize("where", ["op", "route", "prepare", "detokenize", "import"])
def test_an_exception_of_a_model_has_its_line(run, workdir, where):
    text = FAILING_MODEL.format(where=where)
    (workdir / "failing.py").write_text(text)
    line = 1 + text[: text.index("# the line")].count("\n")
    status, out, err = run("failing.py", "x")
    assert (status, out) == (1, "")
    assert f"failing.py:{line}" in err
    assert "ValueError: bad luck" in err
    assert "Traceback" not in err
    assert "raised at:" not in err
    assert ("op echo.first of walk say raised" in err) is (where == "op")
    status, _, err = run("failing.py", "x", "--traceback")
    assert status == 1
    assert f'failing.py", line {line}, in fail' in err


def test_without_a_player_nothing_is_played(run, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    status, _, err = run(TALKER, "abc", "--play")
    assert status == 1
    assert "`aplay`, `ffplay`, `afplay`" in err


def test_a_file_that_is_no_sound_is_refused(run, workdir):
    (workdir / "bad.wav").write_bytes(b"RIFF????WAVEnothing")
    status, _, err = run(TALKER, "bad.wav")
    assert status == 1
    assert "damaged" in err


@pytest.mark.slow
@pytest.mark.parametrize("how", ["signal", "pipe"])
def test_who_wants_no_more_does_not_wait(how, workdir):
    """In a process of its own, of which only the beginning is read. The whole would take half a minute."""
    command = [sys.executable, "-m", "mstar.cli", "run", PARROT, "slow" + "x" * 3000, "--max-tokens", "4000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.read(4) == b"slow"
        begun = time.monotonic()
        if how == "signal":
            process.send_signal(signal.SIGINT)
        else:
            process.stdout.close()
        assert process.wait(10) == {"signal": 130, "pipe": 141}[how]
        assert time.monotonic() - begun < 5
        assert b"Traceback" not in process.stderr.read()


# ---------------------------------------------------------------- a running server
@pytest.fixture(scope="module")
def url():
    with run_toy_server() as server:
        yield server.url


def test_a_running_server_hears_answers_and_speaks(run, workdir, tone):
    with serve_models({"talker": Talker(), "speaker": toy_speech_models.ToneSpeaker()}) as model_server:
        status, out, _ = run("talker", tone, "--url", model_server.url)
        assert (status, out) == (0, "> heard 1.0 with 0.5 loud\nheard 1.0 with 0.5 loud\n")
        assert seconds(workdir / "output.wav") == pytest.approx(len("heard 1.0 with 0.5 loud") / 50, abs=0.01)
        assert run("speaker", "hello", "--url", model_server.url, "-o", "said.wav")[0] == 0
        assert seconds(workdir / "said.wav") > 0


def test_a_running_server_is_asked(run, workdir, url):
    status, out, err = run("parrot", "good morning", "--url", url, "-o", "x.wav", "--voice", "polly")
    assert (status, out) == (0, "good morning\n")
    assert "loaded" not in err
    assert seconds(workdir / "x.wav") == pytest.approx(len("good morning") / 100)


def test_a_running_server_takes_the_models_own_request_type(run, url):
    sound = {"dtype": "float32", "shape": [2], "data": "AAAAPwAAAD8="}
    lines = run("mixer", "--json", json.dumps({"sound": sound, "times": 2}), "--url", url)[1].splitlines()
    assert [json.loads(line).get("kind") for line in lines] == ["Audio", "Audio", None]
    assert json.loads(lines[-1])["result"]["gains"] == []


def test_a_model_that_is_not_served(run, url):
    status, _, err = run("parot", "x", "--url", url)
    assert status == 1
    assert "did you mean `parrot`" in err


def test_no_server(run):
    status, _, err = run("parrot", "x", "--url", "http://127.0.0.1:9")
    assert status == 1
    assert "fix:" in err


# ---------------------------------------------------------------- real weights
@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_the_assistant_hears_answers_and_speaks(workdir):
    """In a process of its own, as a user runs it: networks are loaded there."""
    question = Path(__file__).parents[2] / "examples" / "question.wav"
    command = [sys.executable, "-m", "mstar.cli", "run", "assistant", str(question)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "> What is the capital of France?\nThe capital of France is Paris.\n"
    assert 1.5 < seconds(workdir / "output.wav") < 4
    assert "first audio" in done.stderr

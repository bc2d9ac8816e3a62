"""`mstar capture` at a real server: what its file has of requests, what it never has, and that it can be replayed."""

import json
import threading
import time
from random import Random

import httpx2
import pytest

from mstar.cli import main
from mstar.cli.bench.arrivals import read_trace, replayed_params, replayed_text
from mstar.cli.bench.request_kinds import REQUEST_KINDS
from mstar.server.access.api_keys import ApiKeys
from tests.server.model_server import serve_models
from tests.server.toy_image_models import ImageGenerator
from tests.server.toy_models import Parrot, Vectors
from tests.server.toy_speech_models import ToneSpeaker, ToneTranscriber

SECRET = "the launch code is 1234"


@pytest.fixture(scope="module")
def model_server():
    models = {
        "parrot": Parrot(),
        "vectors": Vectors(),
        "speaker": ToneSpeaker(),
        "scribe": ToneTranscriber(),
        "painter": ImageGenerator(),
    }
    with serve_models(models, ApiKeys(["k"], operator_keys=["root"])) as started:
        yield started


def send(url, path, **more):
    response = httpx2.post(f"{url}{path}", headers={"Authorization": "Bearer k", **more.pop("headers", {})}, **more)
    assert response.status_code == 200, response.text
    return response


def send_all(url):
    """A request of each kind, with something private in it."""
    chat = {"model": "parrot", "messages": [{"role": "user", "content": SECRET}], "max_tokens": 40, "seed": 7}
    send(url, "/v1/chat/completions", json=chat | {"temperature": 0.5}, headers={"Mstar-SLO": "ttft=2"})
    send(url, "/v1/embeddings", json={"model": "vectors", "input": [SECRET, SECRET]})
    send(url, "/v1/audio/speech", json={"model": "speaker", "input": SECRET, "response_format": "pcm"})
    audio = REQUEST_KINDS["transcriptions"].make_request("", Random(0), "scribe", {"audio_s": 2.5})
    send(url, "/v1/audio/transcriptions", content=audio.body, headers={"Content-Type": audio.content_type})
    send(url, "/v1/images/generations", json={"model": "painter", "prompt": SECRET, "seed": 3})


def capture(model_server, path, count, *more, sender=send_all):
    """Run the command while requests are sent; returns its exit status."""
    state = model_server.state

    def send_when_captured():
        until = time.monotonic() + 20
        while not state.traffic.is_active:
            assert time.monotonic() < until
            time.sleep(0.01)
        sender(model_server.url)

    client = threading.Thread(target=send_when_captured)
    client.start()
    flags = ["--key", "root", "-o", str(path), "--requests", str(count), "--seconds", "20", *more]
    status = main(["capture", model_server.url, *flags])
    client.join()
    return status


def test_shapes_parameters_and_outputs_are_recorded_and_contents_are_not(model_server, tmp_path, capsys):
    path = tmp_path / "traffic.jsonl"
    assert capture(model_server, path, 5) == 0
    assert "recorded 1 chat, 1 embeddings, 1 speech, 1 transcriptions, 1 images in " in capsys.readouterr().out
    assert path.stat().st_mode & 0o077 == 0
    assert "launch" not in path.read_text()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    chat, embeddings, speech, transcription, image = lines
    assert chat["body"] == {"max_tokens": 40, "temperature": 0.5, "seed": 7}
    assert chat["input"]["characters"] == len(SECRET)
    assert chat["input"]["messages"] == 1
    assert (chat["slo"], chat["status"], chat["model"]) == ("ttft=2.0000", 200, "parrot")
    assert chat["endpoint"] == "/v1/chat/completions"
    assert chat["output"]["text"] > 0
    assert embeddings["input"]["texts"] == 2
    assert speech["output"]["audio_s"] > 0
    assert transcription["input"]["audio_s"] == pytest.approx(2.5)
    assert image["body"]["seed"] == 3
    assert image["output"]["image"] == 1
    assert [line["at"] for line in lines] == sorted(line["at"] for line in lines)
    assert all(0 <= line["at"] < 20 and 0 < line["seconds"] < 20 for line in lines)
    assert not model_server.state.traffic.is_active or time.sleep(0.2) is None


def test_a_captured_file_is_replayed_with_its_times_and_sizes(model_server, tmp_path, capsys):
    path, report = tmp_path / "traffic.jsonl", tmp_path / "report.json"
    assert capture(model_server, path, 5) == 0
    arrivals = {arrival.kind: arrival for arrival in read_trace(path, REQUEST_KINDS)}
    chat = arrivals["chat"].overrides
    assert abs(len(replayed_text(chat)) - len(SECRET)) <= 1  # spaces at its end are dropped
    assert replayed_params("chat", chat)["max_tokens"] == chat["output"]["text"]
    assert main(["bench", "serve", model_server.url, "--key", "k", "--trace", str(path), "--json", str(report)]) == 0
    records = json.loads(report.read_text())["levels"][0]["records"]
    assert sorted(record["kind"] for record in records) == sorted(arrivals)
    for record in records:
        assert record["due_at"] == pytest.approx(arrivals[record["kind"]].at, abs=1e-6)
        assert (record["status"], record["error"]) == (200, "")
    assert [record["audio_input_s"] for record in records if record["kind"] == "transcriptions"] == [pytest.approx(2.5)]
    capsys.readouterr()
    assert main(["bench", "serve", model_server.url, "--key", "k", "--trace", str(path), "--model", "chat=nobody"]) == 1
    assert "no model is called `nobody`" in capsys.readouterr().err


def test_contents_need_the_servers_consent(model_server, tmp_path, capsys, monkeypatch):
    path = tmp_path / "traffic.jsonl"
    flags = ["capture", model_server.url, "--key", "root", "-o", str(path), "--contents"]
    assert main(flags) == 1
    assert "fix: start it with --capture-text" in capsys.readouterr().err
    monkeypatch.setattr(model_server.state, "captures_text", True)
    assert capture(model_server, path, 5, "--contents") == 0
    chat, *_ = (json.loads(line) for line in path.read_text().splitlines())
    assert chat["text"] == SECRET
    assert replayed_text(chat) == SECRET


def test_the_file_does_not_exceed_its_size(model_server, tmp_path, capsys):
    path = tmp_path / "traffic.jsonl"
    assert capture(model_server, path, 100, "--max-bytes", "700") == 0
    assert 0 < path.stat().st_size <= 700
    assert "the file has its maximum size of 700 bytes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--key", "k"], "this needs an operator key"),
        (["--key", "wrong"], "missing or invalid API key"),
    ],
)
def test_only_operators_capture(model_server, tmp_path, capsys, flags, problem):
    assert main(["capture", model_server.url, "-o", str(tmp_path / "x"), *flags]) == 1
    message = capsys.readouterr().err
    assert problem in message
    assert "\n  fix: " in message


def test_a_wrong_address_is_reported(tmp_path, capsys):
    assert main(["capture", "http://127.0.0.1:1", "-o", str(tmp_path / "x")]) == 1
    assert "no server at http://127.0.0.1:1" in capsys.readouterr().err
    assert main(["capture", "127.0.0.1", "-o", str(tmp_path / "x")]) == 1
    assert "is not an HTTP URL" in capsys.readouterr().err
    assert main(["capture", "http://127.0.0.1:1", "-o", str(tmp_path / "no" / "x")]) == 1
    assert "cannot be written" in capsys.readouterr().err

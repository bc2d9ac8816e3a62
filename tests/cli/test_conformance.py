"""`mstar conformance` against real servers of toy models: what is right is ok, what is not offered is said to be so,
and what is wrong is found."""

import json
import sys

import pytest

from mstar.cli import main
from mstar.server.access.api_keys import ApiKeys
from tests.server import toy_speech_models, toy_voice_model
from tests.server.model_server import serve_models
from tests.server.toy_image_models import ImageGenerator, VideoGenerator
from tests.server.toy_models import Mixer, Parrot, Vectors
from tests.server.toy_robot_models import Arm


@pytest.fixture(scope="module")
def model_server():
    models = {
        "parrot": Parrot(),
        "vectors": Vectors(),
        "speaker": toy_speech_models.ToneSpeaker(),
        "scribe": toy_speech_models.ToneTranscriber(),
        "painter": ImageGenerator(),
        "filmer": VideoGenerator(),
        "arm": Arm(),
        "talker": toy_voice_model.Talker(),
        "mixer": Mixer(),
    }
    with serve_models(models, ApiKeys(["k"])) as started:
        yield started


def run_conformance(model_server, capsys, model, *more):
    """What became of each call, and the exit status."""
    status = main(["conformance", model_server.url, "--key", "k", "--model", model, "--json", *more])
    rows = json.loads(capsys.readouterr().out)["calls"]
    return {(row["endpoint"], row["call"]): row for row in rows}, status


def results(rows, surface):
    return {call: row["result"] for (path, call), row in rows.items() if path == surface}


EXPECTED_CHECKS = {
    "vectors": ("/v1/embeddings", {"float", "base64"}),
    "speaker": ("/v1/audio/speech", {"mp3", "opus", "aac", "flac", "wav", "pcm", "pcm at 24 kHz", "sse"}),
    "scribe": ("/v1/audio/transcriptions", {"json", "text", "srt", "vtt", "verbose_json", "stream"}),
    "painter": ("/v1/images/generations", {"generate", "partial images"}),
    "filmer": ("/v1/videos", {"create, poll, content"}),
    "arm": ("/v1/actions", {"act"}),
    "talker": ("/v1/realtime", {"text turn", "audio turn"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("model", EXPECTED_CHECKS)
def test_what_is_served_well_is_ok_and_the_rest_says_where_to_go(model_server, capsys, model):
    rows, status = run_conformance(model_server, capsys, model)
    surface, calls = EXPECTED_CHECKS[model]
    assert results(rows, surface) == dict.fromkeys(calls, "ok")
    assert set(results(rows, "").values()) == {"ok"}
    if model != "talker":
        assert results(rows, "/v1/chat/completions") == {"any": "not served"}
        assert surface in rows["/v1/chat/completions", "any"]["note"]
        assert status == 0, [row for row in rows.values() if row["result"] == "failed"]


def test_what_is_wrong_is_found(model_server, capsys):
    rows, status = run_conformance(model_server, capsys, "parrot")
    chat = results(rows, "/v1/chat/completions")
    failed = {call for call, result in chat.items() if result == "failed"}
    assert failed == {"tools", "json_schema"}  # it repeats what it is told, and obeys no grammar
    assert rows["/v1/chat/completions", "json_schema"]["note"].startswith("JSONDecodeError")
    responses = results(rows, "/v1/responses")
    assert {call for call, result in responses.items() if result == "failed"} == {"tools", "json_schema"}
    assert responses["stream"] == responses["stored"] == "ok"
    assert set(results(rows, "/v1/completions").values()) == {"ok"}
    assert chat["audio out, stream"] == chat["stop"] == chat["usage"] == "ok"
    assert status == 1


def test_a_model_that_no_library_knows_says_where_it_is_served(model_server, capsys):
    rows, status = run_conformance(model_server, capsys, "mixer")
    assert {row["result"] for row in rows.values()} == {"ok", "not served"}
    assert rows["/v1/chat/completions", "any"]["note"].endswith("it is served at `/v1/generate`")
    assert status == 0


def test_a_table_for_people(model_server, capsys):
    assert main(["conformance", model_server.url, "--key", "k", "--model", "vectors"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"vectors at {model_server.url}\nendpoint ")
    assert "/v1/embeddings               float                ok" in out
    assert out.endswith("10 ok, 0 failed, 14 not served\n")


def test_who_cannot_be_tried(model_server, capsys, monkeypatch):
    assert main(["conformance", model_server.url, "--key", "k", "--model", "nobody"]) == 1
    assert "fix: pass --model with one of `parrot`" in capsys.readouterr().err
    assert main(["conformance", model_server.url, "--key", "wrong"]) == 1
    assert "401 invalid_api_key" in capsys.readouterr().err
    for name in [name for name in sys.modules if name.startswith("mstar.cli.conformance.target")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "openai", None)
    assert main(["conformance", model_server.url]) == 1
    assert "fix: pip install" in capsys.readouterr().err


@pytest.mark.slow
def test_openpi_is_tried_with_its_own_python(model_server, capsys, tmp_path):
    assert results(run_conformance(model_server, capsys, "arm")[0], "/") == {"openpi": "not served"}
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'no module openpi_client' >&2\nexit 1\n")
    python.chmod(0o755)
    rows, status = run_conformance(model_server, capsys, "arm", "--openpi-python", str(python))
    assert (rows["/", "openpi"]["result"], rows["/", "openpi"]["note"]) == (
        "failed",
        "CheckFailed: no module openpi_client",
    )
    assert status == 1

"""`mstar bench` against a real server: it counts what its clients saw, and says what failed."""

import json

import pytest

from mstar.cli import main
from tests.server.parts import serving
from tests.server.sounding import sounding


@pytest.fixture(scope="module")
def server():
    with serving() as started:
        yield started


def test_a_load_of_chats_is_counted(server, capsys):
    before = len(server.parrot.seen)
    command = ["bench", server.url, "--model", "parrot", "--requests", "6", "--concurrency", "1,3"]
    assert main([*command, "--json"]) == 0
    one, three = json.loads(capsys.readouterr().out)["levels"]
    assert len(server.parrot.seen) - before == 1 + 6 + 6  # one is not counted
    for level, row in ((1, one), (3, three)):
        assert (row["concurrency"], row["ok"], row["errors"], row["rtf"]) == (level, 6, {}, {})
        assert 0 < row["first_ms"]["p50"] <= row["first_ms"]["p99"] < 1000 * row["seconds"]
        tokens = 6 * len("Tell me a story about the number 1.")
        assert row["tokens_per_s"] == pytest.approx(tokens / row["seconds"])
    assert main(command) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[:4] == ["clients", "ok", "failed", "req/s"]
    assert [row.split()[:3] for row in rows] == [["1", "6", "0"], ["3", "6", "0"]]


@pytest.mark.parametrize(("surface", "model"), [("speech", "talker"), ("transcriptions", "scribe")])
def test_sound_is_counted_in_seconds(surface, model, capsys):
    command = ["--model", model, "--surface", surface, "--requests", "2", "--concurrency", "2", "--json"]
    with sounding() as server:
        assert main(["bench", server.url, *command]) == 0
    (row,) = json.loads(capsys.readouterr().out)["levels"]
    spoken = len("This is sentence number 1, and it is said to see how fast that goes.") / 10
    assert row["audio_s_per_s"] * row["seconds"] == pytest.approx(2 * (spoken if surface == "speech" else 5.0))
    assert row["rtf"]["p50"] < 1


def test_what_fails_is_said(server, capsys):
    assert main(["bench", server.url, "--model", "vectors"]) == 1
    assert "it is served at `/v1/embeddings`" in capsys.readouterr().err
    assert main(["bench", "http://127.0.0.1:1", "--model", "parrot"]) == 1
    assert "fix: see that it runs" in capsys.readouterr().err

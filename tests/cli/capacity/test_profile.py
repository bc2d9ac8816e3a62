"""`mstar profile`: requests of a file, calibration with real workers, and what is printed and written."""

from __future__ import annotations

from pathlib import Path

import pytest

from mstar.cli.capacity.profiled_requests import default_requests, read_requests
from mstar.cli.main import main
from mstar.errors import LoadError
from mstar.plan.profile import ModelProfile
from mstar.server.state import ServedModel
from mstar.walk.load import load_model

TARGET = "bench/models/tone_stream.py"


def served(target: str) -> ServedModel:
    return ServedModel.from_model(target, load_model(target))


@pytest.mark.slow
def test_a_profile_of_a_real_deployment(tmp_path: Path, capsys):
    """The ops of the model sleep, so its workers do not slow each other."""
    (tmp_path / "requests.jsonl").write_text('{"kind": "speech", "request": [5, 2]}\n')
    (tmp_path / "place.toml").write_text('[place]\ngenerator = ["a", "b"]\n')
    words = ["profile", TARGET, "--requests", str(tmp_path / "requests.jsonl"), "--rounds", "1", "--threads", "1"]
    words += ["--placement", str(tmp_path / "place.toml"), "-o", str(tmp_path / "p.json")]
    assert main(words) == 0
    shown = capsys.readouterr()
    assert "profiled 2 of 2 servings" in shown.err
    assert "generator.next_tone" in shown.out
    profile = ModelProfile.load(tmp_path / "p.json")
    (device,) = profile.devices
    assert (device.device, device.source, profile.threads) == ("cpu", "measured", 1)
    assert len(device.shared) == 2
    assert 1.0 <= device.shared[1] < 1.5
    assert all(0.02 <= seconds < 0.06 for seconds in device.calls_s[0])


def test_default_requests_have_three_lengths():
    requests = default_requests(served("smollm2"))
    assert {one.kind for one in requests} == {"chat"}
    assert {one.request.sampling.max_tokens for one in requests} == {16, 48, 128}
    assert len(requests) == 10


def test_requests_of_a_file(tmp_path: Path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"kind": "chat", "text": "Hello", "max_tokens": 5}\n\n{"kind": "chat"}\n')
    first, second = read_requests(path, served("smollm2"))
    assert first.request.messages[0].parts == ("Hello",)
    assert first.request.sampling.max_tokens == 5
    assert second.request.sampling.max_tokens == 48


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("x", "is not a request"),
        ('{"kind": "images"}', "the model does not accept 'images'"),
        ('{"kind": "chat", "txt": "x"}', "unknown field `txt`"),
        ("", "there is no request"),
    ],
)
def test_another_file_is_refused(line: str, message: str, tmp_path: Path):
    path = tmp_path / "x.jsonl"
    path.write_text(line)
    with pytest.raises(LoadError, match=message):
        read_requests(path, served("smollm2"))


def test_a_placement_with_ranks_is_refused(tmp_path: Path, capsys):
    (tmp_path / "place.toml").write_text('[place]\ngenerator = "a"\n[workers.a]\ndevice = "cuda"\nranks = 2\n')
    words = ["profile", TARGET, "--placement", str(tmp_path / "place.toml"), "-o", str(tmp_path / "p.json")]
    assert main(words) == 1
    assert "has ranks" in capsys.readouterr().err

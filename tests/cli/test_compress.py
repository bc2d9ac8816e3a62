"""`mstar compress`: recordings in, a smaller checkpoint out, unless its transcripts got worse."""

import json

import numpy as np
import pytest
import soundfile

from mstar.cli import main
from mstar.cli.compress.command import divide
from mstar.cli.compress.speech import MAX_RECORDING_S, read_speech
from mstar.errors import LoadError
from mstar.models.whisper import tokenizer
from tests.models.transcripts import one_thread
from tests.models.whisper import whisper_tiny as tiny

RATE = 8000


@pytest.fixture
def recordings(tmp_path):
    folder = tmp_path / "speech"
    folder.mkdir()
    for number in range(4):
        sound = tiny.sound(number)
        soundfile.write(folder / f"{number}.wav", sound.samples, sound.rate)
        (folder / f"{number}.txt").write_text("two words")
    return folder


@pytest.fixture
def checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenizer, "MAX_TRANSCRIPT_TOKENS", 10)
    with one_thread():
        yield tiny.save(tmp_path / "whisper")


def compress(checkpoint, recordings, output, *options):
    return main(["compress", str(checkpoint), "-o", str(output), "--speech", str(recordings), *options])


@pytest.mark.slow
def test_a_checkpoint_is_written(checkpoint, recordings, tmp_path, capsys):
    assert compress(checkpoint, recordings, tmp_path / "small", "--max-word-error-increase", "1000") == 0
    captured = capsys.readouterr()
    assert "of 4 words" in captured.out
    assert f"next: mstar serve {tmp_path / 'small'}" in captured.out
    assert "compressed 1 of 1 layers" in captured.err
    assert json.loads((tmp_path / "small" / "config.json").read_text())["low_rank"]["linears"]
    assert compress(checkpoint, recordings, tmp_path / "small") == 1
    assert "exists\n  fix: choose another folder" in capsys.readouterr().err


@pytest.mark.slow
def test_a_model_with_more_word_errors_is_not_written(checkpoint, recordings, tmp_path, capsys):
    assert compress(checkpoint, recordings, tmp_path / "small", "--max-word-error-increase", "-1000") == 1
    assert "points more, limit -1000\n  fix: pass a larger --rank-energy" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["speech", "whisper"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["hibari", "-o", "{0}/small"], "hibari cannot be compressed\n  fix: pass whisper"),
        (["whisper", "-o", "{0}/small", "--rank-energy", "2"], "--rank-energy is 2, not a share\n  fix: "),
        (["whisper", "-o", "{0}/none/small"], "folder {0}/none does not exist\n  fix: "),
        (["whisper", "-o", "{0}/small", "--speech", "{0}"], "{0} has no recordings\n  fix: "),
    ],
)
def test_wrong_arguments_are_refused(arguments, problem, tmp_path, capsys):
    assert main(["compress", *(argument.format(tmp_path) for argument in arguments)]) == 1
    assert problem.format(tmp_path) in capsys.readouterr().err


def test_recordings_without_a_text_are_joined_and_calibrate(recordings):
    long = np.ones(int(RATE * 1.5 * MAX_RECORDING_S), np.float32)
    for name in ("a.wav", "b.wav"):
        soundfile.write(recordings / name, np.stack([long, 0 * long], 1), RATE)
    result = read_speech(recordings)
    assert [recording.text for recording in result] == 4 * ["two words"] + 4 * [""]
    lengths = [len(recording.sound.samples) / RATE for recording in result[4:]]
    assert lengths[:3] == 3 * [MAX_RECORDING_S]
    assert result[4].sound.samples.max() == pytest.approx(0.5, abs=1e-4), "two channels are mixed"
    calibration, held_out = divide(result)
    assert len(calibration) == 6
    assert [id(recording) for recording in held_out] == [id(result[1]), id(result[3])]
    (recordings / "c.wav").write_text("no sound")
    with pytest.raises(LoadError, match=r"c.wav cannot be read[\s\S]*fix: "):
        read_speech(recordings)

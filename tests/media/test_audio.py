"""Sound as clients get it: every format, in bits of any size, is the sound that was fed."""

import io
import struct
import sys

import av
import numpy as np
import pytest
import soundfile

from mstar.errors import LoadError
from mstar.media.audio import FORMATS, AudioStreamEncoder, to_samples

RATE = 24_000
TONE = (0.5 * np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE)).astype(np.float32)


def encoded(name, sound=TONE, rate=RATE, target=RATE, step=1000):
    track = AudioStreamEncoder(name, target)
    parts = [track.feed(sound[start : start + step], rate) for start in range(0, len(sound), step)]
    return parts, b"".join([*parts, track.finish()])


def decoded(name, data):
    """What an independent decoder hears, and its rate."""
    if name == "pcm":
        return np.frombuffer(data, "<i2") / 32768, RATE
    with av.open(io.BytesIO(data)) as container:
        frames = list(container.decode(audio=0))
    blocks = [frame.to_ndarray().reshape(-1) for frame in frames]
    scale = 32768 if blocks[0].dtype == np.int16 else 1 << 31 if blocks[0].dtype == np.int32 else 1
    return np.concatenate(blocks) / scale, frames[0].sample_rate


def pitch(sound, rate):
    spectrum = np.abs(np.fft.rfft(sound * np.hanning(len(sound))))
    return np.argmax(spectrum) * rate / len(sound)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_the_sound_that_was_fed(name):
    parts, data = encoded(name)
    heard, rate = decoded(name, data)
    assert abs(len(heard) / rate - 1.0) < 0.1  # compressed ones have whole frames, and some before the first
    assert pitch(heard, rate) == pytest.approx(440, abs=2)
    assert np.sqrt(np.mean(heard**2)) == pytest.approx(0.5 / np.sqrt(2), rel=0.1)
    assert len(b"".join(parts[:15])) > len(data) / 4  # half of the sound was fed: bytes come while it is made


@pytest.mark.parametrize("name", ["pcm", "wav", "flac"])
def test_lossless_formats_lose_nothing_but_bits(name):
    heard, _ = decoded(name, encoded(name)[1])
    assert len(heard) == len(TONE)
    assert np.abs(heard - TONE).max() < 2 / 32768


def test_a_wav_has_one_header_whose_length_is_open():
    parts, data = encoded("wav")
    assert struct.unpack_from("<4sI4s", data) == (b"RIFF", 0xFFFFFFFF, b"WAVE")
    assert struct.unpack_from("<4sI", data, 36) == (b"data", 0xFFFFFFFF)
    assert data.count(b"RIFF") == data.count(b"data") == 1
    assert len(data) == 44 + 2 * len(TONE)
    assert soundfile.read(io.BytesIO(data))[0].shape == TONE.shape
    assert AudioStreamEncoder("wav", RATE).finish() == parts[0][:44]  # nothing was said: still a file


@pytest.mark.parametrize("step", [17, 1000, 24_000])
def test_how_a_sound_is_cut_is_not_heard(step):
    assert encoded("pcm", step=step)[1] == encoded("pcm")[1]
    resampled = [encoded("pcm", rate=16_000, step=size)[1] for size in (step, 5000)]
    assert resampled[0] == resampled[1]


@pytest.mark.parametrize("rate", [8000, 16_000, 22_050, 44_100, 48_000])
def test_other_rates_are_resampled(rate):
    tone = (0.5 * np.sin(2 * np.pi * 440 * np.arange(rate) / rate)).astype(np.float32)
    heard, _ = decoded("pcm", encoded("pcm", tone, rate)[1])
    assert abs(len(heard) - RATE) <= 1
    assert np.abs(heard[2000:-2000] - TONE[: len(heard)][2000:-2000]).max() < 0.01


def test_a_rate_that_changes_on_the_way_is_followed():
    track = AudioStreamEncoder("pcm", RATE)
    data = track.feed(TONE, RATE) + track.feed(np.zeros(16_000, np.float32), 16_000) + track.feed(TONE, RATE)
    heard = np.frombuffer(data + track.finish(), "<i2")
    assert abs(len(heard) - 3 * RATE) <= 1
    assert track.duration_s == pytest.approx(3)
    assert np.abs(heard[RATE + 100 : 2 * RATE - 100]).max() == 0


def test_what_is_too_loud_is_clipped():
    heard, _ = decoded("pcm", encoded("pcm", np.array([2.0, -2.0, 0.0], np.float32))[1])
    assert heard.tolist() == [32767 / 32768, -32767 / 32768, 0]


def test_a_format_says_which_rates_it_has():
    with pytest.raises(ValueError, match="opus has 8000, 12000, 16000, 24000, 48000 samples a second, and not 44100"):
        AudioStreamEncoder("opus", 44_100)
    assert AudioStreamEncoder("pcm", 16_000).media_type == "audio/pcm;rate=16000"
    assert AudioStreamEncoder("mp3", RATE).media_type == "audio/mpeg"


@pytest.mark.parametrize(("package", "name", "rate"), [("av", "mp3", RATE), ("soxr", "pcm", 16_000)])
def test_what_is_not_installed_is_named(monkeypatch, package, name, rate):
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not there
    with pytest.raises(LoadError, match=rf"needs {package}, not installed here\n  fix: pip install"):
        AudioStreamEncoder(name, RATE).feed(TONE, rate)


def test_samples_come_as_any_array():
    whole = to_samples(np.array([[16384, -32768]], np.int16))
    assert whole.tolist() == [0.5, -1.0]
    assert whole.dtype == np.float32
    assert to_samples([0.5, -1.0]).dtype == np.float32


@pytest.mark.slow
def test_samples_come_as_tensors():
    torch = pytest.importorskip("torch")
    for kind in (torch.bfloat16, torch.float32, torch.float64):
        assert to_samples(torch.tensor([[0.5, -1.0]], dtype=kind)).tolist() == [0.5, -1.0]
    assert to_samples(torch.tensor([16384, -32768], dtype=torch.int16)).tolist() == [0.5, -1.0]

"""Audio encoders: every format, fed in chunks of any size, decodes to the samples that were fed."""

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
    encoder = AudioStreamEncoder(name, target)
    parts = [encoder.feed(sound[start : start + step], rate) for start in range(0, len(sound), step)]
    return parts, b"".join([*parts, encoder.finish()])


def decoded(name, data):
    """Decode with an independent decoder. Returns samples and rate."""
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
def test_every_format_decodes_to_the_input(name):
    parts, data = encoded(name)
    samples, rate = decoded(name, data)
    assert abs(len(samples) / rate - 1.0) < 0.1  # codecs pad to whole frames, and add priming samples
    assert pitch(samples, rate) == pytest.approx(440, abs=2)
    assert np.sqrt(np.mean(samples**2)) == pytest.approx(0.5 / np.sqrt(2), rel=0.1)
    assert len(b"".join(parts[:15])) > len(data) / 4  # bytes are emitted while samples are fed


@pytest.mark.parametrize("name", ["pcm", "wav", "flac"])
def test_lossless_formats_keep_16_bits(name):
    samples, _ = decoded(name, encoded(name)[1])
    assert len(samples) == len(TONE)
    assert np.abs(samples - TONE).max() < 2 / 32768


def test_a_wav_has_one_open_ended_header():
    parts, data = encoded("wav")
    assert struct.unpack_from("<4sI4s", data) == (b"RIFF", 0xFFFFFFFF, b"WAVE")
    assert struct.unpack_from("<4sI", data, 36) == (b"data", 0xFFFFFFFF)
    assert data.count(b"RIFF") == data.count(b"data") == 1
    assert len(data) == 44 + 2 * len(TONE)
    assert soundfile.read(io.BytesIO(data))[0].shape == TONE.shape
    assert AudioStreamEncoder("wav", RATE).finish() == parts[0][:44]  # an empty stream is still a file


@pytest.mark.parametrize("step", [17, 1000, 24_000])
def test_chunk_boundaries_do_not_change_the_audio(step):
    assert encoded("pcm", step=step)[1] == encoded("pcm")[1]
    resampled = [encoded("pcm", rate=16_000, step=size)[1] for size in (step, 5000)]
    assert resampled[0] == resampled[1]


@pytest.mark.parametrize("rate", [8000, 16_000, 22_050, 44_100, 48_000])
def test_other_rates_are_resampled(rate):
    tone = (0.5 * np.sin(2 * np.pi * 440 * np.arange(rate) / rate)).astype(np.float32)
    samples, _ = decoded("pcm", encoded("pcm", tone, rate)[1])
    assert abs(len(samples) - RATE) <= 1
    assert np.abs(samples[2000:-2000] - TONE[: len(samples)][2000:-2000]).max() < 0.01


def test_the_source_rate_can_change():
    encoder = AudioStreamEncoder("pcm", RATE)
    data = encoder.feed(TONE, RATE) + encoder.feed(np.zeros(16_000, np.float32), 16_000) + encoder.feed(TONE, RATE)
    samples = np.frombuffer(data + encoder.finish(), "<i2")
    assert abs(len(samples) - 3 * RATE) <= 1
    assert encoder.duration_s == pytest.approx(3)
    assert np.abs(samples[RATE + 100 : 2 * RATE - 100]).max() == 0


def test_loud_samples_are_clipped():
    samples, _ = decoded("pcm", encoded("pcm", np.array([2.0, -2.0, 0.0], np.float32))[1])
    assert samples.tolist() == [32767 / 32768, -32767 / 32768, 0]


def test_unsupported_rates_are_rejected():
    with pytest.raises(ValueError, match="opus does not support 44100 Hz\n  fix: use one of 8000, 12000"):
        AudioStreamEncoder("opus", 44_100)
    assert AudioStreamEncoder("pcm", 16_000).media_type == "audio/pcm;rate=16000"
    assert AudioStreamEncoder("mp3", RATE).media_type == "audio/mpeg"


@pytest.mark.parametrize(("package", "name", "rate"), [("av", "mp3", RATE), ("soxr", "pcm", 16_000)])
def test_a_missing_package_is_named(monkeypatch, package, name, rate):
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    with pytest.raises(LoadError, match=rf"needs the package {package}\n  fix: pip install"):
        AudioStreamEncoder(name, RATE).feed(TONE, rate)


def test_samples_can_be_any_array():
    whole = to_samples(np.array([[16384, -32768]], np.int16))
    assert whole.tolist() == [0.5, -1.0]
    assert whole.dtype == np.float32
    assert to_samples([0.5, -1.0]).dtype == np.float32


@pytest.mark.slow
def test_samples_can_be_tensors():
    torch = pytest.importorskip("torch")
    for kind in (torch.bfloat16, torch.float32, torch.float64):
        assert to_samples(torch.tensor([[0.5, -1.0]], dtype=kind)).tolist() == [0.5, -1.0]
    assert to_samples(torch.tensor([16384, -32768], dtype=torch.int16)).tolist() == [0.5, -1.0]

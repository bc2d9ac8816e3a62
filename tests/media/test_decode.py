"""Sandboxed decoding: valid files decode, damaged and oversized files are rejected, other requests are unaffected."""

import asyncio
import gzip
import io
import struct
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import ExifTags, Image

from mstar.media import decoder_pool
from mstar.media.audio import AudioStreamEncoder
from mstar.media.decoder_pool import DecoderPool, MediaError, MediaLimits
from tests.machine_share import process_cpu_s

TONE = (0.5 * np.sin(2 * np.pi * 440 * np.arange(24_000) / 24_000)).astype(np.float32)
PIXELS = np.random.default_rng(0).integers(0, 256, (30, 40, 3), np.uint8)


class DecoderHarness:
    """A decoder pool and an event loop to use it in."""

    def __init__(self, **options):
        self.runner = asyncio.Runner()
        self.decoders = DecoderPool(1, **options)

    def picture(self, data):
        return self.runner.run(self.decoders.decode_image(data)).pixels

    def sound(self, data):
        return self.runner.run(self.decoders.decode_audio(data))

    @property
    def process(self):
        (child,) = self.decoders._processes
        return child._process

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.decoders.close()
        self.runner.close()


@pytest.fixture(scope="module")
def bench():
    with DecoderHarness() as made:
        made.picture(image_file("PNG"))  # wait until it is ready
        yield made


def image_file(name, image=None, **options):
    file = io.BytesIO()
    (image or Image.fromarray(PIXELS)).save(file, name, **options)
    return file.getvalue()


def sound_file(name, subtype, samples=TONE, rate=24_000):
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=name, subtype=subtype)
    return file.getvalue()


# ---------------------------------------------------------------- valid files
@pytest.mark.parametrize(
    ("name", "options"), [("PNG", {}), ("WEBP", {"lossless": True}), ("JPEG", {"quality": 95}), ("GIF", {})]
)
def test_images_are_decoded(bench, name, options):
    actual = bench.picture(image_file(name, **options))
    assert (actual.shape, actual.dtype) == ((30, 40, 3), np.uint8)
    smooth = Image.new("RGB", (40, 30), (10, 200, 30))
    assert np.abs(bench.picture(image_file(name, smooth, **options)).astype(int) - (10, 200, 30)).max() <= 4
    if name in ("PNG", "WEBP"):
        assert (actual == PIXELS).all()


def test_transparency_depth_orientation_and_frames_are_handled(bench):
    half = Image.new("RGBA", (4, 4), (255, 0, 0, 0))
    assert (bench.picture(image_file("PNG", half)) == 255).all()  # transparent is white, not red
    deep = Image.fromarray(np.full((4, 4), 0x80FF, np.uint16))
    assert (bench.picture(image_file("PNG", deep)) == 0x80).all()
    turned = Image.Exif()
    turned[ExifTags.Base.Orientation] = 6  # a quarter turn clockwise
    assert (bench.picture(image_file("PNG", exif=turned)) == np.rot90(PIXELS, -1)).all()
    many = [Image.new("RGB", (8, 8), (shade, 0, 0)) for shade in (250, 0, 90)]
    assert (bench.picture(image_file("GIF", many[0], save_all=True, append_images=many[1:]))[0, 0] == (250, 0, 0)).all()


@pytest.mark.parametrize(
    ("name", "subtype", "near"),
    [
        ("WAV", "PCM_U8", 0.01),
        ("WAV", "PCM_24", 1e-6),
        ("WAV", "FLOAT", 0),
        ("WAVEX", "PCM_16", 1e-4),
        ("FLAC", "PCM_16", 1e-4),
        ("OGG", "VORBIS", 0.05),
        ("OGG", "OPUS", 0.1),
        ("MP3", "MPEG_LAYER_III", 0.05),
    ],
)
def test_audio_is_decoded(bench, name, subtype, near):
    actual = bench.sound(sound_file(name, subtype))
    assert (actual.rate, actual.samples.dtype, len(actual.samples)) == (24_000, np.float32, 24_000)
    assert np.abs(actual.samples[2000:-2000] - TONE[2000:-2000]).max() <= near


def test_channels_are_mixed_and_samples_are_clipped(bench):
    both = np.stack([TONE, -TONE, np.full_like(TONE, 0.3)], 1)
    assert np.abs(bench.sound(sound_file("WAV", "FLOAT", both)).samples - 0.1).max() < 1e-6
    assert bench.sound(sound_file("WAV", "FLOAT", TONE * 4)).samples.max() == 1


@pytest.mark.parametrize("name", ["wav", "flac", "mp3", "opus"])
def test_encoded_streams_can_be_decoded(bench, name):
    track = AudioStreamEncoder(name, 24_000)
    actual = bench.sound(b"".join([track.feed(TONE[:7000], 24_000), track.feed(TONE[7000:], 24_000), track.finish()]))
    assert len(actual.samples) == pytest.approx(24_000, abs=2400)


# ---------------------------------------------------------------- invalid files
def png(width, height):
    head = struct.pack(">4sIIBBBBB", b"IHDR", width, height, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head))
    data = b"IDAT" + zlib.compress(bytes(1000))
    return b"\x89PNG\r\n\x1a\n" + chunk + struct.pack(">I", len(data) - 4) + data + struct.pack(">I", zlib.crc32(data))


def jpeg(width, height, marker=0xC0):
    whole = bytearray(image_file("JPEG", progressive=marker == 0xC2))
    at = whole.index(bytes([0xFF, marker]))
    struct.pack_into(">HH", whole, at + 5, height, width)
    return bytes(whole)


def gif(width, height):
    whole = bytearray(image_file("GIF"))
    struct.pack_into("<HH", whole, 6, width, height)
    return bytes(whole)


def gif_frame(width, height):
    whole = bytearray(image_file("GIF"))
    at = whole.index(b",\0\0\0\0")
    struct.pack_into("<HH", whole, at + 5, width, height)
    return bytes(whole)


def webp(width, height):
    body = (
        b"VP8X" + struct.pack("<IB3x", 10, 0) + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    )
    body += image_file("WEBP")[12:]
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body


def wav(*, tag=1, channels=1, rate=24_000, bits=16, size=200, data=bytes(200)):
    align = max(channels * bits // 8, 1) & 0xFFFF
    about = struct.pack("<4sIHHIIHH", b"fmt ", 16, tag, channels, rate, rate * align & 0xFFFFFFFF, align, bits)
    return (
        struct.pack("<4sI4s", b"RIFF", 36 + size & 0xFFFFFFFF, b"WAVE")
        + about
        + struct.pack("<4sI", b"data", size)
        + data
    )


def flac(*, rate=24_000, frames):
    whole = bytearray(sound_file("FLAC", "PCM_16"))
    packed = rate << 44 | 0 << 41 | 15 << 36 | frames
    whole[18:26] = packed.to_bytes(8, "big")
    return bytes(whole)


def opus(hours):
    """One second of audio with a header that claims hours."""
    whole = bytearray(sound_file("OGG", "OPUS"))
    at = whole.rindex(b"OggS")
    struct.pack_into("<Q", whole, at + 6, int(hours * 3600 * 48_000))
    struct.pack_into("<I", whole, at + 22, 0)
    crc = 0
    for byte in whole[at:]:
        crc ^= byte << 24
        for _ in range(8):
            crc = (crc << 1 ^ (0x04C11DB7 if crc & 1 << 31 else 0)) & 0xFFFFFFFF
    struct.pack_into("<I", whole, at + 22, crc)
    return bytes(whole)


PICTURES = {
    "png 16000 x 16000": (png(16_000, 16_000), "too_large"),
    "png 2^31-1 x 1": (png(2**31 - 1, 1), "too_large"),
    "png 2^31-1 squared": (png(2**31 - 1, 2**31 - 1), "too_large"),
    "png one line too many": (png(40_000, 1001), "too_large"),
    "png without pixels": (png(0, 0), "damaged_media"),
    "png that lies": (png(6000, 6000), "damaged_media"),
    "png cut off": (image_file("PNG")[:-500], "damaged_media"),
    "png and nothing": (b"\x89PNG\r\n\x1a\n", "damaged_media"),
    "jpeg 65500 squared": (jpeg(65_500, 65_500), "too_large"),
    "jpeg progressive": (jpeg(65_500, 65_500, 0xC2), "too_large"),
    "jpeg without pixels": (jpeg(0, 0), "damaged_media"),
    "jpeg cut off": (image_file("JPEG")[:300], "damaged_media"),
    "gif 65535 squared": (gif(65_535, 65_535), "too_large"),
    "gif with a large frame": (gif_frame(65_535, 65_535), "too_large"),
    "gif cut off": (image_file("GIF")[:20], "damaged_media"),
    "webp 16384 squared": (webp(16_384, 16_384), "damaged_media"),
    "webp cut off": (image_file("WEBP")[:60], "damaged_media"),
    "tiff": (image_file("TIFF"), "unsupported_media"),
    "bmp": (image_file("BMP"), "unsupported_media"),
    "ico": (image_file("ICO"), "unsupported_media"),
    "jpeg 2000": (b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(100), "unsupported_media"),
    "fits": (b"SIMPLE  =                    T" + bytes(100), "unsupported_media"),
    "psd": (b"8BPS\0\1" + bytes(100), "unsupported_media"),
    "eps": (b"%!PS-Adobe-3.0 EPSF-3.0\n", "unsupported_media"),
    "svg": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "unsupported_media"),
    "mp4": (b"\0\0\0\x18ftypmp42" + bytes(100), "unsupported_media"),
    "gzip in gzip": (gzip.compress(gzip.compress(bytes(10**6))), "unsupported_media"),
    "nothing": (b"", "unsupported_media"),
}
SOUNDS = {
    "wav without rate": (wav(rate=0), "unsupported_media damaged_media"),
    "wav 4 GHz": (wav(rate=2**32 - 1), "unsupported_media damaged_media"),
    "wav 65535 channels": (wav(channels=65_535), "unsupported_media damaged_media"),
    "wav 16 channels": (sound_file("WAV", "PCM_16", np.zeros((100, 16))), "unsupported_media"),
    "wav that is no number": (sound_file("WAV", "FLOAT", np.full(100, np.nan)), "damaged_media"),
    "wav without end": (sound_file("WAV", "FLOAT", np.full(100, np.inf)), "damaged_media"),
    "wav without samples": (wav(size=0, data=b""), "damaged_media"),
    "wav in adpcm": (sound_file("WAV", "IMA_ADPCM"), "damaged_media"),
    "wav in gsm": (sound_file("WAV", "GSM610"), "damaged_media"),
    "wav of no known kind": (wav(tag=0x1234), "damaged_media"),
    "wav and nothing": (b"RIFF\0\0\0\0WAVE", "damaged_media"),
    "flac of 795 hours": (flac(frames=2**36 - 1), "too_long"),
    "flac cut off": (sound_file("FLAC", "PCM_16")[:30], "damaged_media"),
    "opus of 8.7 hours": (opus(8.7), "too_long"),
    "ogg and nothing": (b"OggS" + bytes(24) + b"OpusHead", "damaged_media"),
    "ogg of video": (b"OggS" + bytes(24) + b"\x80theora", "unsupported_media"),
    "mp3 and nothing": (b"ID3\4\0\0" + bytes(4), "damaged_media"),
    "aiff": (sound_file("AIFF", "PCM_16"), "unsupported_media"),
    "au": (sound_file("AU", "PCM_16"), "unsupported_media"),
    "caf": (sound_file("CAF", "PCM_16"), "unsupported_media"),
    "midi": (b"MThd\0\0\0\6\0\1\0\1\0\xdc" + bytes(100), "unsupported_media"),
    "webm": (b"\x1aE\xdf\xa3" + bytes(100), "unsupported_media"),
    "nothing": (b"", "unsupported_media"),
}


@pytest.mark.parametrize("name", [f"picture: {name}" for name in PICTURES] + [f"sound: {name}" for name in SOUNDS])
def test_decompression_bombs_are_rejected_at_once(bench, name):
    kind, _, which = name.partition(": ")
    data, code = (PICTURES if kind == "picture" else SOUNDS)[which]
    process = bench.process
    # CPU time of both processes: a bomb costs computation, and other processes do not change that.
    begun = time.process_time() + process_cpu_s(process.pid)
    with pytest.raises(MediaError) as refused:
        bench.picture(data) if kind == "picture" else bench.sound(data)
    assert bench.process is process  # rejected without a crash
    assert time.process_time() + process_cpu_s(process.pid) - begun < 0.05
    assert refused.value.code in code.split()


def test_a_wrong_length_in_the_header_is_ignored(bench):
    assert len(bench.sound(wav(size=2**32 - 1)).samples) == 100
    frames = [Image.new("P", (8, 8), shade % 256) for shade in range(1000)]
    assert bench.picture(image_file("GIF", frames[0], save_all=True, append_images=frames[1:])).shape == (8, 8, 3)


def test_errors_have_numbers_and_no_internals(bench):
    with pytest.raises(MediaError, match=r"^the image has 16000 x 9000 pixels, maximum 40000000 in total\n  fix: "):
        bench.picture(png(16_000, 9000))
    with pytest.raises(MediaError, match=r"^the file is damaged, or exceeds the decoder's .* limit\n  fix: "):
        bench.picture(image_file("PNG")[:-500])
    with pytest.raises(MediaError, match="16 channels at 44100 Hz, supported are up to 8 channels"):
        bench.sound(sound_file("WAV", "PCM_16", np.zeros((100, 16)), 44_100))


# ---------------------------------------------------------------- processes
def test_the_sandbox_forbids_files_sockets_and_processes(bench):
    own = Path(f"/proc/{bench.process.pid}")
    limits = {line[:26].strip(): line[26:].split()[:2] for line in (own / "limits").read_text().splitlines()[1:]}
    assert limits["Max open files"] == limits["Max file size"] == limits["Max core file size"] == ["0", "0"]
    assert limits["Max address space"] == [str(1 << 30)] * 2
    assert int(limits["Max cpu time"][0]) <= 40
    assert (own / "environ").read_bytes() == b"OPENBLAS_NUM_THREADS=1\0"
    assert sorted(fd.name for fd in (own / "fd").iterdir()) == ["0", "1", "2"]


def test_an_oversized_file_is_not_sent_to_a_decoder(bench):
    with (
        DecoderHarness(limits=MediaLimits(max_bytes=100)) as small,
        pytest.raises(MediaError, match="has 101 bytes, maximum 100") as no,
    ):
        small.sound(b"fLaC" + bytes(97))
    assert no.value.code == "too_large"


def test_an_endless_stream_is_rejected():
    track = AudioStreamEncoder("flac", 24_000)
    data = track.feed(TONE, 24_000) + track.finish()
    with DecoderHarness(limits=MediaLimits(max_seconds=0.5)) as short:
        with pytest.raises(MediaError, match=r"lasts 1 s or more, maximum 0.5 s") as refused:
            short.sound(data)
        assert refused.value.code == "too_long"
        assert len(short.sound(sound_file("WAV", "PCM_16", TONE[:12_000])).samples) == 12_000


def test_a_slow_decoder_is_killed_and_replaced():
    large = image_file("PNG", Image.new("1", (3000, 3000)))
    with DecoderHarness() as bench:
        bench.picture(image_file("PNG"))
        first = bench.process
        bench.decoders.limits = MediaLimits(timeout_s=0.01)
        with pytest.raises(MediaError, match="exceeds the decoder's time or memory limit"):
            bench.picture(large)
        assert first.poll() is not None
        bench.decoders.limits = MediaLimits()
        assert bench.picture(large).shape == (3000, 3000, 3)


def test_a_cancelled_request_stops_its_decoder():
    large = image_file("PNG", Image.new("1", (3000, 3000)))

    async def leave(decoders):
        task = asyncio.create_task(decoders.decode_image(large))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with DecoderHarness() as bench:
        bench.picture(image_file("PNG"))
        first = bench.process
        bench.runner.run(leave(bench.decoders))
        assert first.poll() is not None
        assert (bench.picture(image_file("PNG")) == PIXELS).all()


def test_dead_and_old_decoders_are_replaced(monkeypatch):
    monkeypatch.setattr(decoder_pool, "MAX_JOBS_PER_PROCESS", 3)
    with DecoderHarness() as bench:
        seen = []
        for _ in range(4):
            bench.picture(image_file("PNG"))
            seen.append(bench.process.pid)
        assert seen[0] == seen[1] != seen[2] == seen[3]
        bench.process.kill()
        bench.process.wait()
        assert (bench.picture(image_file("PNG")) == PIXELS).all()

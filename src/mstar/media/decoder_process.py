"""A decoder: a process that turns files of strangers into samples and pixels, and can do nothing else.

Run with its limits as JSON: `python -I -m mstar.media.decoder_process '{"max_pixels": ...}'`. It reads jobs from stdin and writes
what it decoded to stdout. Once its libraries are there it can open no file and no socket, and its memory and its time
are bounded; that a job takes too long in all, its parent watches. It trusts nothing that it reads, and is not trusted.
"""

from __future__ import annotations

import io
import json
import math
import resource
import sys
import time
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np
import soundfile
from PIL import ExifTags, GifImagePlugin, Image, ImageOps, JpegImagePlugin, PngImagePlugin, WebPImagePlugin

from mstar.media.decoder_protocol import (
    ABORTED,
    BLOCK,
    DAMAGED,
    HEADER,
    IMAGE_FORMATS,
    JOB,
    OK,
    TOO_LONG,
    TOO_MANY_PIXELS,
    UNSUPPORTED_SHAPE,
    max_duration_s,
)

PLUGINS = (GifImagePlugin, JpegImagePlugin, PngImagePlugin, WebPImagePlugin)  # loaded now, and no other is tried
FORMATS = {"WAV": ("WAV", "WAVEX"), "FLAC": ("FLAC",), "OGG": ("OGG",), "MP3": ("MP3", "MPEG")}
"""What a library may call a file that begins like one of SOUNDS."""
SUBTYPES = ("PCM_S8", "PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW")
SUBTYPES += ("VORBIS", "OPUS", "MPEG_LAYER_III")
CPU_LIMIT_S = 20
CHUNK_SAMPLES = 1 << 16
"""How many samples are decoded at a time."""


class DecodeError(Exception):
    """A file is not decoded: a verdict and its figures."""

    def __init__(self, status: int, *details: int) -> None:
        super().__init__(status)
        self.head = HEADER.pack(status, *(min(max(one, 0), ABORTED) for one in (*details, 0, 0, 0)[:3]))


def decode_image(data: bytes, name: str, limits: dict[str, Any]) -> Iterator[bytes]:
    """A head, then the pixels of the first frame, as they are meant to be seen on white."""
    with Image.open(io.BytesIO(data), formats=[name]) as image:
        width, height = image.size
        if width * height > limits["max_pixels"]:
            raise DecodeError(TOO_MANY_PIXELS, height, width)
        image.load()
        upright: Image.Image = ImageOps.exif_transpose(image)
    if upright.mode.startswith("I;16"):  # converted as they are, bright ones would all be white
        upright = Image.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
    if upright.has_transparency_data:
        white = Image.new("RGBA", upright.size, "white")
        white.alpha_composite(upright.convert("RGBA"))
        upright = white
    pixels = upright.convert("RGB").tobytes()
    yield HEADER.pack(OK, upright.height, upright.width, 0)
    for start in range(0, len(pixels), 1 << 20):
        yield pixels[start : start + (1 << 20)]


def decode_audio(data: bytes, name: str, limits: dict[str, Any]) -> Iterator[bytes]:
    """A head, then samples, all channels mixed."""
    with soundfile.SoundFile(io.BytesIO(data)) as sound:
        rate, channels, frames = sound.samplerate, sound.channels, sound.frames
        if sound.format not in FORMATS[name] or sound.subtype not in SUBTYPES:
            raise DecodeError(DAMAGED)
        if not (
            1 <= channels <= limits["max_channels"] and limits["min_sample_rate"] <= rate <= limits["max_sample_rate"]
        ):
            raise DecodeError(UNSUPPORTED_SHAPE, rate, channels)
        is_endless = frames > 1 << 60  # a stream whose writer did not know its length
        seconds = max_duration_s(limits["max_seconds"], rate)
        most = int(seconds * rate)
        if frames > most and not is_endless:
            raise DecodeError(TOO_LONG, rate, channels, math.ceil(frames / rate))
        yield HEADER.pack(OK, rate, channels, 0)
        left = most if is_endless else frames
        while len(block := _read_block(sound, CHUNK_SAMPLES if is_endless else min(CHUNK_SAMPLES, left), is_endless)):
            left -= len(block)
            if left < 0:
                raise DecodeError(TOO_LONG, rate, channels, math.ceil(seconds))
            mixed = block.mean(axis=1, dtype=np.float32) if channels > 1 else block[:, 0]
            if not np.isfinite(mixed).all():
                raise DecodeError(DAMAGED)
            yield np.clip(mixed, -1, 1).tobytes()


def _read_block(sound: soundfile.SoundFile, count: int, is_endless: bool) -> np.ndarray:
    block = np.zeros((count, sound.channels), np.float32)
    if not is_endless:
        return sound.read(out=block)
    # soundfile seeks after each read, which fails at the end of what has no known end
    read = soundfile._snd.sf_readf_float(sound._file, soundfile._ffi.from_buffer("float[]", block), count)
    return block[:read]


def enter_sandbox(limits: dict[str, Any]) -> None:
    """Give up what decoding does not need."""
    resource.setrlimit(resource.RLIMIT_AS, (limits["memory_bytes"], limits["memory_bytes"]))
    for name in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE, resource.RLIMIT_NPROC):
        resource.setrlimit(name, (0, 0))


def serve_jobs(source: BinaryIO, sink: BinaryIO, limits: dict[str, Any]) -> None:
    """Decode until the parent has no more jobs."""
    while len(job := source.read(JOB.size)) == JOB.size:
        name, size = JOB.unpack(job)
        data = source.read(size)
        seconds = math.ceil(time.process_time()) + CPU_LIMIT_S
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.RLIM_INFINITY))
        run_job(sink, data, name.rstrip(b"\0").decode(), limits)


def run_job(sink: BinaryIO, data: bytes, name: str, limits: dict[str, Any]) -> None:
    """Decode one file."""
    decode = decode_image if name in IMAGE_FORMATS else decode_audio
    is_begun = False
    try:
        for part in decode(data, name, limits):
            if is_begun:
                sink.write(BLOCK.pack(len(part)))
            sink.write(part)
            is_begun = True
        sink.write(BLOCK.pack(0))
    except Exception as error:  # noqa: BLE001 - libraries raise everything, and a stranger's file is no reason to end
        head = error.head if isinstance(error, DecodeError) else DecodeError(DAMAGED).head
        sink.write(BLOCK.pack(ABORTED) + head if is_begun else head)
    sink.flush()


def warm_up(limits: dict[str, Any]) -> None:
    """Decode one small file of each kind, so that everything is loaded that is loaded late."""
    turned = Image.Exif()
    turned[ExifTags.Base.Orientation] = 6
    for name in IMAGE_FORMATS:
        file = io.BytesIO()
        Image.new("RGB", (8, 8)).save(file, name, exif=turned)
        list(decode_image(file.getvalue(), name, limits))
    for name, subtype in (("WAV", "PCM_16"), ("FLAC", "PCM_16"), ("OGG", "OPUS"), ("MP3", "MPEG_LAYER_III")):
        file = io.BytesIO()
        soundfile.write(file, np.zeros(4800, np.float32), 24000, format=name, subtype=subtype)
        list(decode_audio(file.getvalue(), name, limits))


def main() -> None:
    """Be a decoder."""
    limits = json.loads(sys.argv[1])
    Image.MAX_IMAGE_PIXELS = None  # the limit here is exact, and checked before anything is decoded
    warm_up(limits)
    enter_sandbox(limits)
    serve_jobs(sys.stdin.buffer, sys.stdout.buffer, limits)


if __name__ == "__main__":
    main()

"""Sandboxed decoder process: turns untrusted image and audio files into pixels and samples.

Started by `decoder_pool` in isolated mode, with the limits as JSON. It reads jobs from stdin and writes
results to stdout (`decoder_protocol`). After warm-up it enters the sandbox: resource limits (rlimits) forbid opening
files and sockets and starting processes, and bound memory and CPU time. The parent enforces the wall-clock timeout and
validates everything it reads.
"""

from __future__ import annotations

import io
import json
import math
import os
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
    ACCEPTED,
    BLOCK,
    DAMAGED,
    HEADER,
    IMAGE_FORMATS,
    JOB,
    OK,
    PROCEED,
    TOO_LONG,
    TOO_MANY_PIXELS,
    UNSUPPORTED_SHAPE,
    max_duration_s,
)

PLUGINS = (GifImagePlugin, JpegImagePlugin, PngImagePlugin, WebPImagePlugin)  # imported now; Pillow tries no others
FORMATS = {"WAV": ("WAV", "WAVEX"), "FLAC": ("FLAC",), "OGG": ("OGG",), "MP3": ("MP3", "MPEG")}
"""Names of libsndfile for each detected audio format."""
SUBTYPES = ("PCM_S8", "PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW")
SUBTYPES += ("VORBIS", "OPUS", "MPEG_LAYER_III")
CPU_LIMIT_S = 20
"""CPU seconds per file before the kernel kills the process."""
NICENESS = 5
"""Lower scheduling priority than the front end and the workers: requests that already run come first."""
CHUNK_SAMPLES = 1 << 16
"""Samples decoded per block."""


class DecodeError(Exception):
    """A file is rejected. `header` is the response to the parent."""

    def __init__(self, status: int, *details: int) -> None:
        super().__init__(status)
        self.header = HEADER.pack(status, *(min(max(value, 0), ABORTED) for value in (*details, 0, 0, 0)[:3]))


def decode_image(data: bytes, name: str, limits: dict[str, Any]) -> Iterator[bytes]:
    """Yield the decoded size, a header, then the RGB pixels of the first frame, upright and composed on white."""
    with Image.open(io.BytesIO(data), formats=[name]) as image:
        width, height = image.size
        if width * height > limits["max_pixels"]:
            raise DecodeError(TOO_MANY_PIXELS, height, width)
        yield _accepted(width * height * 3)
        image.load()
        upright: Image.Image = ImageOps.exif_transpose(image)
    if upright.mode.startswith("I;16"):  # Pillow would clip 16-bit values instead of scaling them
        upright = Image.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
    if upright.has_transparency_data:
        white = Image.new("RGBA", upright.size, "white")
        white.alpha_composite(upright.convert("RGBA"))
        upright = white
    pixels = upright.convert("RGB").tobytes()
    yield HEADER.pack(OK, upright.height, upright.width, 0)
    for start in range(0, len(pixels), 1 << 20):
        yield pixels[start : start + (1 << 20)]


def _accepted(size: int) -> bytes:
    return HEADER.pack(ACCEPTED, size & 0xFFFFFFFF, size >> 32, 0)


def decode_audio(data: bytes, name: str, limits: dict[str, Any]) -> Iterator[bytes]:
    """Yield the decoded size, a header, then mono float32 samples."""
    with soundfile.SoundFile(io.BytesIO(data)) as sound:
        rate, channels, frames = sound.samplerate, sound.channels, sound.frames
        if sound.format not in FORMATS[name] or sound.subtype not in SUBTYPES:
            raise DecodeError(DAMAGED)
        if not (
            1 <= channels <= limits["max_channels"] and limits["min_sample_rate"] <= rate <= limits["max_sample_rate"]
        ):
            raise DecodeError(UNSUPPORTED_SHAPE, rate, channels)
        is_endless = frames > 1 << 60  # a stream whose header leaves the length open
        seconds = max_duration_s(limits["max_seconds"], rate)
        max_frames = int(seconds * rate)
        if frames > max_frames and not is_endless:
            raise DecodeError(TOO_LONG, rate, channels, math.ceil(frames / rate))
        yield _accepted(0 if is_endless else frames * 4)
        yield HEADER.pack(OK, rate, channels, 0)
        frames_left = max_frames if is_endless else frames
        while True:
            count = CHUNK_SAMPLES if is_endless else min(CHUNK_SAMPLES, frames_left)
            if not len(block := _read_block(sound, count, is_endless)):
                return
            frames_left -= len(block)
            if frames_left < 0:
                raise DecodeError(TOO_LONG, rate, channels, math.ceil(seconds))
            mixed = block.mean(axis=1, dtype=np.float32) if channels > 1 else block[:, 0]
            if not np.isfinite(mixed).all():
                raise DecodeError(DAMAGED)
            yield np.clip(mixed, -1, 1).tobytes()


def _read_block(sound: soundfile.SoundFile, count: int, is_endless: bool) -> np.ndarray:
    block = np.zeros((count, sound.channels), np.float32)
    if not is_endless:
        return sound.read(out=block)
    # SoundFile.read seeks after each read, which fails for a stream of unknown length
    frames_read = soundfile._snd.sf_readf_float(sound._file, soundfile._ffi.from_buffer("float[]", block), count)
    return block[:frames_read]


def enter_sandbox(limits: dict[str, Any]) -> None:
    """Enter the sandbox: set rlimits for memory, and forbid new files, sockets and processes."""
    resource.setrlimit(resource.RLIMIT_AS, (limits["memory_bytes"], limits["memory_bytes"]))
    for name in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE, resource.RLIMIT_NPROC):
        resource.setrlimit(name, (0, 0))


def serve_jobs(source: BinaryIO, sink: BinaryIO, limits: dict[str, Any]) -> None:
    """Decode files until stdin is closed."""
    while len(job := source.read(JOB.size)) == JOB.size:
        name, size = JOB.unpack(job)
        data = source.read(size)
        seconds = math.ceil(time.process_time()) + CPU_LIMIT_S
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.RLIM_INFINITY))
        run_job(source, sink, data, name.rstrip(b"\0").decode(), limits)


def run_job(source: BinaryIO, sink: BinaryIO, data: bytes, name: str, limits: dict[str, Any]) -> None:
    """Decode one file and write the result, if the parent accepts its size. Never raises for a bad file."""
    parts = (decode_image if name in IMAGE_FORMATS else decode_audio)(data, name, limits)
    has_header = False
    try:
        sink.write(next(parts))
        sink.flush()
        if source.read(1) != PROCEED:
            return
        for part in parts:
            if has_header:
                sink.write(BLOCK.pack(len(part)))
            sink.write(part)
            has_header = True
        sink.write(BLOCK.pack(0))
    except Exception as error:  # noqa: BLE001 - libraries raise anything, and a bad file must not end the process
        header = error.header if isinstance(error, DecodeError) else DecodeError(DAMAGED).header
        sink.write(BLOCK.pack(ABORTED) + header if has_header else header)
    sink.flush()


def warm_up(limits: dict[str, Any]) -> None:
    """Decode a small file of each format, so that all lazy imports happen before the sandbox."""
    rotated = Image.Exif()
    rotated[ExifTags.Base.Orientation] = 6
    for name in IMAGE_FORMATS:
        file = io.BytesIO()
        Image.new("RGB", (8, 8)).save(file, name, exif=rotated)
        list(decode_image(file.getvalue(), name, limits))
    for name, subtype in (("WAV", "PCM_16"), ("FLAC", "PCM_16"), ("OGG", "OPUS"), ("MP3", "MPEG_LAYER_III")):
        file = io.BytesIO()
        soundfile.write(file, np.zeros(4800, np.float32), 24000, format=name, subtype=subtype)
        list(decode_audio(file.getvalue(), name, limits))


def main() -> None:
    """Run the decoder process."""
    limits = json.loads(sys.argv[1])
    Image.MAX_IMAGE_PIXELS = None  # decode_image checks an exact limit before decoding
    warm_up(limits)
    os.nice(NICENESS)
    enter_sandbox(limits)
    serve_jobs(sys.stdin.buffer, sys.stdout.buffer, limits)


if __name__ == "__main__":
    main()

"""A decoder: a process that turns files of strangers into samples and pixels, and can do nothing else.

Run with its limits as JSON: `python -I -m mstar.media.child '{"pixels": ...}'`. It reads jobs from stdin and writes
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

from mstar.media.frames import BLOCK, DAMAGED, FINE, HEAD, IMAGES, JOB, MOST, PIXELS, SECONDS, SHAPE, longest

PLUGINS = (GifImagePlugin, JpegImagePlugin, PngImagePlugin, WebPImagePlugin)  # loaded now, and no other is tried
FORMATS = {"WAV": ("WAV", "WAVEX"), "FLAC": ("FLAC",), "OGG": ("OGG",), "MP3": ("MP3", "MPEG")}
"""What a library may call a file that begins like one of SOUNDS."""
SUBTYPES = ("PCM_S8", "PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW")
SUBTYPES += ("VORBIS", "OPUS", "MPEG_LAYER_III")
CPU_S = 20
STEP = 1 << 16
"""How many samples are decoded at a time."""


class Refused(Exception):
    """A file is not decoded: a verdict and its figures."""

    def __init__(self, verdict: int, *figures: int) -> None:
        super().__init__(verdict)
        self.head = HEAD.pack(verdict, *(min(max(one, 0), MOST) for one in (*figures, 0, 0, 0)[:3]))


def decode_image(data: bytes, name: str, limits: dict[str, Any]) -> Iterator[bytes]:
    """A head, then the pixels of the first frame, as they are meant to be seen on white."""
    with Image.open(io.BytesIO(data), formats=[name]) as image:
        width, height = image.size
        if width * height > limits["pixels"]:
            raise Refused(PIXELS, height, width)
        image.load()
        upright: Image.Image = ImageOps.exif_transpose(image)
    if upright.mode.startswith("I;16"):  # converted as they are, bright ones would all be white
        upright = Image.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
    if upright.has_transparency_data:
        white = Image.new("RGBA", upright.size, "white")
        white.alpha_composite(upright.convert("RGBA"))
        upright = white
    pixels = upright.convert("RGB").tobytes()
    yield HEAD.pack(FINE, upright.height, upright.width, 0)
    for start in range(0, len(pixels), 1 << 20):
        yield pixels[start : start + (1 << 20)]


def decode_sound(data: bytes, name: str, limits: dict[str, Any]) -> Iterator[bytes]:
    """A head, then samples, all channels mixed."""
    with soundfile.SoundFile(io.BytesIO(data)) as sound:
        rate, channels, frames = sound.samplerate, sound.channels, sound.frames
        if sound.format not in FORMATS[name] or sound.subtype not in SUBTYPES:
            raise Refused(DAMAGED)
        if not (1 <= channels <= limits["channels"] and limits["slowest"] <= rate <= limits["fastest"]):
            raise Refused(SHAPE, rate, channels)
        is_endless = frames > 1 << 60  # a stream whose writer did not know its length
        seconds = longest(limits["seconds"], rate)
        most = int(seconds * rate)
        if frames > most and not is_endless:
            raise Refused(SECONDS, rate, channels, math.ceil(frames / rate))
        yield HEAD.pack(FINE, rate, channels, 0)
        left = most if is_endless else frames
        while len(block := _read(sound, STEP if is_endless else min(STEP, left), is_endless)):
            left -= len(block)
            if left < 0:
                raise Refused(SECONDS, rate, channels, math.ceil(seconds))
            mixed = block.mean(axis=1, dtype=np.float32) if channels > 1 else block[:, 0]
            if not np.isfinite(mixed).all():
                raise Refused(DAMAGED)
            yield np.clip(mixed, -1, 1).tobytes()


def _read(sound: soundfile.SoundFile, count: int, is_endless: bool) -> np.ndarray:
    block = np.zeros((count, sound.channels), np.float32)
    if not is_endless:
        return sound.read(out=block)
    # soundfile seeks after each read, which fails at the end of what has no known end
    read = soundfile._snd.sf_readf_float(sound._file, soundfile._ffi.from_buffer("float[]", block), count)
    return block[:read]


def lock(limits: dict[str, Any]) -> None:
    """Give up what decoding does not need."""
    resource.setrlimit(resource.RLIMIT_AS, (limits["memory"], limits["memory"]))
    for name in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE, resource.RLIMIT_NPROC):
        resource.setrlimit(name, (0, 0))


def serve(source: BinaryIO, sink: BinaryIO, limits: dict[str, Any]) -> None:
    """Decode until the parent has no more jobs."""
    while len(job := source.read(JOB.size)) == JOB.size:
        name, size = JOB.unpack(job)
        data = source.read(size)
        seconds = math.ceil(time.process_time()) + CPU_S
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.RLIM_INFINITY))
        answer(sink, data, name.rstrip(b"\0").decode(), limits)


def answer(sink: BinaryIO, data: bytes, name: str, limits: dict[str, Any]) -> None:
    """Decode one file."""
    decode = decode_image if name in IMAGES else decode_sound
    is_begun = False
    try:
        for part in decode(data, name, limits):
            if is_begun:
                sink.write(BLOCK.pack(len(part)))
            sink.write(part)
            is_begun = True
        sink.write(BLOCK.pack(0))
    except Exception as error:  # noqa: BLE001 - libraries raise everything, and a stranger's file is no reason to end
        head = error.head if isinstance(error, Refused) else Refused(DAMAGED).head
        sink.write(BLOCK.pack(MOST) + head if is_begun else head)
    sink.flush()


def rehearse(limits: dict[str, Any]) -> None:
    """Decode one small file of each kind, so that everything is loaded that is loaded late."""
    turned = Image.Exif()
    turned[ExifTags.Base.Orientation] = 6
    for name in IMAGES:
        file = io.BytesIO()
        Image.new("RGB", (8, 8)).save(file, name, exif=turned)
        list(decode_image(file.getvalue(), name, limits))
    for name, subtype in (("WAV", "PCM_16"), ("FLAC", "PCM_16"), ("OGG", "OPUS"), ("MP3", "MPEG_LAYER_III")):
        file = io.BytesIO()
        soundfile.write(file, np.zeros(4800, np.float32), 24000, format=name, subtype=subtype)
        list(decode_sound(file.getvalue(), name, limits))


def main() -> None:
    """Be a decoder."""
    limits = json.loads(sys.argv[1])
    Image.MAX_IMAGE_PIXELS = None  # the limit here is exact, and checked before anything is decoded
    rehearse(limits)
    lock(limits)
    serve(sys.stdin.buffer, sys.stdout.buffer, limits)


if __name__ == "__main__":
    main()

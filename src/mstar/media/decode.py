"""Decoding what clients send: pictures and sounds, in processes of their own that can be killed.

What a file is, its first bytes say, and only a few formats are known; its name and its content type are not asked. How
large it is, its header says, before anything is decoded. What went wrong inside a decoder does not get out of it.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import json
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import IO

import numpy as np

from mstar import config
from mstar.asks import Picture, Sound
from mstar.errors import LoadError, MstarError
from mstar.media import frames

JOBS = 200
"""After how many files a decoder is replaced, so that what a library forgot to free is freed."""
_CHOSEN = config.Limits()


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a file may be, and what decoding it may take."""

    bytes: int = _CHOSEN.media_bytes
    pixels: int = _CHOSEN.media_pixels
    seconds: float = _CHOSEN.media_seconds
    channels: int = 8
    slowest: int = 4000
    """The lowest rate of a sound, in samples a second."""
    fastest: int = 192_000
    memory: int = 1 << 30
    patience_s: float = 20.0
    """After how many seconds a decoder is killed."""


class BadMedia(MstarError):
    """A file cannot be decoded, or must not be. `code` names why in one word."""

    def __init__(self, code: str, what: str, fix: str) -> None:
        super().__init__(f"{what}\n  fix: {fix}")
        self.code = code
        self.what = what


def image_format(data: bytes) -> str | None:
    """Which of the known picture formats a file begins like."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WEBP"
    starts = {b"\x89PNG\r\n\x1a\n": "PNG", b"\xff\xd8\xff": "JPEG", b"GIF87a": "GIF", b"GIF89a": "GIF"}
    return next((name for start, name in starts.items() if data.startswith(start)), None)


def sound_format(data: bytes) -> str | None:
    """Which of the known sound formats a file begins like."""
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        return "WAV"
    if data[:4] == b"OggS" and (b"OpusHead" in data[:128] or b"\x01vorbis" in data[:128]):
        return "OGG"
    is_mpeg = len(data) > 2 and data[0] == 0xFF and data[1] & 0xE6 == 0xE2  # a frame of layer III
    return "FLAC" if data[:4] == b"fLaC" else "MP3" if data[:3] == b"ID3" or is_mpeg else None


class Decoders:
    """A few decoder processes, started ahead. Whoever makes it closes it."""

    limits = Limits()
    """What holds for those that are told nothing else. A server chooses before it makes some."""

    def __init__(self, count: int = 2, limits: Limits | None = None) -> None:
        missing = [package for package in ("numpy", "PIL", "soundfile") if find_spec(package) is None]
        if missing:
            fix = "pip install 'mstar-serve[media]'"
            raise LoadError(f"decoding media needs {', '.join(missing)}, not installed here\n  fix: {fix}")
        self.limits = limits or self.limits
        self._idle: asyncio.Queue[_Child] = asyncio.Queue()
        self._all: set[_Child] = set()
        for _ in range(count):
            self._start()

    async def picture(self, data: bytes) -> Picture:
        """A picture in a file: PNG, JPEG, WebP, or the first frame of a GIF. Raises BadMedia."""
        name = image_format(data)
        if name is None:
            raise _unknown("a PNG, JPEG, WebP or GIF picture")
        (height, width, _), pixels = await self._decode(name, data)
        if len(pixels) != height * width * 3:
            raise _damaged()
        return Picture(np.frombuffer(pixels, np.uint8).reshape(height, width, 3))

    async def sound(self, data: bytes) -> Sound:
        """A sound in a file: WAV, FLAC, MP3, Ogg Opus or Ogg Vorbis, mixed to one channel. Raises BadMedia."""
        name = sound_format(data)
        if name is None:
            raise _unknown("a WAV, FLAC, MP3, Ogg Opus or Ogg Vorbis sound")
        (rate, _, _), samples = await self._decode(name, data)
        if not samples:
            raise BadMedia("damaged_media", "the sound has no samples", "send one that can be heard")
        return Sound(np.frombuffer(samples, np.float32), rate)

    def close(self) -> None:
        """End the processes."""
        for one in self._all:
            one.kill()

    def _start(self) -> None:
        child = _Child(self.limits)
        self._all.add(child)
        self._idle.put_nowait(child)

    def _replace(self, child: _Child) -> None:
        self._all.discard(child)
        child.kill()
        self._start()

    async def _decode(self, name: str, data: bytes) -> tuple[tuple[int, int, int], bytearray]:
        limits = self.limits
        if len(data) > limits.bytes:
            what = f"the file has {len(data)} bytes, and may have {limits.bytes}"
            raise BadMedia("too_large", what, "send a smaller one")
        while (child := await self._idle.get()).is_dead:  # not by what it decoded, and so nobody's file is to blame
            self._replace(child)
        is_good = False
        try:
            async with asyncio.timeout(limits.patience_s):
                decoded = await asyncio.to_thread(child.decode, name, data)
            is_good = child.jobs < JOBS
            return decoded
        except BadMedia:
            is_good = child.jobs < JOBS
            raise
        except (TimeoutError, OSError, EOFError):
            raise _damaged() from None
        finally:  # also when the client has left: nobody waits for what is under way there
            if is_good:
                self._idle.put_nowait(child)
            else:
                self._replace(child)


@functools.cache
def decoders() -> Decoders:
    """The decoders of this process, started when they are first asked for."""
    made = Decoders()
    atexit.register(made.close)
    return made


class _Child:
    """One decoder process, used by one thread at a time."""

    def __init__(self, limits: Limits) -> None:
        self.jobs = 0
        self._limits = limits
        # Nothing of this process's environment is for a decoder; one thread is enough for it.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-m", "mstar.media.child", json.dumps(asdict(limits))],
            env={"OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a ^C is for its parent, which may let those who wait come to their end
        )

    @property
    def is_dead(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):  # what it did not read is of no use any more
                assert pipe is not None, "it was asked for"
                pipe.close()

    def decode(self, name: str, data: bytes) -> tuple[tuple[int, int, int], bytearray]:
        """Have a file decoded: three figures of it, and its bytes. Raises BadMedia; EOFError if the process ends."""
        self.jobs += 1
        sink, source = self._process.stdin, self._process.stdout
        assert sink is not None, "it was asked for"
        assert source is not None, "it was asked for"
        sink.write(frames.JOB.pack(name.encode(), len(data)))
        sink.write(data)
        sink.flush()
        figures = self._head(source)
        most = (
            self._limits.pixels * 3
            if name in frames.IMAGES
            else int(frames.longest(self._limits.seconds, figures[0]) * figures[0]) * 4
        )
        decoded = bytearray()
        while size := frames.BLOCK.unpack(_exactly(source, frames.BLOCK.size))[0]:
            if size == frames.MOST:
                self._head(source)
            if len(decoded) + size > most:  # a decoder that was taken over may say anything
                raise EOFError
            decoded += _exactly(source, size)
        return figures, decoded

    def _head(self, source: IO[bytes]) -> tuple[int, int, int]:
        verdict, *figures = frames.HEAD.unpack(_exactly(source, frames.HEAD.size))
        first, second, third = figures
        limits = self._limits
        if verdict == frames.FINE:
            return first, second, third
        if verdict == frames.PIXELS:
            what = f"the picture has {second} x {first} pixels, and may have {limits.pixels} in all"
            raise BadMedia("too_large", what, "send a smaller one")
        if verdict == frames.SECONDS:
            what = f"the sound lasts {third} s or more, and may last {frames.longest(limits.seconds, first):g} s"
            raise BadMedia("too_long", what, "send it in parts")
        if verdict == frames.SHAPE:
            may = f"up to {limits.channels} channels and {limits.slowest} to {limits.fastest} samples a second"
            what = f"the sound has {second} channels and {first} samples a second; {may} are read"
            raise BadMedia("unsupported_media", what, "send it as 16 kHz mono")
        raise _damaged()


def _exactly(source: IO[bytes], count: int) -> bytes:
    data = source.read(count)
    if len(data) < count:
        raise EOFError
    return data


def _unknown(what: str) -> BadMedia:
    return BadMedia("unsupported_media", f"the file is not {what}", f"send {what}")


def _damaged() -> BadMedia:
    return BadMedia("damaged_media", "the file is damaged, or takes too much to decode", "send one that can be decoded")

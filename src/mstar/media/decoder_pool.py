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
from mstar.errors import LoadError, MstarError
from mstar.media import decoder_protocol
from mstar.requests import AudioInput, ImageInput

MAX_JOBS_PER_PROCESS = 200
"""After how many files a decoder is replaced, so that what a library forgot to free is freed."""
_DEFAULTS = config.HttpLimits()


@dataclass(frozen=True, slots=True)
class MediaLimits:
    """How large a file may be, and what decoding it may take."""

    max_bytes: int = _DEFAULTS.max_media_bytes
    max_pixels: int = _DEFAULTS.max_media_pixels
    max_seconds: float = _DEFAULTS.max_media_seconds
    max_channels: int = 8
    min_sample_rate: int = 4000
    """The lowest rate of a sound, in samples a second."""
    max_sample_rate: int = 192_000
    memory_bytes: int = 1 << 30
    timeout_s: float = 20.0
    """After how many seconds a decoder is killed."""


class MediaError(MstarError):
    """A file cannot be decoded, or must not be. `code` names why in one word."""

    def __init__(self, code: str, what: str, fix: str) -> None:
        super().__init__(f"{what}\n  fix: {fix}")
        self.code = code
        self.reason = what


def detect_image_format(data: bytes) -> str | None:
    """Which of the known picture formats a file begins like."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WEBP"
    starts = {b"\x89PNG\r\n\x1a\n": "PNG", b"\xff\xd8\xff": "JPEG", b"GIF87a": "GIF", b"GIF89a": "GIF"}
    return next((name for start, name in starts.items() if data.startswith(start)), None)


def detect_audio_format(data: bytes) -> str | None:
    """Which of the known sound formats a file begins like."""
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        return "WAV"
    if data[:4] == b"OggS" and (b"OpusHead" in data[:128] or b"\x01vorbis" in data[:128]):
        return "OGG"
    is_mpeg = len(data) > 2 and data[0] == 0xFF and data[1] & 0xE6 == 0xE2  # a frame of layer III
    return "FLAC" if data[:4] == b"fLaC" else "MP3" if data[:3] == b"ID3" or is_mpeg else None


class DecoderPool:
    """A few decoder processes, started ahead. Whoever makes it closes it."""

    limits = MediaLimits()
    """What holds for those that are told nothing else. A server chooses before it makes some."""

    def __init__(self, count: int = 2, limits: MediaLimits | None = None) -> None:
        missing = [package for package in ("numpy", "PIL", "soundfile") if find_spec(package) is None]
        if missing:
            fix = "pip install 'mstar-serve[media]'"
            raise LoadError(f"decoding media needs {', '.join(missing)}, not installed here\n  fix: {fix}")
        self.limits = limits or self.limits
        self._idle_processes: asyncio.Queue[_DecoderProcess] = asyncio.Queue()
        self._processes: set[_DecoderProcess] = set()
        for _ in range(count):
            self._start()

    async def decode_image(self, data: bytes) -> ImageInput:
        """A picture in a file: PNG, JPEG, WebP, or the first frame of a GIF. Raises BadMedia."""
        name = detect_image_format(data)
        if name is None:
            raise _unsupported_error("a PNG, JPEG, WebP or GIF picture")
        (height, width, _), pixels = await self._decode(name, data)
        if len(pixels) != height * width * 3:
            raise _damaged_error()
        return ImageInput(np.frombuffer(pixels, np.uint8).reshape(height, width, 3))

    async def decode_audio(self, data: bytes) -> AudioInput:
        """A sound in a file: WAV, FLAC, MP3, Ogg Opus or Ogg Vorbis, mixed to one channel. Raises BadMedia."""
        name = detect_audio_format(data)
        if name is None:
            raise _unsupported_error("a WAV, FLAC, MP3, Ogg Opus or Ogg Vorbis sound")
        (rate, _, _), samples = await self._decode(name, data)
        if not samples:
            raise MediaError("damaged_media", "the sound has no samples", "send one that can be heard")
        return AudioInput(np.frombuffer(samples, np.float32), rate)

    def close(self) -> None:
        """End the processes."""
        for one in self._processes:
            one.kill()

    def _start(self) -> None:
        child = _DecoderProcess(self.limits)
        self._processes.add(child)
        self._idle_processes.put_nowait(child)

    def _replace(self, child: _DecoderProcess) -> None:
        self._processes.discard(child)
        child.kill()
        self._start()

    async def _decode(self, name: str, data: bytes) -> tuple[tuple[int, int, int], bytearray]:
        limits = self.limits
        if len(data) > limits.max_bytes:
            what = f"the file has {len(data)} bytes, and may have {limits.max_bytes}"
            raise MediaError("too_large", what, "send a smaller one")
        while (
            child := await self._idle_processes.get()
        ).is_dead:  # not by what it decoded, and so nobody's file is to blame
            self._replace(child)
        is_good = False
        try:
            async with asyncio.timeout(limits.timeout_s):
                decoded = await asyncio.to_thread(child.decode, name, data)
            is_good = child.jobs_done < MAX_JOBS_PER_PROCESS
            return decoded
        except MediaError:
            is_good = child.jobs_done < MAX_JOBS_PER_PROCESS
            raise
        except (TimeoutError, OSError, EOFError):
            raise _damaged_error() from None
        finally:  # also when the client has left: nobody waits for what is under way there
            if is_good:
                self._idle_processes.put_nowait(child)
            else:
                self._replace(child)


@functools.cache
def shared_decoders() -> DecoderPool:
    """The decoders of this process, started when they are first asked for."""
    made = DecoderPool()
    atexit.register(made.close)
    return made


class _DecoderProcess:
    """One decoder process, used by one thread at a time."""

    def __init__(self, limits: MediaLimits) -> None:
        self.jobs_done = 0
        self._limits = limits
        # Nothing of this process's environment is for a decoder; one thread is enough for it.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-m", "mstar.media.decoder_process", json.dumps(asdict(limits))],
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
        self.jobs_done += 1
        sink, source = self._process.stdin, self._process.stdout
        assert sink is not None, "it was asked for"
        assert source is not None, "it was asked for"
        sink.write(decoder_protocol.JOB.pack(name.encode(), len(data)))
        sink.write(data)
        sink.flush()
        figures = self._read_header(source)
        most = (
            self._limits.max_pixels * 3
            if name in decoder_protocol.IMAGE_FORMATS
            else int(decoder_protocol.max_duration_s(self._limits.max_seconds, figures[0]) * figures[0]) * 4
        )
        decoded = bytearray()
        while size := decoder_protocol.BLOCK.unpack(_read_exactly(source, decoder_protocol.BLOCK.size))[0]:
            if size == decoder_protocol.ABORTED:
                self._read_header(source)
            if len(decoded) + size > most:  # a decoder that was taken over may say anything
                raise EOFError
            decoded += _read_exactly(source, size)
        return figures, decoded

    def _read_header(self, source: IO[bytes]) -> tuple[int, int, int]:
        verdict, *figures = decoder_protocol.HEADER.unpack(_read_exactly(source, decoder_protocol.HEADER.size))
        first, second, third = figures
        limits = self._limits
        if verdict == decoder_protocol.OK:
            return first, second, third
        if verdict == decoder_protocol.TOO_MANY_PIXELS:
            what = f"the picture has {second} x {first} pixels, and may have {limits.max_pixels} in all"
            raise MediaError("too_large", what, "send a smaller one")
        if verdict == decoder_protocol.TOO_LONG:
            what = f"the sound lasts {third} s or more, and may last {decoder_protocol.max_duration_s(limits.max_seconds, first):g} s"
            raise MediaError("too_long", what, "send it in parts")
        if verdict == decoder_protocol.UNSUPPORTED_SHAPE:
            may = f"up to {limits.max_channels} channels and {limits.min_sample_rate} to {limits.max_sample_rate} samples a second"
            what = f"the sound has {second} channels and {first} samples a second; {may} are read"
            raise MediaError("unsupported_media", what, "send it as 16 kHz mono")
        raise _damaged_error()


def _read_exactly(source: IO[bytes], count: int) -> bytes:
    data = source.read(count)
    if len(data) < count:
        raise EOFError
    return data


def _unsupported_error(what: str) -> MediaError:
    return MediaError("unsupported_media", f"the file is not {what}", f"send {what}")


def _damaged_error() -> MediaError:
    return MediaError(
        "damaged_media", "the file is damaged, or takes too much to decode", "send one that can be decoded"
    )

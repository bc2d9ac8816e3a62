"""Sandboxed media decoding: a pool of resource-limited decoder processes for images and audio of clients.

The format is detected from the first bytes; file name and content type are ignored. Size limits are checked on the
header, before anything is decoded. A crash, hang or exploit stays in the decoder process, which is then killed and
replaced.

The caller can refuse a file once its decoded size is known, before it is decoded (`charge`). The tenants get decoder
processes in turn (`FairSlots`). Large results are in a segment of shared memory, which is not copied again on its way
to a worker.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from io import BufferedReader
from pathlib import Path
from typing import IO, cast

import numpy as np

from mstar import config
from mstar.errors import LoadError, MstarError
from mstar.media import decoder_protocol
from mstar.media.fair_slots import FairSlots
from mstar.requests import AudioInput, ImageInput
from mstar.transfer.codec import SEGMENT_BYTES
from mstar.transfer.segments import Segment

MAX_JOBS_PER_PROCESS = 200
"""Files per decoder process before it is replaced. Bounds memory leaks of the libraries."""
_DEFAULTS = config.HttpLimits()
_SOURCE = Path(decoder_protocol.__file__).parents[2]
_START_DECODER = "import sys; sys.path.insert(0, sys.argv.pop(1)); from mstar.media.decoder_process import main; main()"
"""Program of a decoder process: the code of this version, whatever else is installed."""


@dataclass(frozen=True, slots=True)
class MediaLimits:
    """Maximum size of a file, and resource limits of a decoder process."""

    max_bytes: int = _DEFAULTS.max_media_bytes
    max_pixels: int = _DEFAULTS.max_media_pixels
    max_seconds: float = _DEFAULTS.max_media_seconds
    max_channels: int = 8
    min_sample_rate: int = 4000
    """Minimum sample rate of audio in Hz."""
    max_sample_rate: int = 192_000
    memory_bytes: int = 1 << 30
    timeout_s: float = 20.0
    """Seconds before a decoder process is killed."""


Charge = Callable[[int], None]
"""Called with a number of decoded bytes before they are decoded. It raises an exception to refuse the file."""


def _free_of_charge(_: int) -> None:
    pass


class MediaError(MstarError):
    """A file cannot be decoded or exceeds a limit. `code` is the API error code."""

    def __init__(self, code: str, what: str, fix: str) -> None:
        super().__init__(f"{what}\n  fix: {fix}")
        self.code = code
        self.reason = what


def detect_image_format(data: bytes) -> str | None:
    """Detect an image format from the first bytes, or return None."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WEBP"
    starts = {b"\x89PNG\r\n\x1a\n": "PNG", b"\xff\xd8\xff": "JPEG", b"GIF87a": "GIF", b"GIF89a": "GIF"}
    return next((name for start, name in starts.items() if data.startswith(start)), None)


def detect_audio_format(data: bytes) -> str | None:
    """Detect an audio format from the first bytes, or return None."""
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        return "WAV"
    if data[:4] == b"OggS" and (b"OpusHead" in data[:128] or b"\x01vorbis" in data[:128]):
        return "OGG"
    is_mpeg = len(data) > 2 and data[0] == 0xFF and data[1] & 0xE6 == 0xE2  # sync word of an MPEG layer III frame
    return "FLAC" if data[:4] == b"fLaC" else "MP3" if data[:3] == b"ID3" or is_mpeg else None


class DecoderPool:
    """Pool of decoder processes, started ahead. The owner must call `close`."""

    limits = MediaLimits()
    """Default limits. The server sets them before it creates a pool."""

    def __init__(self, count: int = 2, limits: MediaLimits | None = None) -> None:
        missing = [package for package in ("numpy", "PIL", "soundfile") if find_spec(package) is None]
        if missing:
            fix = "pip install 'mstar-serve[media]'"
            raise LoadError(f"media decoding needs the packages {', '.join(missing)}\n  fix: {fix}")
        self.limits = limits or self.limits
        self._slots = FairSlots(count)
        self._idle_processes: asyncio.Queue[_DecoderProcess] = asyncio.Queue()
        self._processes: set[_DecoderProcess] = set()
        for _ in range(count):
            self._start()

    async def decode_image(self, data: bytes, tenant: str = "", charge: Charge = _free_of_charge) -> ImageInput:
        """Decode a PNG, JPEG or WebP image, or the first frame of a GIF.

        Raises MediaError, and what `charge` raises.
        """
        name = detect_image_format(data)
        if name is None:
            raise _unsupported_error("a PNG, JPEG, WebP or GIF image")
        (height, width, _), pixels = await self._decode(name, data, tenant, charge)
        if len(pixels) != height * width * 3:
            raise _damaged_error()
        return ImageInput(np.frombuffer(pixels, np.uint8).reshape(height, width, 3))

    async def decode_audio(self, data: bytes, tenant: str = "", charge: Charge = _free_of_charge) -> AudioInput:
        """Decode WAV, FLAC, MP3, Ogg Opus or Ogg Vorbis audio, mixed to mono.

        Raises MediaError, and what `charge` raises.
        """
        name = detect_audio_format(data)
        if name is None:
            raise _unsupported_error("a WAV, FLAC, MP3, Ogg Opus or Ogg Vorbis file")
        (rate, _, _), samples = await self._decode(name, data, tenant, charge)
        if not len(samples):
            raise MediaError("damaged_media", "the audio has no samples", "send audio with at least one sample")
        return AudioInput(np.frombuffer(samples, np.float32), rate)

    def close(self) -> None:
        """Kill the decoder processes."""
        for process in self._processes:
            process.kill()

    def _start(self) -> None:
        process = _DecoderProcess(self.limits)
        self._processes.add(process)
        self._idle_processes.put_nowait(process)

    def _replace(self, process: _DecoderProcess) -> None:
        self._processes.discard(process)
        process.kill()
        self._start()

    async def _decode(
        self, name: str, data: bytes, tenant: str, charge: Charge
    ) -> tuple[tuple[int, int, int], bytearray | memoryview]:
        limits = self.limits
        if len(data) > limits.max_bytes:
            what = f"the file has {len(data)} bytes, maximum {limits.max_bytes}"
            raise MediaError("too_large", what, "send a smaller file")
        async with self._slots.slot(tenant):
            while (process := await self._idle_processes.get()).is_dead:  # died while idle: no file is to blame
                self._replace(process)
            try:
                async with asyncio.timeout(limits.timeout_s):
                    return await asyncio.to_thread(process.decode, name, data, charge)
            except (TimeoutError, OSError, EOFError):
                raise _damaged_error() from None
            finally:  # also after a cancellation, which leaves the process busy
                if process.is_idle and process.jobs_done < MAX_JOBS_PER_PROCESS:
                    self._idle_processes.put_nowait(process)
                else:
                    self._replace(process)


@functools.cache
def shared_decoders() -> DecoderPool:
    """Return the decoder pool of this process, started on first use."""
    pool = DecoderPool()
    atexit.register(pool.close)
    return pool


class _DecoderProcess:
    """One sandboxed decoder process. Used by one thread at a time."""

    def __init__(self, limits: MediaLimits) -> None:
        self.jobs_done = 0
        self.is_idle = True
        """Whether it waits for a file. False after a file that it has not finished."""
        self._limits = limits
        # The decoder gets no environment variables of this process, and one thread.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", _START_DECODER, str(_SOURCE), json.dumps(asdict(limits))],
            env={"OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # ^C goes to the parent only, which drains its requests first
        )

    @property
    def is_dead(self) -> bool:
        """Whether the process has exited."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """Kill the process and close its pipes."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):  # unread input is discarded
                assert pipe is not None, "Popen opened it"
                pipe.close()

    def decode(self, name: str, data: bytes, charge: Charge) -> tuple[tuple[int, int, int], bytearray | memoryview]:
        """Decode a file. Returns three header values and the data.

        Raises MediaError, what `charge` raises, or EOFError if the process exits.
        """
        self.is_idle = False
        self.jobs_done += 1
        sink, source = self._process.stdin, self._process.stdout
        assert sink is not None, "Popen opened it"
        assert source is not None, "Popen opened it"
        sink.write(decoder_protocol.JOB.pack(name.encode(), len(data)))
        sink.write(data)
        sink.flush()
        low, high, _ = self._read_header(source)
        size = low | high << 32
        try:
            charge(size)
        except BaseException:
            self._answer(sink, decoder_protocol.SKIP)
            self.is_idle = True
            raise
        self._answer(sink, decoder_protocol.PROCEED)
        values = self._read_header(source)
        if name in decoder_protocol.IMAGE_FORMATS:
            max_bytes = self._limits.max_pixels * 3
        else:
            rate = values[0]
            max_bytes = int(decoder_protocol.max_duration_s(self._limits.max_seconds, rate) * rate) * 4
        if size > max_bytes:  # a compromised decoder can send anything
            raise EOFError
        decoded = self._read_known_size(source, size) if size else self._read_unknown_size(source, max_bytes, charge)
        self.is_idle = True
        return values, decoded

    @staticmethod
    def _answer(sink: IO[bytes], answer: bytes) -> None:
        sink.write(answer)
        sink.flush()

    def _read_known_size(self, source: IO[bytes], size: int) -> bytearray | memoryview:
        decoded = memoryview(bytearray(size)) if size < SEGMENT_BYTES else Segment.create(size).data
        position = 0
        while count := self._read_block_size(source):
            if position + count > size:
                raise EOFError
            _read_into(source, decoded[position : position + count])
            position += count
        return decoded[:position]

    def _read_unknown_size(self, source: IO[bytes], max_bytes: int, charge: Charge) -> bytearray:
        decoded = bytearray()
        while count := self._read_block_size(source):
            if len(decoded) + count > max_bytes:
                raise EOFError
            charge(count)
            decoded += _read_exactly(source, count)
        return decoded

    def _read_block_size(self, source: IO[bytes]) -> int:
        """Size of the next block, 0 at the end of the data. Raises MediaError if the decoder has aborted."""
        count = decoder_protocol.BLOCK.unpack(_read_exactly(source, decoder_protocol.BLOCK.size))[0]
        if count == decoder_protocol.ABORTED:
            self._read_header(source)
            raise EOFError  # an aborted file has an error header
        return count

    def _read_header(self, source: IO[bytes]) -> tuple[int, int, int]:
        status, first, second, third = decoder_protocol.HEADER.unpack(
            _read_exactly(source, decoder_protocol.HEADER.size)
        )
        limits = self._limits
        if status in (decoder_protocol.OK, decoder_protocol.ACCEPTED):
            return first, second, third
        self.is_idle = True  # nothing follows an error
        if status == decoder_protocol.TOO_MANY_PIXELS:
            what = f"the image has {second} x {first} pixels, maximum {limits.max_pixels} in total"
            raise MediaError("too_large", what, "send a smaller image")
        if status == decoder_protocol.TOO_LONG:
            max_s = decoder_protocol.max_duration_s(limits.max_seconds, first)
            raise MediaError("too_long", f"the audio lasts {third} s or more, maximum {max_s:g} s", "send it in parts")
        if status == decoder_protocol.UNSUPPORTED_SHAPE:
            supported = f"{limits.max_channels} channels and {limits.min_sample_rate} to {limits.max_sample_rate} Hz"
            what = f"the audio has {second} channels at {first} Hz, supported are up to {supported}"
            raise MediaError("unsupported_media", what, "send it as 16 kHz mono")
        raise _damaged_error()


def _read_exactly(source: IO[bytes], count: int) -> bytes:
    data = source.read(count)
    if len(data) < count:
        raise EOFError
    return data


def _read_into(source: IO[bytes], target: memoryview) -> None:
    """Fill memory without holding the GIL while the bytes are copied."""
    position = 0
    while position < len(target):
        if not (count := cast("BufferedReader", source).readinto(target[position:])):
            raise EOFError
        position += count


def _unsupported_error(what: str) -> MediaError:
    return MediaError("unsupported_media", f"the file is not {what}", f"send {what}")


def _damaged_error() -> MediaError:
    what = "the file is damaged, or exceeds the decoder's time or memory limit"
    return MediaError("damaged_media", what, "send a file that other programs can decode")

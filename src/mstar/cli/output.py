"""What a model answers, shown as it comes: words on the terminal, sound and pictures in a file, the rest as JSON.

Results go to standard output, how long they took to standard error. Who answers is not known here.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import wave
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mstar.errors import LoadError, format_names

AUDIO_PLAYERS = {"aplay": ("-q",), "ffplay": ("-nodisp", "-autoexit", "-loglevel", "error"), "afplay": ()}
"""Who can play a sound, and what they must be told besides the file."""


@dataclass(frozen=True, slots=True)
class PcmChunk:
    """Sound: one channel of 16 bits, the lower byte first."""

    data: bytes
    rate: int


@dataclass(frozen=True, slots=True)
class PngImage:
    """A picture as a PNG file. A later one replaces it."""

    data: bytes


@dataclass(frozen=True, slots=True)
class JsonValue:
    """Anything else, as JSON knows it."""

    value: Any


OutputEvent = str | PcmChunk | PngImage | JsonValue


def require_writable(path: Path) -> None:
    """Raise LoadError unless a file can be written there: better now than when the answer is there."""
    if not path.absolute().parent.is_dir():
        raise LoadError(f"{path}: there is no folder {path.parent}\n  fix: make it, or choose another place")


class OutputWriter:
    """The answer to one request."""

    def __init__(self, output: Path | None, play: bool) -> None:
        self._started_at = time.monotonic()
        self._output = output
        self._player = _find_player() if play else None
        self._first_output_s: dict[str, float] = {}
        self._audio_file: _AudioFile | None = None
        self._image: PngImage | None = None
        self._is_inline = False
        """Whether the last thing on the terminal is a line that has not ended."""

    def show_transcript(self, events: Iterator[OutputEvent]) -> str:
        """Show what was said in a sound, and give it back."""
        text = "".join(event for event in events if isinstance(event, str)).strip()
        self._mark_first("transcript")
        print(f"> {text}", flush=True)
        return text

    def show(self, events: Iterator[OutputEvent]) -> None:
        """Show what comes, as it comes."""
        for event in events:
            if isinstance(event, str):
                self._write(event)
            elif isinstance(event, PcmChunk):
                self._mark_first("sound")
                self._audio_file = self._audio_file or _AudioFile(self._output or Path("answer.wav"), event.rate)
                self._audio_file.write(event.data)
            elif isinstance(event, PngImage):
                self._mark_first("picture")
                self._image = event
            else:
                self._mark_first("output")
                self._end_line()
                print(json.dumps(event.value), flush=True)
        self._end_line()

    def close(self) -> None:
        """Write what is to be written, say how long it took, and play the sound if that is wanted."""
        total = time.monotonic() - self._started_at
        times = [f"first {what} {seconds:.2f} s" for what, seconds in self._first_output_s.items()]
        told = [", ".join([*times, f"total {total:.2f} s"])]
        if self._audio_file is not None:
            seconds = self._audio_file.close()
            factor = total / max(seconds, 1e-9)
            told.append(f"{self._audio_file.path}: {seconds:.2f} s of sound, real-time factor {factor:.2f}")
        if self._image is not None:
            path = self._output or Path("answer.png")
            path.write_bytes(self._image.data)
            told.append(f"{path}: the picture")
        if self._output is not None and self._audio_file is self._image is None:
            told.append(f"{self._output}: not written, because neither sound nor a picture came")
        print("\n".join(told), file=sys.stderr)
        if self._audio_file is not None and self._player:
            subprocess.run([*self._player, str(self._audio_file.path)], check=False)

    def _write(self, text: str) -> None:
        text = text if self._is_inline else text.lstrip()
        if text:
            self._mark_first("text")
            print(text, end="", flush=True)
            self._is_inline = not text.endswith("\n")

    def _end_line(self) -> None:
        if self._is_inline:
            print(flush=True)
            self._is_inline = False

    def _mark_first(self, what: str) -> None:
        self._first_output_s.setdefault(what, time.monotonic() - self._started_at)


class _AudioFile:
    """A file of sound that grows."""

    def __init__(self, path: Path, rate: int) -> None:
        self.path = path
        self._rate = rate
        self._bytes = 0
        self._wave: Any = None
        if path.suffix.lower() == ".wav":
            self._wave = wave.open(str(path), "wb")  # noqa: SIM115 - it stays open while sound comes
            self._wave.setparams((1, 2, rate, 0, "NONE", ""))
            return
        from mstar.media.audio import FORMATS, AudioStreamEncoder  # only who compresses needs it

        name = path.suffix.lower().removeprefix(".")
        if name not in FORMATS:
            raise LoadError(f"{path}: sound cannot be written as that\n  fix: end it in one of {format_names(FORMATS)}")
        self._encoder = AudioStreamEncoder(name, rate)
        self._file = path.open("wb")

    def write(self, data: bytes) -> None:
        self._bytes += len(data)
        if self._wave is not None:
            self._wave.writeframes(data)
            return
        import numpy as np

        self._file.write(self._encoder.feed(np.frombuffer(data, "<i2"), self._rate))

    def close(self) -> float:
        """How many seconds it lasts."""
        if self._wave is not None:
            self._wave.close()
        else:
            self._file.write(self._encoder.finish())
            self._file.close()
        return self._bytes / 2 / self._rate


def _find_player() -> list[str]:
    found = next((name for name in AUDIO_PLAYERS if shutil.which(name)), None)
    if found is None:
        raise LoadError(
            f"none of {format_names(AUDIO_PLAYERS)} is here to play sound\n  fix: install one, or leave --play out"
        )
    return [found, *AUDIO_PLAYERS[found]]

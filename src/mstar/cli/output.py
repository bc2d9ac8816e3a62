"""Output of `mstar run`, streamed: text on the terminal, audio and images in a file, other outputs as JSON.

Results go to standard output, timings to standard error. It does not know which backend produces the events.
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
"""Programs that play audio, with their arguments before the file."""


@dataclass(frozen=True, slots=True)
class PcmChunk:
    """Mono 16-bit little-endian PCM audio."""

    data: bytes
    rate: int


@dataclass(frozen=True, slots=True)
class PngImage:
    """An encoded PNG image. A later image replaces it."""

    data: bytes


@dataclass(frozen=True, slots=True)
class JsonValue:
    """Any other output, as a JSON value."""

    value: Any


OutputEvent = str | PcmChunk | PngImage | JsonValue


def require_writable(path: Path) -> None:
    """Raise LoadError if the folder of `path` does not exist. Called early, before the model runs."""
    if not path.absolute().parent.is_dir():
        raise LoadError(f"{path}: folder {path.parent} does not exist\n  fix: create it, or choose another path")


class OutputWriter:
    """Writes the outputs of one request."""

    def __init__(self, output: Path | None, play: bool) -> None:
        self._started_at = time.monotonic()
        self._output = output
        self._player = _find_player() if play else None
        self._first_output_s: dict[str, float] = {}
        self._audio_file: _AudioFile | None = None
        self._image: PngImage | None = None
        self._is_inline = False
        """Whether the terminal's last line is unfinished."""

    def show_transcript(self, events: Iterator[OutputEvent]) -> str:
        """Print the transcript of an input and return it."""
        text = "".join(event for event in events if isinstance(event, str)).strip()
        self._mark_first("transcript")
        print(f"> {text}", flush=True)
        return text

    def show(self, events: Iterator[OutputEvent]) -> None:
        """Print or write each event when it arrives."""
        for event in events:
            if isinstance(event, str):
                self._write(event)
            elif isinstance(event, PcmChunk):
                self._mark_first("audio")
                self._audio_file = self._audio_file or _AudioFile(self._output or Path("output.wav"), event.rate)
                self._audio_file.write(event.data)
            elif isinstance(event, PngImage):
                self._mark_first("image")
                self._image = event
            else:
                self._mark_first("output")
                self._end_line()
                print(json.dumps(event.value), flush=True)
        self._end_line()

    def close(self) -> None:
        """Close the output file, print the timings, and play the audio if requested."""
        total = time.monotonic() - self._started_at
        times = [f"first {kind} {seconds:.2f} s" for kind, seconds in self._first_output_s.items()]
        lines = [", ".join([*times, f"total {total:.2f} s"])]
        if self._audio_file is not None:
            seconds = self._audio_file.close()
            factor = total / max(seconds, 1e-9)
            lines.append(f"{self._audio_file.path}: {seconds:.2f} s of audio, real-time factor {factor:.2f}")
        if self._image is not None:
            path = self._output or Path("output.png")
            path.write_bytes(self._image.data)
            lines.append(f"{path}: image")
        if self._output is not None and self._audio_file is self._image is None:
            lines.append(f"{self._output}: not written: the model returned neither audio nor an image")
        print("\n".join(lines), file=sys.stderr)
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

    def _mark_first(self, kind: str) -> None:
        self._first_output_s.setdefault(kind, time.monotonic() - self._started_at)


class _AudioFile:
    """An audio file that is written chunk by chunk: WAV, or a compressed format by its suffix."""

    def __init__(self, path: Path, rate: int) -> None:
        self.path = path
        self._rate = rate
        self._bytes = 0
        self._wave: Any = None
        if path.suffix.lower() == ".wav":
            self._wave = wave.open(str(path), "wb")  # noqa: SIM115 - it stays open between chunks
            self._wave.setparams((1, 2, rate, 0, "NONE", ""))
            return
        from mstar.media.audio import FORMATS, AudioStreamEncoder  # only compressed formats need it

        name = path.suffix.lower().removeprefix(".")
        if name not in FORMATS:
            raise LoadError(f"{path}: unsupported audio format `{name}`\n  fix: use one of {format_names(FORMATS)}")
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
        """Close the file. Returns the duration in seconds."""
        if self._wave is not None:
            self._wave.close()
        else:
            self._file.write(self._encoder.finish())
            self._file.close()
        return self._bytes / 2 / self._rate


def _find_player() -> list[str]:
    player = next((name for name in AUDIO_PLAYERS if shutil.which(name)), None)
    if player is None:
        raise LoadError(
            f"--play needs one of {format_names(AUDIO_PLAYERS)}, and none is installed\n"
            "  fix: install one, or omit --play"
        )
    return [player, *AUDIO_PLAYERS[player]]

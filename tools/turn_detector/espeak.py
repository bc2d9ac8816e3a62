"""Speech of eSpeak NG with the times of its words, through the C library.

The command `espeak-ng` does not report times. The library has one global synthesizer, so calls cannot overlap.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
from typing import Any

import numpy as np

_RETRIEVAL, _UTF8, _WORD, _LIST_TERMINATED = 1, 1, 1, 0
_PHONEMES = 0x100
"""Text between double brackets is phonemes."""
_PRONUNCIATIONS = {"Mm-hmm": "[[@mh'@m]]", "Mhm": "[[@mh@m]]", "Hm": "[[h@m]]"}
"""Sounds that it would spell."""
_RATE, _PITCH, _RANGE = 1, 3, 4


class _Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", ctypes.c_char * 8),
    )


_Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event))


@functools.cache
def _library() -> tuple[Any, int]:
    """The library, and its sample rate in Hz."""
    name = ctypes.util.find_library("espeak-ng")
    if name is None:
        raise SystemExit("libespeak-ng is not installed\n  fix: install espeak-ng")
    library = ctypes.CDLL(name)
    return library, library.espeak_Initialize(_RETRIEVAL, 200, None, 0)


def speak(
    text: str, voice: str, *, words_per_minute: int, pitch: int, pitch_range: int
) -> tuple[Any, int, list[float]]:
    """Samples as float32, their rate, and the seconds at which each word ends."""
    library, rate = _library()
    chunks, starts = list[Any](), list[float]()

    @_Callback
    def on_samples(samples: Any, count: int, events: Any) -> int:
        if count > 0:
            chunks.append(np.ctypeslib.as_array(samples, (count,)).copy())
        index = 0
        while events[index].type != _LIST_TERMINATED:
            if events[index].type == _WORD:
                starts.append(events[index].audio_position / 1000)
            index += 1
        return 0

    library.espeak_SetSynthCallback(on_samples)
    if library.espeak_SetVoiceByName(voice.encode()) != 0:
        raise SystemExit(f"espeak-ng has no voice {voice}\n  fix: install espeak-ng-data")
    for parameter, value in ((_RATE, words_per_minute), (_PITCH, pitch), (_RANGE, pitch_range)):
        library.espeak_SetParameter(parameter, value, 0)
    for written, spoken in _PRONUNCIATIONS.items():
        text = text.replace(written, spoken)
    data = text.encode()
    library.espeak_Synth(data, ctypes.c_size_t(len(data) + 1), 0, 1, 0, _UTF8 | _PHONEMES, None, None)
    library.espeak_Synchronize()
    audio = np.concatenate([np.zeros(0, np.int16), *chunks]).astype(np.float32) / 32768
    return audio, rate, [*starts[1:], len(audio) / rate]

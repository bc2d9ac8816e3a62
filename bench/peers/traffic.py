"""What clients of the race ask for, the same for every server: frames of unequal number, sound of unequal length.

Needs numpy only, so that a server's front can read a request without loading torch.
"""

from __future__ import annotations

import random
from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
WIDTH = 192
"""Numbers in a frame."""
HOP, RATE = 64, 1600
"""Samples for a token, and for a second of sound: so it has fifty tokens."""
FRAMES, TOKENS = (16, 96), (8, 96)
"""The fewest and the most of a request."""


@dataclass(frozen=True)
class SpeechRequest:
    """Frames to go by, and how many tokens of sound are wanted."""

    frames: Array
    tokens: int


def make_requests(count: int, seed: int = 0) -> list[SpeechRequest]:
    """Random requests by seed."""
    chosen, numbers = random.Random(seed), np.random.default_rng(seed)
    return [
        SpeechRequest(
            (numbers.standard_normal((chosen.randint(*FRAMES), WIDTH)) / 2).astype(np.float32),
            chosen.randint(*TOKENS),
        )
        for _ in range(count)
    ]


def encode_array(array: Array) -> str:
    """An array of float32 as JSON carries it."""
    return b64encode(np.ascontiguousarray(array, "<f4").tobytes()).decode()


def decode_frames(text: str) -> Array:
    """The frames of a request."""
    return decode_numbers(text).reshape(-1, WIDTH)


def decode_numbers(text: str) -> Array:
    """The array of float32 that a text carries."""
    return np.frombuffer(bytearray(b64decode(text)), "<f4")

"""Pictures for clients: pixels become a file in the format they asked for. Decoding is done elsewhere."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image

FORMATS = ("png", "jpeg", "webp")


def to_pixels(value: Any, dims: int = 3) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """An emission's value as pixels: three dimensions for a picture, four for frames. Raises ValueError."""
    array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    if array.dtype != np.uint8 or array.ndim != dims or array.shape[-1] != 3 or not array.size:
        wanted = "uint8 [height, width, 3]" if dims == 3 else "uint8 [frames, height, width, 3]"
        what = f"a model emitted {array.dtype} {list(array.shape)} where {wanted} is needed"
        raise ValueError(f"{what}\n  fix: make pixels of it in the last op of the walk")
    return array


def encode_image(value: Any, format: str, quality: int) -> tuple[bytes, tuple[int, int]]:
    """A picture as a file of one of FORMATS, and its width and height. `quality` goes from 0 to 100."""
    pixels = to_pixels(value)
    file = io.BytesIO()
    image = Image.fromarray(pixels)
    if format == "png":
        image.save(file, "PNG")
    else:
        image.save(file, format.upper(), quality=quality)
    return file.getvalue(), image.size

"""Image encoders: pixels to PNG, JPEG or WebP. Decoding is in `decoder_pool`."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image

FORMATS = ("png", "jpeg", "webp")


def to_pixels(value: Any, dims: int = 3) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Convert an emission to uint8 pixels: 3 dimensions for an image, 4 for video frames. Raises ValueError."""
    array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    if array.dtype != np.uint8 or array.ndim != dims or array.shape[-1] != 3 or not array.size:
        expected = "uint8 [height, width, 3]" if dims == 3 else "uint8 [frames, height, width, 3]"
        what = f"the model emitted {array.dtype} {list(array.shape)}, expected {expected}"
        raise ValueError(f"{what}\n  fix: convert to pixels in the last op of the walk")
    return array


def encode_image(value: Any, format: str, quality: int) -> tuple[bytes, tuple[int, int]]:
    """Encode an image, and return its width and height. `quality` is 0 to 100, for JPEG and WebP."""
    pixels = to_pixels(value)
    file = io.BytesIO()
    image = Image.fromarray(pixels)
    if format == "png":
        image.save(file, "PNG")
    else:
        image.save(file, format.upper(), quality=quality)
    return file.getvalue(), image.size

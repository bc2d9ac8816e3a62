"""Renders the partial images of an image model as a strip, from noise to the final image.

    python -m tools.render_image_strip MODEL "a prompt" -o strip.png

MODEL is a file or an installed name, and accepts an ImageRequest. Each seed is one row.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable

import numpy as np
from PIL import Image

from mstar.media.images import to_pixels
from mstar.requests import ImageRequest
from mstar.walk.emissions import Emission
from mstar.walk.load import load_model


def make_strip(lines: Iterable[Iterable[Emission]]) -> Image.Image:
    """Concatenate images of equal size, one row per line."""
    lines = [np.concatenate([to_pixels(emission.value) for emission in line], 1) for line in lines]
    return Image.fromarray(np.concatenate(lines))


def main(arguments: list[str]) -> int:
    """Generate the images and write the strip."""
    parser = argparse.ArgumentParser(prog="tools.render_image_strip")
    parser.add_argument("model")
    parser.add_argument("prompt")
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--seed", type=int, nargs="+", default=[0])
    options = parser.parse_args(arguments)
    model = load_model(options.model)
    requests = [ImageRequest(options.prompt, seed=seed, partial_images=options.images - 1) for seed in options.seed]
    strip = make_strip(model.run(request).emissions for request in requests)
    strip.quantize(256, dither=Image.Dither.NONE).save(options.output, optimize=True)  # noise is large in true color
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

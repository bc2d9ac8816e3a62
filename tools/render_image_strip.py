"""`python -m tools.render_image_strip MODEL "a prompt" -o strip.png`: partial images from noise to the last step.

MODEL is a file or the name of one that is installed, and takes a Drawing. What it shows is put side by side, and of
several seeds one below the other.
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
    """Pictures of one size: those of a line side by side."""
    lines = [np.concatenate([to_pixels(emission.value) for emission in line], 1) for line in lines]
    return Image.fromarray(np.concatenate(lines))


def main(words: list[str]) -> int:
    """Draw, and write what was shown."""
    parser = argparse.ArgumentParser(prog="tools.render_image_strip")
    parser.add_argument("model")
    parser.add_argument("prompt")
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--shows", type=int, default=8)
    parser.add_argument("--seed", type=int, nargs="+", default=[0])
    said = parser.parse_args(words)
    model = load_model(said.model)
    drawings = [ImageRequest(said.prompt, seed=seed, partial_images=said.shows - 1) for seed in said.seed]
    drawn = make_strip(model.run(drawing).emissions for drawing in drawings)
    drawn.quantize(256, dither=Image.Dither.NONE).save(said.output, optimize=True)  # noise is long in true colours
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

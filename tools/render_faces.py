"""Renders docs/pictures/faces.png: some seeds of the model `faces` with its real weights.

`python -m tools.render_faces` uses partial images, which are small enough for a page. It needs the files of
`scripts/fetch-faces`. Not a test.
"""

from pathlib import Path

import numpy as np
from PIL import Image

from mstar.models.faces.faces import Faces
from mstar.requests import ImageRequest

FILE = Path(__file__).parents[1] / "docs" / "pictures" / "faces.png"
SEEDS = (0, 1, 3, 4)
SIDE = 192


def main() -> None:
    model = Faces()
    faces = [
        np.asarray(model.run(ImageRequest("a face", seed=seed, partial_images=2)).emissions[0].value) for seed in SEEDS
    ]
    strip = Image.fromarray(np.concatenate(faces, axis=1))
    strip.resize((SIDE * len(faces), SIDE), Image.Resampling.LANCZOS).save(FILE, optimize=True)
    print(f"{FILE.name}: {len(faces)} faces, {FILE.stat().st_size / 1e3:.0f} KB")


if __name__ == "__main__":
    main()

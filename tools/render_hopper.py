"""Renders docs/pictures/hopper.png: one hop of a simulated robot controlled by `mstar serve`.

`python -m tools.render_hopper` runs the loop of bench/multimodal/hopper.py without pacing. Frames are 66 ms apart. It
needs the venv of `scripts/install-clients`. Not a test.
"""

import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from bench.multimodal.hopper import hop

FILE = Path(__file__).parents[1] / "docs" / "pictures" / "hopper.png"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        result = hop(Path(folder), rate=0)
        frames = np.load(Path(folder) / "frames.npy")
    framed = np.pad(frames, ((0, 0), (0, 0), (0, 4), (0, 0)), constant_values=255)
    Image.fromarray(np.concatenate(list(framed), axis=1)).save(FILE, optimize=True)
    print(f"{FILE.name}: {result['metres']:.1f} m in {len(result['took_s'])} steps, {FILE.stat().st_size / 1e3:.0f} KB")


if __name__ == "__main__":
    main()

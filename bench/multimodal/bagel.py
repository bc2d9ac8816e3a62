"""BAGEL: one picture drawn, and one changed, against the published loop; float32, one thread, equal pictures.

A language model of six layers of 192, pictures of 64 x 64 pixels, 25 moments, and the published defaults. The
published code cannot be installed, so its loop is written down again, waste included
(`tests/models/bagel/bagel_published.py`, shown there to give what the published code gave). Ours is served, by a
deployment in this process, and timed from the request to the picture; both read their prompt. Seconds are of the
process's CPU time.

Of the gain in drawing, removed work is the branch of guidance that is the prompt itself: 20 of 64 forwards, x1.45.
The rest, and all of the gain in changing a picture, is that branches share a forward, that keys and values are not
put together anew in every layer, and that a layer of three branches is some forty calls and not some four hundred.
Products of matrices are as large as before. They are half of what is left, and more with larger pictures, which gain
less.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from bench.claims import Row
from bench.in_process import NAME, one_thread, serve_in_process, time_cpu
from mstar.models.bagel.bagel import Bagel
from mstar.requests import ImageInput, ImageRequest

SHAPE = {"hidden_size": 192, "intermediate_size": 384, "num_hidden_layers": 6}
MOMENTS, SIDE, REPEATS = 25, 64, 4
PROMPT = "w20 w30 w40 w50 w60 w70 w80 w90 w100 w110"
SOURCE = ImageInput(np.random.default_rng(0).integers(0, 255, (SIDE, SIDE, 3), np.uint8))
REQUESTS = {
    "drawn": ImageRequest(PROMPT, SIDE, SIDE, steps=MOMENTS - 1),
    "changed": ImageRequest(PROMPT, steps=MOMENTS - 1, sources=(SOURCE,)),
}


def published(folder: str) -> Callable[[ImageRequest], np.ndarray]:
    """A function that draws as the published code does."""
    import torch

    from mstar.models.bagel.noise import draw_noise
    from tests.models.bagel.bagel_published import GenerationParams, Published

    reference = Published(folder)

    def draw(drawing: ImageRequest) -> np.ndarray:
        ids = [1, *(int(word[1:]) for word in drawing.prompt.split()), 2]
        pixels = [torch.from_numpy(one.pixels).permute(2, 0, 1) / 127.5 - 1 for one in drawing.sources]
        cells = SIDE // 4
        sources = [
            (one, draw_noise((4, cells, cells), drawing.seed, number), one) for number, one in enumerate(pixels, 1)
        ]
        start, columns = draw_noise(((SIDE // 8) ** 2, 16), drawing.seed, 0), SIDE // 8
        drawn = reference.draw(start, columns, reference.contexts([*sources, ids]), GenerationParams(MOMENTS))
        return reference.picture(drawn, columns).numpy()

    return draw


def rows(repeats: int = REPEATS) -> Sequence[Row]:
    """Seconds of both, and how many times faster ours is."""
    from tests.models.bagel import bagel_tiny as tiny

    made: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, one_thread(), ExitStack() as stack:
        saved = tiny.save(Path(folder), **SHAPE)
        front_end = stack.enter_context(serve_in_process(Bagel(saved)))
        ways: dict[str, Callable[[ImageRequest], np.ndarray]] = {
            "published": published(saved),
            "served": lambda drawing: np.asarray([one.value for one in front_end.open_stream(NAME, drawing)][-1]),
        }
        for name, ask in REQUESTS.items():
            pictures = [way(ask) for way in ways.values()]
            if np.abs(np.subtract(*pictures, dtype=np.int16)).max() > 1:
                raise RuntimeError(f"what is {name} differs from what the published code draws")
            took: dict[str, list[float]] = {way: [] for way in ways}
            for _ in range(repeats):
                for way, run in ways.items():
                    took[way].append(time_cpu(run, ask)[0])
            made += [Row(f"a picture {name}, {way}", "s", seconds) for way, seconds in took.items()]
            each = [one / other for one, other in zip(took["published"], took["served"], strict=True)]
            made.append(Row("  times faster", "x", each))
    return made


if __name__ == "__main__":
    from bench.claims import print_table

    print_table(rows())

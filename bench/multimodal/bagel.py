"""BAGEL: one image generated and one edited, against our reimplementation of the published loop; equal images.

The published code is in no package, so the baseline is `tests/models/bagel/bagel_published.py`: our reimplementation
with the same forward passes, unneeded work included. `tests/models/bagel/test_bagel.py` checks it against golden data
of the published code. Its speed was never compared with that of the published code, which cannot run here. Ours is
served by a deployment in this process, from the request to the image; both read their prompt. float32, one thread.

Of the gain in generation, removed work is the guidance branch that is the prompt itself: 20 of 64 forward passes,
x1.45. The rest, and all of the gain in editing, is that branches share a forward pass, that keys and values are not
concatenated anew in every layer, and that a layer of three branches is some forty calls and not some four hundred.
Matrix products are as large as before, so the gain falls with the width of the network.

Workload: the published language model is a Qwen2.5 of 28 layers of 3584, images have up to 1024 x 1024 pixels, and the
loop has 25 to 50 timesteps. Here it has six layers of 192, images of 64 x 64 pixels, and 25 timesteps with the
published defaults of guidance. The kernels that are used do not depend on the width, but the overhead of calls does:
`bagel` shows width 512 beside it, which is nearer to the published model, without a target.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from bench.claims import Row
from bench.in_process import NAME, Elapsed, one_thread, serve_in_process, time_wall_and_cpu
from bench.multimodal.speedup import speedup_rows
from mstar.models.bagel.bagel import Bagel
from mstar.requests import ImageInput, ImageRequest

SHAPE = {"hidden_size": 192, "intermediate_size": 384, "num_hidden_layers": 6}
WIDE_SHAPE = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 6}
MOMENTS, SIDE, REPEATS = 25, 64, 4
PROMPT = "w20 w30 w40 w50 w60 w70 w80 w90 w100 w110"
SOURCE = ImageInput(np.random.default_rng(0).integers(0, 255, (SIDE, SIDE, 3), np.uint8))
REQUESTS = {
    "drawn": ImageRequest(PROMPT, SIDE, SIDE, steps=MOMENTS - 1),
    "changed": ImageRequest(PROMPT, steps=MOMENTS - 1, sources=(SOURCE,)),
}


def published(folder: str) -> Callable[[ImageRequest], np.ndarray]:
    """A function that generates an image with our reimplementation."""
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


def rows(repeats: int = REPEATS, *, has_wide: bool = True) -> Sequence[Row]:
    """Durations of both sides, by turns, and the speed-up."""
    made = compare(SHAPE, repeats, ("drawn", "changed"))
    return made + compare(WIDE_SHAPE, 2, ("drawn",), ", width 512") if has_wide else made


def compare(shape: dict[str, int], repeats: int, names: Sequence[str], suffix: str = "") -> list[Row]:
    """Rows for a network of this shape. Raises if the images differ."""
    from tests.models.bagel import bagel_tiny as tiny

    made: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, one_thread(), ExitStack() as stack:
        saved = tiny.save(Path(folder), **shape)
        front_end = stack.enter_context(serve_in_process(Bagel(saved)))
        ways: list[Callable[[ImageRequest], np.ndarray]] = [
            published(saved),
            lambda drawing: np.asarray([one.value for one in front_end.open_stream(NAME, drawing)][-1]),
        ]
        for name in names:
            pictures = [way(REQUESTS[name]) for way in ways]
            if np.abs(np.subtract(*pictures, dtype=np.int16)).max() > 1:
                raise RuntimeError(f"the image {name} differs from that of the reimplementation")
            took: list[list[Elapsed]] = [[], []]
            for _ in range(repeats):
                for seconds, run in zip(took, ways, strict=True):
                    seconds.append(time_wall_and_cpu(run, REQUESTS[name])[0])
            made += speedup_rows(f"a picture {name}{suffix}", *took)
    return made


if __name__ == "__main__":
    from bench.claims import print_table

    print_table(rows())

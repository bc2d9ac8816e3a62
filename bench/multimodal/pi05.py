"""pi0.5: the time from an observation to a chunk of actions, against our reimplementation of the published loop.

One request at a time, float32, one thread for both, the same actions. openpi is in no package, and lerobot's package
requires other versions of Python and transformers. The baseline is `tests/models/pi05/pi05_published.py`: our
reimplementation with the layers of transformers. `tests/models/pi05/test_pi05.py` checks it against the outputs of
lerobot, and `bench.multimodal.pi05_lerobot` compares its speed with lerobot's own module. Ours is served by a
deployment in this process, with all that serving takes.

Nothing of the gain is batching. It is removed work, of two kinds, which are shown apart:

- Padding. The published code encodes an absent camera and reads padded tokens, and masks them. The figure with the
  target is measured with two of three cameras and a fifth of the tokens, as for a robot with one arm.
- The rest, with nothing padded: modulations of the norms computed once for all requests, no masks and no copies of the
  cache, matrices with one input merged, and no last output of the reader.

Workload: the published reader is a Gemma of 18 layers of 2048 (MLP 16384), the action expert 18 of 1024 (MLP 4096), the
encoder 27 of 1152, with 256 patches for each of three cameras, 200 tokens, 50 actions and ten steps. Here the reader
has four layers of 512 (MLP 4096), the expert four of 256 (MLP 1024), the encoder four of 288, in nearly the same
proportions of work, so that the reader is most of it as in the published model. Patches and tokens are a quarter of
the published numbers, and the same share of the positions is padding: 104 of 242 here, 416 of 968 there. The
networks run in torch at every size; no kernel depends on the width.

`control_loop` is a robot that asks ten times a second, with openpi's own client, over its WebSocket, for chunks of five
steps; there the time is the robot's own, and a busy machine shows in it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import takewhile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.claims import Row
from bench.in_process import NAME, Elapsed, one_thread, serve_in_process, time_wall_and_cpu
from bench.multimodal.speedup import speedup_rows
from mstar.frontend.actor import FrontendActor

ROOT = Path(__file__).parents[2]
REPEATS, STEPS, LENGTH, WORDS, ACTIONS = 5, 10, 50, 10, 50
SIGLIP = {"hidden_size": 288, "intermediate_size": 1076, "num_hidden_layers": 4, "num_attention_heads": 4}
SIGLIP |= {"image_size": 64, "patch_size": 8}
GEMMA = {"hidden_size": 512, "intermediate_size": 4096, "num_hidden_layers": 4, "head_dim": 64, "vocab_size": 512}
EXPERT = (256, 1024)
RATE, SECONDS = 10, 5
MODEL_SOURCE = """
from mstar.models.pi05.pi05 import Pi05


class Here(Pi05):
    def __init__(self):
        super().__init__({saved!r})
"""


def save(folder: Path, steps: int = STEPS) -> str:
    """A model of this size with random weights."""
    from tests.models.pi05 import pi05_tiny as tiny
    from tests.models.pi05.pi05_published import random_model

    sizes = {"vision_config": SIGLIP, "text_config": GEMMA, "action_horizon": ACTIONS}
    return tiny.save(folder, random_model(SIGLIP, GEMMA, *EXPERT), **sizes, num_inference_steps=steps)


def published(saved: str, *, is_padded: bool) -> Callable[[], Any]:
    """A function that computes a chunk with our reimplementation: with padding and an absent camera, or without."""
    from tests.models.pi05.pi05_published import Published

    network, (images, tokens, noise) = Published(saved), model_inputs()
    views, length = (3, LENGTH) if is_padded else (2, WORDS)
    cameras, words = images.new_tensor([True, True, False]).bool()[None, :views], tokens[None, :length]
    return lambda: network.actions(images[None, :views], cameras, words, words < WORDS, noise[None], STEPS)[0]


def model_inputs() -> tuple[Any, Any, Any]:
    """Three pictures, as many tokens as there may be, and noise."""
    import torch

    chosen = torch.Generator().manual_seed(1)
    images, noise = torch.rand(3, 3, 64, 64, generator=chosen), torch.randn(ACTIONS, 32, generator=chosen)
    return images * 2 - 1, torch.arange(LENGTH), noise


def served(front_end: FrontendActor) -> Any:
    """A chunk, asked for."""
    import torch

    images, tokens, noise = model_inputs()
    request = {"views": images[:2], "tokens": tokens[:WORDS], "noise": noise, "steps": STEPS}
    request |= {"left": noise * 0, "trust": noise[:, 0] * 0}
    return torch.as_tensor([one.value for one in front_end.open_stream(NAME, request)][-1])


def rows() -> Sequence[Row]:
    """Duration of a chunk on both sides, by turns, with padding and without."""
    from tests.models.pi05.pi05_replayed import Replayed

    with tempfile.TemporaryDirectory() as folder, one_thread(), ExitStack() as stack:
        saved = save(Path(folder))
        front_end = stack.enter_context(serve_in_process(Replayed(saved)))
        ways = {"padded": published(saved, is_padded=True), "served": lambda: served(front_end)}
        ways["unpadded"] = published(saved, is_padded=False)
        wanted, *others = (way() for way in ways.values())
        if not all(float((one - wanted).abs().max()) < 1e-4 < float(wanted.std()) for one in others):
            raise RuntimeError("the served actions differ from those of the reimplementation")
        took = {way: list[Elapsed]() for way in ways}
        for _ in range(REPEATS):
            for way, run in ways.items():
                took[way].append(time_wall_and_cpu(run)[0])
    return [
        *speedup_rows("a chunk, 2 of 3 cameras", took["padded"], took["served"]),
        *speedup_rows("a chunk, nothing padded", took["unpadded"], took["served"]),
    ]


def control_loop() -> Sequence[Row]:
    """Milliseconds until a robot has its next chunk, and how often it was not there when it was due."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pi05_here.py"
        file.write_text(MODEL_SOURCE.format(saved=save(Path(folder), steps=5)))
        how = ["--port", "0", "--threads", "1", "--in-process"]
        serve = [sys.executable, "-m", "mstar.cli", "serve", f"{file}:Here", *how]
        with subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT) as server:
            try:
                inputs = list(takewhile(lambda line: line != "ready\n", server.stdout or ()))
                address = urlsplit(inputs[0].split()[-1])
                python = ROOT / ".venv-clients" / "openpi" / "bin" / "python"
                script = ROOT / "tests" / "clients" / "loop_openpi.py"
                where = [str(address.hostname), str(address.port), str(RATE), str(RATE * SECONDS)]
                robot = [str(python), str(script), *where]
                done = subprocess.run(robot, capture_output=True, text=True, timeout=60, check=False)
            finally:
                server.terminate()
    if done.returncode:
        raise RuntimeError(f"the robot ended with {done.stderr[-2000:]}; the server said {inputs}")
    took = [seconds * 1e3 for seconds in json.loads(done.stdout)]
    late = f"  later than {1000 / RATE:.0f} ms, of {len(took)}"
    return [Row("control loop, a reply", "ms", took), Row(late, "misses", [sum(ms > 1000 / RATE for ms in took)])]

"""pi0.5: the time from an observation to a chunk of actions, against the published computation, for one request.

A reader 256 wide and an action expert 128 wide, six layers each; three cameras of 64 patches of which two are there, 20
tokens of 200, 50 actions, ten steps; float32, one thread for both, the same actions. openpi and lerobot cannot be
installed beside this tree's libraries: what stands for them is written with transformers' layers and computes what they
compute (`tests/models/pi05/pi05_published.py`; a test holds it against what lerobot computed). Ours is served, by a
deployment in this process; times are those of the processor, with all that serving takes.

Nothing of the gain is batching: there is one request. It is work that is left out. The published computation is also
run with nothing padded and no camera absent, which shows its two parts: about twice for what is not encoded, not read
and not looked at in each step; about 1.2 times for what norms are told, computed once for all requests, for masks and
copies of the cache that are not made, matrices with one input that are one, and the last output of the reader.

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
from bench.in_process import NAME, one_thread, serve_in_process, time_cpu
from mstar.frontend.actor import FrontendActor

ROOT = Path(__file__).parents[2]
REPEATS, STEPS, LENGTH, WORDS, ACTIONS = 9, 10, 200, 20, 50
SIGLIP = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 6, "num_attention_heads": 4}
SIGLIP |= {"image_size": 64, "patch_size": 8}
GEMMA = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 6, "head_dim": 32, "vocab_size": 512}
EXPERT = (128, 512)
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
    """A function that makes a chunk as the published code does, of what is padded and absent too, or of the rest."""
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
    """A chunk as published and here, in turns, and how many times as fast it is."""
    from tests.models.pi05.pi05_replayed import Replayed

    with tempfile.TemporaryDirectory() as folder, one_thread(), ExitStack() as stack:
        saved = save(Path(folder))
        front_end = stack.enter_context(serve_in_process(Replayed(saved)))
        ways = {"as published": published(saved, is_padded=True), "served": lambda: served(front_end)}
        ways["as published, nothing padded or absent"] = published(saved, is_padded=False)
        wanted, *others = (way() for way in ways.values())
        if not all(float((one - wanted).abs().max()) < 1e-4 < float(wanted.std()) for one in others):
            raise RuntimeError("what is served is not what the published code computes")
        took = {way: list[float]() for way in ways}
        for _ in range(REPEATS):
            for way, run in ways.items():
                took[way].append(time_cpu(run)[0] * 1e3)
    times = [one / other for one, other in zip(took["as published"], took["served"], strict=True)]
    return [*(Row(f"a chunk, {way}", "ms", each) for way, each in took.items()), Row("  times faster", "x", times)]


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

"""SmolVLM: eight questions about one picture at once, against transformers' generate, one question at a time.

A language model of four layers of 256 and an eye of four of 192, which sees a picture as 17 tiles, the published
number; answers of 16 tokens; float32, greedy, one thread for both. Each round has a new image.

The gain is removed work (a picture is cut, seen and read once, not eight times) and batching (one forward writes a
token of all answers); the longer the answers, the more it is batching. Eight pictures with a question each show what is
left when nothing can be shared: batching and fused kernels. The reference's own batch sees and reads the picture eight
times, and may choose another token than alone. What one question of the reference takes is told by its parts: cutting
the picture, seeing it, reading the prompt, writing the answer. One question in three stands for those that are asked
one by one.

Workload: the published SmolVLM-256M has a language model of 30 layers of 576, an encoder of 12 of 768, and 17 tiles for
an image of full size. Here the networks are a third of the width and shallower, and the number of tiles is the same,
since it decides how much work eight questions share. The kernels do not depend on the width.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.claims import Row
from bench.in_process import NAME, one_thread, serve_in_process, time_wall
from mstar.frontend.actor import FrontendActor
from mstar.models.smolvlm.smolvlm import SmolVlm
from mstar.requests import ChatRequest, ImageInput, Message, Sampling

COUNT, STEPS, ROUNDS, TILE, EDGE = 8, 16, 3, 64, 256
SHAPE: dict[str, Any] = {"width": 256, "layers": 4, "image_size": TILE, "edge": EDGE}
SHAPE |= {"hidden_size": 192, "intermediate_size": 768, "num_hidden_layers": 4, "num_attention_heads": 4}


def questions(number: int, pictures: int) -> list[ChatRequest]:
    """Eight questions about a number of images, drawn from a seed."""
    import numpy as np

    draw = np.random.default_rng(number)
    shown = [ImageInput(draw.integers(0, 255, (EDGE, EDGE, 3), np.uint8)) for _ in range(pictures)]
    requests = [f"Question {one}: what is {'very ' * one}small?" for one in range(COUNT)]
    params = Sampling(max_tokens=STEPS)
    return [ChatRequest((Message("user", (shown[one % pictures], text)),), params) for one, text in enumerate(requests)]


def served(front_end: FrontendActor, chats: Sequence[ChatRequest]) -> list[list[int]]:
    """The answers to chats that are asked for at once."""
    streams = [front_end.open_stream(NAME, chat) for chat in chats]
    return [[int(emission.value) for emission in stream] for stream in streams]


def reference_phases(reference: Any, chat: ChatRequest) -> list[float]:
    """Seconds of the reference for what a question is made of."""
    cut, given = time_wall(reference.given, chat)
    pixels, _ = given.pop("pixel_values"), given.pop("pixel_attention_mask")
    seen, shown = time_wall(reference.network.get_image_features, pixels)
    read, _ = time_wall(lambda one: reference.network(**one, mm_encoder_outputs={"image": shown}), given)
    return [cut, seen, read]


def rows() -> Sequence[Row]:
    """Seconds of ours and of the reference, and what a question of the latter is made of."""
    from tests.models.smolvlm import smolvlm_tiny as tiny

    with tempfile.TemporaryDirectory() as folder, one_thread(), ExitStack() as stack:
        saved = tiny.save(Path(folder), ends=False, **SHAPE)
        reference = tiny.Reference(saved)
        run = functools.partial(served, stack.enter_context(serve_in_process(SmolVlm(saved))))
        run(questions(ROUNDS, 2))
        reference.write(questions(ROUNDS, 1)[0])
        theirs, batch, ours, unshared, split = (list[Any]() for _ in range(5))
        for number in range(ROUNDS):  # side by side, so that a change of the machine's mood meets all
            chats = questions(number, 1)
            seconds, answers = time_wall(run, chats)
            ours.append(seconds)
            batch.append(time_wall(reference.write_all, chats)[0])
            unshared.append(time_wall(run, questions(100 + number, COUNT))[0])
            some = range(number, COUNT, ROUNDS)  # each is asked once, and stands for its neighbours
            seconds, wanted = time_wall(lambda which, of=chats: [reference.write(of[one]) for one in which], some)
            theirs.append(seconds / len(some) * COUNT)
            split.append([*reference_phases(reference, chats[0]), seconds / len(some)])
            if [answers[one] for one in some] != wanted:
                raise RuntimeError("what was served is not what the reference writes")
    cut, seen, read, whole = zip(*split, strict=True)
    return [
        Row("8 answers about a picture, one by one", "s", theirs),
        Row("8 answers about a picture, their batch", "s", batch),
        Row("8 answers about a picture, served", "s", ours),
        Row("  times one by one", "x", [one / other for one, other in zip(theirs, ours, strict=True)]),
        Row("  times their batch", "x", [one / other for one, other in zip(batch, ours, strict=True)]),
        Row("8 answers about 8 pictures, served", "s", unshared),
        Row("  times one by one", "x", [one / other for one, other in zip(theirs, unshared, strict=True)]),
        Row("one answer, one by one", "s", whole),
        Row("  of which to cut the picture", "s", cut),
        Row("  to see it", "s", seen),
        Row("  to read the prompt", "s", read),
        Row("  to write", "s", [one - sum(others) for one, *others in zip(whole, cut, seen, read, strict=True)]),
    ]

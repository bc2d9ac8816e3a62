# pyright: basic
"""Toy components for pictures, robots and worlds: see `toys` for the arithmetic and what it is good for."""

from __future__ import annotations

from math import isqrt
from typing import Any, cast

import numpy as np

from mstar.testing.toy_language import WIDTH, ToyComponent, digest, kv_entries, split_rows, to_floats
from mstar.walk.batching import ONE_ROW, Layout, ragged, rows, stacked
from mstar.walk.component import op
from mstar.walk.states import KV
from mstar.walk.types import Float32, Int64, Tensor, View


# ---------------------------------------------------------------- pictures
class ImageEncoder(ToyComponent):
    """A vision transformer: a picture to embeddings of its patches."""

    patch = 4

    @op
    def encode(self, image: Float32[Tensor, "3 H W"]) -> Float32[Tensor, "P 64"]:
        """An embedding for each patch."""
        count = (image.shape[1] // self.patch) * (image.shape[2] // self.patch)
        return to_floats(self.weighted_digest(image), (count, WIDTH))


class Vae(ToyComponent):
    """Pictures to latents and back; a latent stands for 8 × 8 pixels."""

    pixels = 8

    @op
    def encode(self, image: Float32[Tensor, "3 H W"]) -> Float32[Tensor, "Q 64"]:
        """A picture as latents."""
        count = (image.shape[1] // self.pixels) * (image.shape[2] // self.pixels)
        return to_floats(self.weighted_digest(image), (count, WIDTH))

    @op
    def decode(self, x: Float32[Tensor, "N 64"]) -> Float32[Tensor, "3 H W"]:
        """Latents of a square picture as the picture."""
        side = isqrt(len(x)) * self.pixels
        return to_floats(self.weighted_digest(x), (3, side, side))


class Guidance(ToyComponent):
    """The arithmetic around a flow model. It has no weights."""

    @op
    def noise(self, side: int, seed: int) -> Float32[Tensor, "N 64"]:
        """Latents to start from, for a square picture."""
        return to_floats(digest(side, seed), (side * side, WIDTH))

    @op(batch=ragged("N"))
    def mix(
        self,
        v: Float32[Tensor, "N 64"],
        no_text: Float32[Tensor, "N 64"],
        no_image: Float32[Tensor, "N 64"],
    ) -> Float32[Tensor, "N 64"]:
        """Away from what no text gives, and from what no image gives."""
        by_text = no_text + 4 * (v - no_text)
        return no_image + 2 * (by_text - no_image)

    @op(batch=ragged("N"))
    def euler(
        self, x: Float32[Tensor, "N 64"], v: Float32[Tensor, "N 64"], step: int, layout: Layout = ONE_ROW
    ) -> Float32[Tensor, "N 64"]:
        """One step of the way, kept small by a remainder."""
        steps = np.repeat(rows(step), layout.lengths).astype(np.float32)[:, None]
        return cast("Any", np.mod(x - 3 * v + steps, 251))  # pyright: ignore[reportCallIssue, reportArgumentType]


# ---------------------------------------------------------------- robots
class Policy(ToyComponent):
    """A vision-language backbone and the action expert that reads its cache, in one set of weights."""

    chunk, width, joints = 50, 32, 7

    def tokenize(self, text: str) -> Any:
        """A token for each letter."""
        return np.array([ord(letter) % 97 for letter in text], np.int64)

    @op(batch=ragged("T"))
    def prefix(
        self,
        views: list[Float32[Tensor, "P 64"]],
        tokens: Int64[Tensor, "T"],
        pose: Float32[Tensor, "32"],
        kv: KV,
        layout: Layout = ONE_ROW,
    ) -> None:
        """Read what the cameras see, the task, and where the robot is."""
        for seen, ids, where, cache in zip(rows(views), split_rows(tokens, layout), pose, rows(kv), strict=True):
            entries = kv_entries(cache)
            entries.extend(self.weighted_digest(patch) for view in seen for patch in view)
            entries.extend(map(int, ids))
            entries.append(self.weighted_digest(where))

    @op
    def noise(self, seed: int) -> Float32[Tensor, "50 32"]:
        """Actions to start from."""
        return to_floats(digest(seed), (self.chunk, self.width))

    @op(batch=stacked)
    def flow(self, actions: Float32[Tensor, "50 32"], step: int, kv: View[KV]) -> Float32[Tensor, "50 32"]:
        """Where the actions should go, given the prefix."""
        parts = zip(actions, rows(step), rows(kv), strict=True)
        return cast("Any", np.stack([to_floats(self.cache_digest(kv, x, at), x.shape) for x, at, kv in parts]))

    @op(batch=stacked)
    def move(self, actions: Float32[Tensor, "50 32"], v: Float32[Tensor, "50 32"]) -> Float32[Tensor, "50 32"]:
        """One step of the way, kept small by a remainder."""
        return cast("Any", np.mod(np.asarray(actions) - 3 * np.asarray(v), 251))

    @op(batch=stacked)
    def finish(self, actions: Float32[Tensor, "50 32"]) -> Float32[Tensor, "50 7"]:
        """The part of the actions that this robot has joints for."""
        return actions[:, :, : self.joints]


# ---------------------------------------------------------------- worlds
class VideoEncoder(ToyComponent):
    """Frames of a video to embeddings of their patches."""

    patch = 8

    @op
    def encode(self, frames: Float32[Tensor, "F 3 H W"]) -> Float32[Tensor, "N 64"]:
        """An embedding for each patch of each frame."""
        count, _, height, width = frames.shape
        return to_floats(self.weighted_digest(frames), (count * (height // self.patch) * (width // self.patch), WIDTH))


class Predictor(ToyComponent):
    """Imagines what follows an action, with a cache of what was imagined before."""

    @op(batch=ragged("N"))
    def observe(self, z: Float32[Tensor, "N 64"], kv: KV, layout: Layout = ONE_ROW) -> None:
        """Read what is really seen into the cache."""
        for latents, cache in zip(split_rows(z, layout), rows(kv), strict=True):
            kv_entries(cache).append(self.weighted_digest(latents))

    @op(batch=ragged("N"))
    def advance(
        self,
        z: Float32[Tensor, "N 64"],
        action: Float32[Tensor, "7"],
        pose: Float32[Tensor, "7"],
        kv: KV,
        layout: Layout = ONE_ROW,
    ) -> tuple[Float32[Tensor, "N 64"], Float32[Tensor, "7"]]:
        """What is seen after an action, and where the robot then is."""
        following: list[Any] = []
        for latents, act, where, cache in zip(split_rows(z, layout), action, pose, rows(kv), strict=True):
            kv_entries(cache).append(self.weighted_digest(latents, act, where))
            following.append(to_floats(self.cache_digest(cache), latents.shape))
        return cast("Any", np.concatenate(following)), cast("Any", np.mod(pose + 3 * action, 251))


class CrossEntropy(ToyComponent):
    """Planning by the cross-entropy method: sample plans, score them, refit to the best."""

    def __init__(self, candidates: int = 5, elites: int = 2, seed: int = 0) -> None:
        super().__init__(seed)
        self.candidates = candidates
        self.elites = elites

    @op
    def begin(self, horizon: int) -> tuple[Float32[Tensor, "H 7"], Float32[Tensor, "H 7"]]:
        """The mean and the deviation of plans of this length, when nothing is known."""
        zeros = np.zeros((horizon, 7), np.float32)
        return cast("Any", zeros), cast("Any", zeros + 8)

    @op
    def sample(self, mean: Float32[Tensor, "H 7"], std: Float32[Tensor, "H 7"], step: int) -> Float32[Tensor, "K H 7"]:
        """Plans around the mean."""
        noise = to_floats(self.weighted_digest(step), (self.candidates, *mean.shape))
        return cast("Any", np.floor(mean + std * noise / 125))

    @op(batch=stacked)
    def score(self, z: Float32[Tensor, "N 64"], goal: Float32[Tensor, "M 64"]) -> Float32[Tensor, ""]:
        """How far an imagined end is from the goal."""
        far = [self.weighted_digest(*pair) % 1009 for pair in zip(z, goal, strict=True)]
        return cast("Any", np.array(far, np.float32))

    @op
    def refit(
        self, candidates: Float32[Tensor, "K H 7"], scores: list[Float32[Tensor, ""]]
    ) -> tuple[Float32[Tensor, "H 7"], Float32[Tensor, "H 7"]]:
        """The mean and the spread of the plans that come nearest to the goal."""
        nearest = np.argsort(np.array(scores), kind="stable")[: self.elites]
        best = np.asarray(candidates)[nearest]
        return cast("Any", np.floor(best.mean(0))), cast("Any", np.ceil(np.ptp(best, 0) / 2) + 1)

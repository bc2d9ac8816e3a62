# pyright: basic
"""Fake image, robot and world models for tests. `toy_language` explains the arithmetic."""

from __future__ import annotations

from math import isqrt
from typing import Any, cast

from mstar.testing.lazy_numpy import np
from mstar.testing.toy_language import WIDTH, ToyComponent, digest, kv_entries, split_rows, to_floats
from mstar.walk.batching import ONE_ROW, Layout, ragged, rows, stacked
from mstar.walk.component import op
from mstar.walk.states import KV
from mstar.walk.types import Float32, Int64, Tensor, View


# ---------------------------------------------------------------- images
class ImageEncoder(ToyComponent):
    """Vision transformer: embeddings of the patches of an image."""

    patch = 4

    @op
    def encode(self, image: Float32[Tensor, "3 H W"]) -> Float32[Tensor, "P 64"]:
        """One embedding per patch."""
        count = (image.shape[1] // self.patch) * (image.shape[2] // self.patch)
        return to_floats(self.weighted_digest(image), (count, WIDTH))


class Vae(ToyComponent):
    """VAE: images to latents and back, one latent per 8 × 8 pixels."""

    pixels = 8

    @op
    def encode(self, image: Float32[Tensor, "3 H W"]) -> Float32[Tensor, "Q 64"]:
        """Latents of an image."""
        count = (image.shape[1] // self.pixels) * (image.shape[2] // self.pixels)
        return to_floats(self.weighted_digest(image), (count, WIDTH))

    @op
    def decode(self, x: Float32[Tensor, "N 64"]) -> Float32[Tensor, "3 H W"]:
        """The square image of these latents."""
        side = isqrt(len(x)) * self.pixels
        return to_floats(self.weighted_digest(x), (3, side, side))


class Guidance(ToyComponent):
    """Arithmetic of flow matching: initial noise, classifier-free guidance, Euler steps. It has no weights."""

    @op
    def noise(self, side: int, seed: int) -> Float32[Tensor, "N 64"]:
        """Initial latents of a square image."""
        return to_floats(digest(side, seed), (side * side, WIDTH))

    @op(batch=ragged("N"))
    def mix(
        self,
        v: Float32[Tensor, "N 64"],
        no_text: Float32[Tensor, "N 64"],
        no_image: Float32[Tensor, "N 64"],
    ) -> Float32[Tensor, "N 64"]:
        """Classifier-free guidance for two conditions: the text and the image."""
        by_text = no_text + 4 * (v - no_text)
        return no_image + 2 * (by_text - no_image)

    @op(batch=ragged("N"))
    def euler(
        self, x: Float32[Tensor, "N 64"], v: Float32[Tensor, "N 64"], step: int, layout: Layout = ONE_ROW
    ) -> Float32[Tensor, "N 64"]:
        """One Euler step; the remainder keeps values small."""
        steps = np.repeat(rows(step), layout.lengths).astype(np.float32)[:, None]
        return cast("Any", np.mod(x - 3 * v + steps, 251))


# ---------------------------------------------------------------- robots
class Policy(ToyComponent):
    """Robot policy: a vision-language backbone with an action expert that reads its KV cache."""

    chunk = 50
    width = 32
    joints = 7

    def tokenize(self, text: str) -> Any:
        """One token per character."""
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
        """Prefill: read camera views, the task and the pose."""
        for images, ids, joints, cache in zip(rows(views), split_rows(tokens, layout), pose, rows(kv), strict=True):
            entries = kv_entries(cache)
            entries.extend(self.weighted_digest(patch) for image in images for patch in image)
            entries.extend(map(int, ids))
            entries.append(self.weighted_digest(joints))

    @op
    def noise(self, seed: int) -> Float32[Tensor, "50 32"]:
        """Initial noise of an action chunk."""
        return to_floats(digest(seed), (self.chunk, self.width))

    @op(batch=stacked)
    def flow(self, actions: Float32[Tensor, "50 32"], step: int, kv: View[KV]) -> Float32[Tensor, "50 32"]:
        """Velocity of the actions (flow matching), conditioned on the prefix."""
        parts = zip(actions, rows(step), rows(kv), strict=True)
        return cast("Any", np.stack([to_floats(self.cache_digest(kv, x, at), x.shape) for x, at, kv in parts]))

    @op(batch=stacked)
    def move(self, actions: Float32[Tensor, "50 32"], v: Float32[Tensor, "50 32"]) -> Float32[Tensor, "50 32"]:
        """One Euler step; the remainder keeps values small."""
        return cast("Any", np.mod(np.asarray(actions) - 3 * np.asarray(v), 251))

    @op(batch=stacked)
    def finish(self, actions: Float32[Tensor, "50 32"]) -> Float32[Tensor, "50 7"]:
        """The actions of this robot's joints, without padding."""
        return actions[:, :, : self.joints]


# ---------------------------------------------------------------- world models
class VideoEncoder(ToyComponent):
    """Embeddings of the patches of video frames."""

    patch = 8

    @op
    def encode(self, frames: Float32[Tensor, "F 3 H W"]) -> Float32[Tensor, "N 64"]:
        """One embedding per patch of each frame."""
        count, _, height, width = frames.shape
        return to_floats(self.weighted_digest(frames), (count * (height // self.patch) * (width // self.patch), WIDTH))


class Predictor(ToyComponent):
    """World model: predicts the latents after an action, with a KV cache of earlier steps."""

    @op(batch=ragged("N"))
    def observe(self, z: Float32[Tensor, "N 64"], kv: KV, layout: Layout = ONE_ROW) -> None:
        """Append observed latents to the KV cache."""
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
        """Latents and pose after an action."""
        predicted: list[Any] = []
        for latents, act, joints, cache in zip(split_rows(z, layout), action, pose, rows(kv), strict=True):
            kv_entries(cache).append(self.weighted_digest(latents, act, joints))
            predicted.append(to_floats(self.cache_digest(cache), latents.shape))
        return cast("Any", np.concatenate(predicted)), cast("Any", np.mod(pose + 3 * action, 251))


class CrossEntropy(ToyComponent):
    """Planner with the cross-entropy method: sample plans, score them, refit to the elites."""

    def __init__(self, candidates: int = 5, elites: int = 2, seed: int = 0) -> None:
        super().__init__(seed)
        self.candidates = candidates
        self.elites = elites

    @op
    def begin(self, horizon: int) -> tuple[Float32[Tensor, "H 7"], Float32[Tensor, "H 7"]]:
        """Initial mean and standard deviation of plans of this length."""
        zeros = np.zeros((horizon, 7), np.float32)
        return cast("Any", zeros), cast("Any", zeros + 8)

    @op
    def sample(self, mean: Float32[Tensor, "H 7"], std: Float32[Tensor, "H 7"], step: int) -> Float32[Tensor, "K H 7"]:
        """Plans around the mean."""
        noise = to_floats(self.weighted_digest(step), (self.candidates, *mean.shape))
        return cast("Any", np.floor(mean + std * noise / 125))

    @op(batch=stacked)
    def score(self, z: Float32[Tensor, "N 64"], goal: Float32[Tensor, "M 64"]) -> Float32[Tensor, ""]:
        """Distance of a predicted final state from the goal."""
        distances = [self.weighted_digest(*pair) % 1009 for pair in zip(z, goal, strict=True)]
        return cast("Any", np.array(distances, np.float32))

    @op
    def refit(
        self, candidates: Float32[Tensor, "K H 7"], scores: list[Float32[Tensor, ""]]
    ) -> tuple[Float32[Tensor, "H 7"], Float32[Tensor, "H 7"]]:
        """Mean and spread of the plans with the lowest distance."""
        nearest = np.argsort(np.array(scores), kind="stable")[: self.elites]
        best = np.asarray(candidates)[nearest]
        return cast("Any", np.floor(best.mean(0))), cast("Any", np.ceil(np.ptp(best, 0) / 2) + 1)

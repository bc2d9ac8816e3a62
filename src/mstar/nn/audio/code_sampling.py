"""Code sampling: the residual codes of audio frames, which `mstar.nn.audio.code_predictor` scores one by one.

On a CPU each code is sampled by `mstar.nn.lm.sampler`. On a device the parameters of all codes of a frame are copied to
it together, the codes stay there while the frame is predicted, and they come back with what tells whether a row failed.
So a frame waits for its device once, not once per code.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mstar.errors import NotFinite, RowsFailed
from mstar.nn.audio.code_predictor import CodePredictor
from mstar.nn.lm.logits_processors import LogitsProcessors
from mstar.nn.lm.sampler import sample_tokens
from mstar.nn.lm.sampler_state import SamplerState
from mstar.nn.lm.token_draws import draw_arrays, draw_batch
from mstar.nn.staging import to_device
from mstar.requests import BadSampling, Sampling


def sample_frames(
    network: CodePredictor, first: Tensor, hidden_state: Tensor, samplings: Sequence[Sampling]
) -> tuple[Tensor, Tensor]:
    """All codes of the frames with these first codes, [rows, 1], on the host, and the sum of their embeddings.

    Raises RowsFailed.
    """
    samplers = [SamplerState() for _ in samplings]
    if network.device.type == "cpu":
        return network.predict_frames(first, hidden_state, lambda scores: sample_tokens(scores, samplings, samplers))
    frame = _FrameOnDevice(network, first, samplings, samplers)
    codes, embedding = network.predict_frames(frame.first, hidden_state, frame.sample)
    return frame.read(codes), embedding


class _FrameOnDevice:
    """Sampling parameters of all codes of a batch of frames on the device of their network."""

    def __init__(
        self, network: CodePredictor, first: Tensor, samplings: Sequence[Sampling], samplers: Sequence[SamplerState]
    ) -> None:
        self._samplings = samplings
        size, arrays, draws = network.codebook_size, [first.numpy()], []
        is_greedy = all(sampling.is_greedy for sampling in samplings)
        # The samplers read no codes, so the processors of all codes of a frame are equal.
        self._processors = None if is_greedy else LogitsProcessors(size, samplings, samplers)
        if self._processors is not None:
            arrays += self._processors.arrays
            for _ in range(network.groups - 1):
                keys = [
                    sampler.next_draw(sampling.seed) if sampling.temperature else 0
                    for sampling, sampler in zip(samplings, samplers, strict=True)
                ]
                draws += draw_arrays(size, samplings, keys)
        moved = to_device([*arrays, *draws], network.device)
        self.first = moved[0]
        """The first code of each frame."""
        self._processor_arrays = moved[1 : len(arrays)]
        self._draws = iter(zip(*[iter(moved[len(arrays) :])] * 2, strict=True))
        self._largest_logits: list[Tensor] = []
        self._largest_scores: list[Tensor] = []

    def sample(self, logits: Tensor) -> Tensor:
        """One code per row, as [rows, 1], without waiting for the device."""
        largest, codes = logits.max(-1, keepdim=True)
        self._largest_logits.append(largest)
        if self._processors is None:
            return codes
        scores = logits.float()
        self._processors.apply(scores, self._processor_arrays)
        self._largest_scores.append(scores.amax(-1, keepdim=True))
        return draw_batch(scores, self._samplings, next(self._draws))[:, None]

    def read(self, codes: Tensor) -> Tensor:
        """The codes on the host, in one copy with the largest logits, in float64, which represents both exactly."""
        parts = [codes, *self._largest_logits, *self._largest_scores]
        widths = [codes.shape[1], len(self._largest_logits), len(self._largest_scores)]
        chosen, logits, scores = torch.cat([part.double() for part in parts], 1).cpu().split(widths, 1)
        if not logits.isfinite().all():
            problem, fix = "a largest logit is not finite", "look for an overflow, and for damaged weights"
            raise RowsFailed({row: NotFinite(f"{problem}\n  fix: {fix}") for row in _not_finite_rows(logits)})
        if not scores.isfinite().all():
            problem, fix = "the sampling parameters exclude every code", "use smaller penalties and biases"
            raise RowsFailed({row: BadSampling(f"{problem}\n  fix: {fix}") for row in _not_finite_rows(scores)})
        return chosen.long()


def _not_finite_rows(values: Tensor) -> list[int]:
    return (~values.isfinite().all(1)).nonzero()[:, 0].tolist()

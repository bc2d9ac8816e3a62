"""Code sampling: the residual codes of audio frames, which `mstar.nn.audio.code_predictor` scores one by one.

On a CPU each code is sampled by `mstar.nn.lm.sampler`. On a device the parameters of all codes of a frame are copied to
it together, the codes stay there while the frame is predicted, and they come back with what tells whether a row failed.
So a frame waits for its device once, not once per code. All steps of a frame are one captured graph, unless a row has
parameters that a graph cannot hold (`mstar.nn.lm.device_steps.captured_sampling`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mstar.errors import NotFinite, RowsFailed
from mstar.nn.audio.code_predictor import CodePredictor
from mstar.nn.device_graphs import MAX_ROWS, CapturedGraph, padded_size
from mstar.nn.device_memory import DeviceMemory
from mstar.nn.lm.device_steps.captured_sampling import ENTRY_COUNTS, CapturedSampling, GraphSampler
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
    if (replayed := _replay(network, first, hidden_state, samplings, samplers)) is not None:
        return replayed
    frame = _FrameOnDevice(network, first, samplings, samplers)
    codes, embedding = network.predict_frames(frame.first, hidden_state, frame.sample)
    return _read(frame.table(codes).cpu(), network.groups), embedding


# ---------------------------------------------------------------- as a graph
@torch.inference_mode()
def capture_largest(network: CodePredictor, memory: DeviceMemory) -> None:
    """Capture the largest batch of frames when the network is loaded, and reserve what graphs need."""
    if network.graphs is not None:
        rows = min(padded_size(memory.max_batch_size), MAX_ROWS)
        sampling = CapturedSampling(network.codebook_size, [Sampling(temperature=1.0)] * rows, [])
        sampling.entries = ENTRY_COUNTS[0]
        memory.reserve_peak(lambda: _capture(network, rows, sampling))


@torch.inference_mode()
def _replay(
    network: CodePredictor,
    first: Tensor,
    hidden_state: Tensor,
    samplings: Sequence[Sampling],
    samplers: Sequence[SamplerState],
) -> tuple[Tensor, Tensor] | None:
    """Sample frames by a graph; None if no graph can do it."""
    count, rows = len(first), padded_size(len(first))
    if network.graphs is None or rows > MAX_ROWS:
        return None
    sampling = CapturedSampling.create(network.codebook_size, samplings, samplers)
    if sampling is None:
        return None
    graph = network.graphs.find((rows, sampling.entries)) or _capture(network, rows, sampling)
    if graph is None:
        return None
    hidden, table, embedding = graph.results
    hidden[:count].copy_(hidden_state)
    first = torch.nn.functional.pad(first, (0, 0, 0, rows - count))
    graph.run([first, *sampling.arrays(rows, sampling.next_draws(network.groups - 1))])
    return _read(table.cpu()[:count], network.groups), embedding[:count].clone()


def _capture(network: CodePredictor, rows: int, sampling: CapturedSampling) -> CapturedGraph | None:
    """Capture batches of this number of frames."""
    graphs: Any = network.graphs
    hidden = network.new_hidden_states(rows)

    def run(arrays: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        sampler, columns = GraphSampler(arrays[1:], network.codebook_size, network.device), list[list[Tensor]]()

        def sample(logits: Tensor) -> Tensor:
            columns.append(sampler.sample(logits))
            return columns[-1][2 if arrays[1:] else 0][:, None]

        codes, embedding = network.predict_frames(arrays[0], hidden, sample)
        _, largest_logits, *others = zip(*columns, strict=True)
        largest = [*largest_logits, *(others[1] if others else ())]
        return hidden, _join([codes, *(column[:, None] for column in largest)]), embedding

    keys = np.zeros((network.groups - 1, 1), np.int64)
    arrays = [torch.zeros((rows, 1), dtype=torch.int64), *sampling.arrays(rows, keys)]
    return graphs.capture((rows, sampling.entries), arrays, run)


# ---------------------------------------------------------------- without a graph
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

    def table(self, codes: Tensor) -> Tensor:
        """What `_read` reads."""
        return _join([codes, *self._largest_logits, *self._largest_scores])


# ---------------------------------------------------------------- both
def _join(columns: Sequence[Tensor]) -> Tensor:
    """Columns in one table, in float64, which represents codes and logits exactly."""
    return torch.cat([column.double() for column in columns], 1)


def _read(table: Tensor, groups: int) -> Tensor:
    """Codes from a table on the host: codes, largest logits and largest scores of each frame. Raises RowsFailed."""
    chosen, logits, scores = table.split([groups, groups - 1, table.shape[1] - 2 * groups + 1], 1)
    if not logits.isfinite().all():
        problem, fix = "a largest logit is not finite", "look for an overflow, and for damaged weights"
        raise RowsFailed({row: NotFinite(f"{problem}\n  fix: {fix}") for row in _not_finite_rows(logits)})
    if not scores.isfinite().all():
        problem, fix = "the sampling parameters exclude every code", "use smaller penalties and biases"
        raise RowsFailed({row: BadSampling(f"{problem}\n  fix: {fix}") for row in _not_finite_rows(scores)})
    return chosen.long()


def _not_finite_rows(values: Tensor) -> list[int]:
    return (~values.isfinite().all(1)).nonzero()[:, 0].tolist()

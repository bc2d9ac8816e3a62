"""Token times of Whisper: dynamic time warping (DTW) over cross-attention, equal to that of openai-whisper.

Some heads of the decoder attend to the audio of the token that they predict (alignment heads). DTW finds the monotonic
path of the highest attention through tokens and encoder positions. The scores are computed in
`mstar.nn.lm.encoder_decoder`; tokens are grouped to words in `words`. Imports torch, so it is imported inside ops only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

_MEDIAN_WIDTH = 7
"""Width of the median filter over encoder positions."""


def align_tokens(scores: Tensor, prompt_length: int) -> list[int]:
    """First encoder position of each text token and of the end, of scores [heads, tokens, positions].

    The tokens are a prompt of this length, the task, the text and the end. A token attends to the next one.
    """
    weights = scores.softmax(-1)
    deviation, mean = torch.std_mean(weights, dim=-2, keepdim=True, unbiased=False)
    matrix = _filter_median((weights - mean) / deviation).mean(0)[prompt_length:-1]
    return warp(-matrix.double().cpu().numpy())


def _filter_median(weights: Tensor) -> Tensor:
    """Median over neighboring positions. Positions beyond the edges are mirrored."""
    margin = _MEDIAN_WIDTH // 2
    if weights.shape[-1] <= margin:
        return weights
    windows = pad(weights, (margin, margin), mode="reflect").unfold(-1, _MEDIAN_WIDTH, 1)
    return windows.sort()[0][..., margin]


def warp(costs: np.ndarray[Any, np.dtype[np.float64]]) -> list[int]:
    """First column of each row on the cheapest path from corner to corner, whose steps go right, down, or both.

    The cells of an anti-diagonal do not depend on each other, so each is one step. `moves` is how a cell is reached:
    0 diagonally, 1 from above, 2 from the left, which wins ties. Sums are rounded to float32, as in openai-whisper.
    """
    rows, columns = costs.shape
    moves = np.full((rows + columns - 1, rows), 2, np.int8)
    before, last = np.full((2, rows + 1), np.inf, np.float32)
    before[0] = 0  # the corner; entry r + 1 of an anti-diagonal is the sum of row r
    skewed = np.zeros((rows + columns - 1, rows))
    for row in range(rows):
        skewed[row : row + columns, row] = costs[row]
    for step in range(rows + columns - 1):
        first, end = max(0, step - columns + 1), min(rows, step + 1)
        diagonal, above, left = before[first:end], last[first:end], last[first + 1 : end + 1]
        move = moves[step, first:end]
        move[(above < diagonal) & (above < left)] = 1
        move[(diagonal < above) & (diagonal < left)] = 0
        best = np.where(move == 0, diagonal, np.where(move == 1, above, left))
        current = np.full(rows + 1, np.inf, np.float32)
        current[first + 1 : end + 1] = skewed[step, first:end] + best
        before, last = last, current
    return _first_columns(moves, rows, columns)


def _first_columns(moves: np.ndarray[Any, np.dtype[np.int8]], rows: int, columns: int) -> list[int]:
    """Follow the path back from the last cell."""
    firsts, row, column = [0] * rows, rows - 1, columns - 1
    while row > 0:
        firsts[row] = column
        move = 1 if column == 0 else int(moves[row + column, row])
        row -= move != 2
        column -= move != 1
    return firsts

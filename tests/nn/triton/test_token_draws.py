"""The kernel that draws tokens draws what torch draws, with the same random numbers."""

import random

import numpy as np
import pytest
import torch

from mstar.nn.lm import draw_choice
from mstar.nn.lm import token_draws as torch_draws
from mstar.nn.lm.draw_choice import checked_kernel, choose_draws
from mstar.nn.lm.random_numbers import draw_key
from mstar.nn.triton import token_draws
from mstar.requests import Sampling


def random_params(count, seed):
    """Parameters of all kinds, greedy ones among them."""
    chosen = random.Random(seed)
    return [
        Sampling(
            temperature=chosen.choice([0.0, 0.3, 0.7, 1.0, 1.5]),
            top_k=chosen.choice([0, 0, 1, 2, 5, 40, 1000]),
            top_p=chosen.choice([1.0, 1.0, 0.1, 0.5, 0.9, 0.999]),
            min_p=chosen.choice([0.0, 0.0, 0.05, 0.3]),
        )
        for _ in range(count)
    ]


def draw_both(scores, params, seed=0):
    """Tokens of the kernel, of torch's batch, and of torch row by row."""
    keys = [draw_key(seed, row) for row in range(len(params))]
    arrays = [torch.from_numpy(array) for array in torch_draws.draw_arrays(scores.shape[1], params, keys)]
    rows = [
        int(torch_draws.draw_row(row_scores, row_params, key)) if row_params.temperature else int(row_scores.argmax())
        for row_scores, row_params, key in zip(scores, params, keys, strict=True)
    ]
    batches = [draws.draw_batch(scores.clone(), params, arrays).tolist() for draws in (token_draws, torch_draws)]
    return *batches, rows


def check_draws(size, block, count, monkeypatch):
    monkeypatch.setattr(token_draws, "_BLOCK", block)
    params = random_params(count, size + block)
    scores = torch.randn(len(params), size, generator=torch.Generator().manual_seed(size)) * 3
    drawn, batch, rows = draw_both(scores, params)
    assert drawn == batch == rows
    assert size == 1 or len(set(drawn)) > count / 5


def test_draws_are_those_of_torch(monkeypatch):
    check_draws(97, 64, 6, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "block"), [(97, 4096), (97, 32), (1000, 512), (1, 16)])
def test_draws_of_any_size_are_those_of_torch(size, block, monkeypatch):
    check_draws(size, block, 24, monkeypatch)


@pytest.mark.slow
def test_equal_scores_are_kept_from_the_first_on(monkeypatch):
    monkeypatch.setattr(token_draws, "_BLOCK", 16)
    scores = torch.randint(0, 3, (20, 50), generator=torch.Generator().manual_seed(1)).float()
    scores[:, ::7] = -torch.inf
    params = [Sampling(temperature=1.0, top_p=0.05 + 0.045 * row, top_k=(0, 30)[row % 2]) for row in range(20)]
    for seed in range(2):
        drawn, batch, rows = draw_both(scores, params, seed)
        assert drawn == batch == rows


def test_scores_that_are_a_part_of_others():
    scores = torch.randn(6, 64, generator=torch.Generator().manual_seed(0))[1:4, :40]
    drawn, batch, rows = draw_both(scores, [Sampling(temperature=1.0, top_k=9)] * 3)
    keys = np.array([[draw_key(0, row) for row in range(3)], [9] * 3])
    columns = np.array([[1.0] * 3, [1.0] * 3, [0.0] * 3])
    arrays = [torch.from_numpy(keys), torch.from_numpy(columns)]
    assert token_draws.draw_batch(scores, [], arrays).tolist() == drawn == batch == rows


def test_a_kernel_that_draws_other_tokens_is_not_used(monkeypatch, caplog):
    cpu = torch.device("cpu")
    monkeypatch.setattr(draw_choice, "_CHECK_SIZE", 50)
    assert choose_draws(cpu) is torch_draws.draw_batch
    kernel = token_draws.draw_batch
    assert checked_kernel(cpu) is kernel
    monkeypatch.setattr(token_draws, "draw_batch", lambda *given: kernel(*given) + 1)
    assert checked_kernel(cpu) is torch_draws.draw_batch
    monkeypatch.setattr(token_draws, "draw_batch", lambda *_: 1 / 0)
    assert checked_kernel(cpu) is torch_draws.draw_batch
    assert ["it draws other tokens" in caplog.text, "ZeroDivisionError" in caplog.text] == [True, True]


@pytest.mark.slow
def test_many_draws():
    for seed in range(4):
        params = random_params(30, seed)
        scores = torch.randn(len(params), 300, generator=torch.Generator().manual_seed(seed)) * 4
        drawn, batch, rows = draw_both(scores, params, seed)
        assert drawn == batch == rows

"""Counter-based random numbers: those of SplitMix64, exponentially distributed, and independent of each other."""

import math

import torch

from mstar.nn.lm.random_numbers import arrival_times, draw_key

MASK = (1 << 64) - 1


def splitmix64(state):
    """The published generator, in Python integers."""
    while True:
        state = (state + 0x9E3779B97F4A7C15) & MASK
        mixed = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & MASK
        mixed = ((mixed ^ mixed >> 27) * 0x94D049BB133111EB) & MASK
        yield mixed ^ mixed >> 31


def test_the_numbers_are_those_of_splitmix64():
    assert next(splitmix64(0)) == 0xE220A8397B1DCDAF, "the published first number of seed 0"
    for seed, draw in ((0, 0), (7, 3), (2**64 - 1, 10**6), (-(2**63), 5)):
        key = draw_key(seed, draw)
        stream = splitmix64(key & MASK)
        expected = [-math.log1p(-((next(stream) >> 11) + 0.5) * 2.0**-53) for _ in range(50)]
        times = arrival_times(torch.tensor(key), torch.arange(50))
        assert torch.allclose(times, torch.tensor(expected, dtype=torch.float64), rtol=1e-12)


def test_a_number_depends_on_its_token_only():
    key = torch.tensor(draw_key(3, 1))
    all_times = arrival_times(key, torch.arange(1000))
    some = torch.tensor([999, 3, 500])
    assert torch.equal(arrival_times(key, some), all_times[some])


def test_keys_differ_by_seed_and_by_draw():
    keys = {draw_key(seed, draw) for seed in range(200) for draw in range(200)}
    assert len(keys) == 200 * 200
    assert all(-(2**63) <= key < 2**63 for key in keys)


def test_the_times_are_exponential_and_uncorrelated():
    keys = torch.tensor([[draw_key(1, draw)] for draw in range(200)])
    times = arrival_times(keys, torch.arange(2000))
    assert abs(times.mean() - 1) < 0.01
    assert abs(times.var() - 1) < 0.02
    for bound in (0.01, 0.5, 3.0):
        assert abs((times < bound).double().mean() - (1 - math.exp(-bound))) < 0.003
    uniform = 1 - (-times).exp() - 0.5
    assert abs((uniform[:, 1:] * uniform[:, :-1]).mean()) < 0.001, "neighboring tokens"
    assert abs((uniform[1:] * uniform[:-1]).mean()) < 0.001, "successive draws"


def test_a_token_is_drawn_as_often_as_its_probability():
    probs = torch.tensor([0.5, 0.3, 0.15, 0.05])
    keys = torch.tensor([[draw_key(seed, 0)] for seed in range(20_000)])
    drawn = (probs / arrival_times(keys, torch.arange(4))).argmax(-1).bincount(minlength=4) / len(keys)
    assert (drawn - probs).abs().max() < 0.012, drawn

"""Elementwise operations give an element the same bits wherever it is in its tensor."""

import pytest
import torch

from mstar.nn.compile.elementwise import _OPERATIONS, in_whole_vectors


@pytest.mark.parametrize("name", list(_OPERATIONS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_has_the_same_bits_alone_and_among_others(name, dtype):
    torch.manual_seed(0)
    rows = torch.rand(1000, 49).to(dtype) * 3 + 0.1  # more elements than one thread of torch takes
    together = in_whole_vectors(rows, name)
    torch.testing.assert_close(together, _OPERATIONS[name](rows))
    for row in (0, 1, 500, 998, 999):
        assert torch.equal(in_whole_vectors(rows[row : row + 1], name), together[row : row + 1])
    transposed = in_whole_vectors(rows.T, name)
    assert torch.equal(transposed.T, together)


def test_options_are_passed_on():
    x = torch.linspace(-3, 3, 65)
    approximate = in_whole_vectors(x, "aten.gelu.default", approximate="tanh")
    torch.testing.assert_close(approximate, torch.nn.functional.gelu(x, approximate="tanh"))

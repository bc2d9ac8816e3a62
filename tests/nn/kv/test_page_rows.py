"""Pages of a KV cache are gathered and scattered whole; a page that is filled in part is copied in part."""

import random

import pytest
import torch

from mstar.nn.kv.page_rows import PageRows

PAGES, PAGE_SIZE = 12, 4


def new_memory(dtype, heads, size):
    torch.manual_seed(0)
    shape = (PAGES * PAGE_SIZE, heads, size)
    return [torch.randint(-100, 100, shape).to(dtype) for _ in range(4)]


@pytest.mark.parametrize(
    ("dtype", "heads", "size"),
    [(torch.bfloat16, 2, 8), (torch.float32, 1, 5), (torch.int8, 1, 3), (torch.float8_e4m3fn, 2, 4)],
)
def test_positions_are_those_of_the_pages(dtype, heads, size):
    memory, rng = new_memory(dtype, heads, size), random.Random(1)
    position_bytes = sum(each[0].numel() * each.element_size() for each in memory)
    for _ in range(30):
        pages = rng.sample(range(PAGES), 6)
        last = rng.randrange(6 * PAGE_SIZE)
        first = rng.randrange(last // PAGE_SIZE + 1) * PAGE_SIZE
        data = torch.empty((last - first) * position_bytes, dtype=torch.uint8)
        PageRows(memory, PAGE_SIZE).gather(pages, first, last, data)
        places = [pages[place // PAGE_SIZE] * PAGE_SIZE + place % PAGE_SIZE for place in range(first, last)]
        expected = [each.view(torch.uint8)[places].flatten() for each in memory]
        assert torch.equal(data, torch.cat(expected))
        written = [torch.zeros_like(each) for each in memory]
        PageRows(written, PAGE_SIZE).scatter(pages, first, last, data)
        for each, target in zip(memory, written, strict=True):
            right = torch.zeros_like(each).view(torch.uint8)
            right[places] = each.view(torch.uint8)[places]
            assert torch.equal(target.view(torch.uint8), right), "other positions are not touched"


def test_a_network_without_attention_has_nothing_to_copy():
    PageRows([], PAGE_SIZE).gather([0, 1], 0, 7, torch.empty(0, dtype=torch.uint8))

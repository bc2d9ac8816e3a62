"""The fused kernels give what torch gives, bit for bit where nothing is summed in another order."""

import itertools
import random
import sys

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention, silu

from mstar.nn import native

DTYPES = [torch.bfloat16, torch.float32]
CLOSE = {torch.bfloat16: {"atol": 2e-2, "rtol": 2e-2}, torch.float32: {"atol": 2e-6, "rtol": 1e-5}}


def test_there_are_kernels_here():
    assert native.is_native(torch.bfloat16, torch.device("cpu"))
    assert not native.is_native(torch.float64, torch.device("cpu"))


def test_tiny_numbers_are_still_numbers():
    native.argmax(torch.ones(1, 1))
    assert sys.float_info.min / 2 > 0, "the kernels changed how this process rounds"


def normed(x, weight, epsilon):
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)).to(x.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1, 7), (1, 5, 64), (2, 3, 4, 33)])
def test_norms(dtype, shape):
    torch.manual_seed(0)
    x, more, weight = torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype), torch.randn(shape[-1]).to(dtype)
    torch.testing.assert_close(native.rms_norm(x, weight, 1e-5), normed(x, weight, 1e-5), **CLOSE[dtype])
    total, out = native.add_norm(x, more, weight, 1e-5)
    assert torch.equal(total, x + more)
    torch.testing.assert_close(out, normed(x + more, weight, 1e-5), **CLOSE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "depth", "columns"), [(1, 7, 5), (13, 96, 64), (25, 33, 70), (3, 512, 1000)])
def test_products(dtype, rows, depth, columns):
    torch.manual_seed(0)
    x, weight = torch.randn(2, rows, depth, dtype=dtype), torch.randn(columns, depth, dtype=dtype) / depth**0.5
    bias, tiles = torch.randn(columns, dtype=dtype), native.to_tiles(weight)
    for added in (None, bias):
        out = native.linear(x, tiles, columns, added)
        torch.testing.assert_close(out, torch.nn.functional.linear(x, weight, added), **CLOSE[dtype])
        alone = [native.linear(x[:, row], tiles, columns, added) for row in range(rows)]
        assert torch.equal(torch.stack(alone, 1), out), "what a row gives depends on its company"


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_of_many_rows(dtype):
    """They are computed in blocks of rows and of the depth."""
    torch.manual_seed(0)
    x, weight = torch.randn(130, 1030, dtype=dtype), torch.randn(530, 1030, dtype=dtype) / 32
    out = native.linear(x, native.to_tiles(weight), 530, None)
    exact = torch.nn.functional.linear(x.double(), weight.double()).float()
    torch.testing.assert_close(out.float(), exact, atol=2e-5, rtol=2e-2 if dtype is torch.bfloat16 else 0)
    alone = [native.linear(row[None], native.to_tiles(weight), 530, None) for row in x[::10]]
    assert torch.equal(torch.cat(alone), out[::10])


def test_products_by_several_threads_are_the_same():
    torch.manual_seed(0)
    x, weight, results, before = torch.randn(70, 300), torch.randn(500, 300), [], torch.get_num_threads()
    for count in (1, 2):
        torch.set_num_threads(count)
        results.append(native.linear(x, native.to_tiles(weight), 500, None))
    torch.set_num_threads(before)
    assert torch.equal(*results)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 16, 77])
def test_gates(dtype, size):
    torch.manual_seed(0)
    x = torch.randn(1, 9, 2 * size, dtype=dtype) * 8
    torch.testing.assert_close(native.silu_mul(x), silu(x[..., :size]) * x[..., size:], **CLOSE[dtype])


def turned(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


@pytest.mark.parametrize("dtype", DTYPES)
def test_rotations(dtype):
    torch.manual_seed(0)
    whole = torch.randn(1, 6, 5 * 16, dtype=dtype)
    cos, sin = torch.randn(6, 16).to(dtype), torch.randn(6, 16).to(dtype)
    joined = whole.view(1, 6, 5, 16).transpose(1, 2)
    for x in (joined, joined[:, 1:3], joined.contiguous(), whole.view(1, 6, 2, 40).transpose(1, 2)[..., :16]):
        out, right = native.rotate(x, cos, sin), turned(x, cos, sin)
        assert torch.equal(out, right) or dtype is torch.float32  # which may multiply and add in one rounding
        torch.testing.assert_close(out, right, **CLOSE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 5, 1024, 1030, 5000])
def test_the_first_of_the_largest(dtype, size):
    torch.manual_seed(size)
    x = torch.randint(-50, 50, (40, size)).to(dtype)  # many are equal
    x[3, size // 2] = float("nan")
    x[4] = -float("inf")
    x[5, -1] = float("inf")
    x[6, size // 3], x[6, -1] = float("nan"), float("inf")
    chosen, is_finite = native.argmax(x)
    assert torch.equal(chosen[:, 0], x.float().argmax(-1))
    assert not is_finite
    rest = [row for row in range(40) if row not in {3, 4, 5, 6}]
    assert native.argmax(x[rest])[1]
    assert not any(native.argmax(x[row : row + 1])[1] for row in (3, 4, 5, 6))


# ---------------------------------------------------------------- attention
class Memory:
    """Requests of some lengths in pages that lie anywhere."""

    def __init__(self, dtype, lengths, key_heads, size, page_size):
        pages = [-(-length // page_size) for length in lengths]
        free = random.Random(0).sample(range(sum(pages) + 3), sum(pages))
        shape = ((sum(pages) + 3) * page_size, key_heads, size)
        self.keys, self.values = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
        self.table = torch.zeros((len(lengths), max(pages)), dtype=torch.int32)
        for row, count in enumerate(pages):
            self.table[row, :count] = torch.tensor([free.pop() for _ in range(count)])
        self.page_size, self.lengths = page_size, lengths

    def places(self, row):
        position = torch.arange(self.lengths[row])
        return self.table[row].long()[position // self.page_size] * self.page_size + position % self.page_size

    def pages(self, request, seen, places=None):
        self.alive = (request, seen, places)
        return native.Pages(
            table=self.table.data_ptr(),
            width=self.table.shape[1],
            page_size=self.page_size,
            request=request.data_ptr(),
            seen=seen.data_ptr(),
            places=None if places is None else places.data_ptr(),
            tokens=len(request),
        )


CASES = itertools.product(DTYPES, [(1, 1), (3, 3), (6, 2), (9, 3), (8, 2), (7, 1)], [8, 64, 80, 128])


@pytest.mark.parametrize(("dtype", "heads", "size"), [pytest.param(*case) for case in CASES])
@pytest.mark.parametrize("window", [0, 9])
def test_attention_over_pages(dtype, heads, size, window):
    torch.manual_seed(1)
    count, key_heads = heads
    memory = Memory(dtype, [1, 16, 17, 50, 33], key_heads, size, random.Random(size).choice([3, 16, 40]))
    request = torch.tensor([0, 1, 2, 3, 3, 4])
    seen = torch.tensor([1, 16, 17, 49, 50, 20])
    query = torch.randn(1, count, 6, size).to(dtype)
    out = torch.empty((6, count, size), dtype=dtype)
    native.attend(out, query, (memory.keys, memory.values), memory.pages(request, seen), size**-0.5, window)
    for token in range(6):
        places = memory.places(int(request[token]))[: int(seen[token])][-window:]
        keys, values = memory.keys[places].float(), memory.values[places].float()
        right = scaled_dot_product_attention(
            query[0, :, token, None].float(), keys.transpose(0, 1), values.transpose(0, 1), enable_gqa=True
        )
        torch.testing.assert_close(out[token].float(), right[:, 0], **CLOSE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "size"), [((3, 3), 20), ((9, 3), 64), ((8, 2), 96), ((7, 1), 8)])
@pytest.mark.parametrize("window", [0, 40])
def test_attention_of_a_prompt_is_that_of_its_tokens_one_by_one(dtype, heads, size, window):
    """Many new tokens of a request share passes over its keys and values, in an order that no bit shows."""
    torch.manual_seed(1)
    count, key_heads = heads
    memory = Memory(dtype, [90, 30, 75], key_heads, size, 16)
    lengths = ((0, 20, 90), (1, 29, 30), (2, 0, 75))  # of a request, a chunk of tokens
    request = torch.cat([torch.full((last - first,), row) for row, first, last in lengths])
    seen = torch.cat([torch.arange(first + 1, last + 1) for _, first, last in lengths])
    query, keys_values = torch.randn(1, count, len(seen), size).to(dtype), (memory.keys, memory.values)
    out = torch.empty((len(seen), count, size), dtype=dtype)
    native.attend(out, query, keys_values, memory.pages(request, seen), size**-0.5, window)
    for token in range(len(seen)):
        places = memory.places(int(request[token]))[: int(seen[token])][-window:]
        keys, values = (part[places].float().transpose(0, 1) for part in keys_values)
        own = query[:, :, token : token + 1]
        right = scaled_dot_product_attention(own[0].float(), keys, values, enable_gqa=True)
        torch.testing.assert_close(out[token].float(), right[:, 0], **CLOSE[dtype])
        alone = torch.empty((1, count, size), dtype=dtype)
        pages = memory.pages(request[token : token + 1], seen[token : token + 1])
        native.attend(alone, own, keys_values, pages, size**-0.5, window)
        assert torch.equal(alone[0], out[token]), token


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_in_one_is_what_its_parts_are(dtype):
    torch.manual_seed(1)
    heads, key_heads, size = 6, 2, 16
    one, other = (Memory(dtype, [5, 9], key_heads, size, 4) for _ in range(2))
    other.keys, other.values = one.keys.clone(), one.values.clone()
    request, seen = torch.tensor([0, 1, 1]), torch.tensor([5, 8, 9])
    places = torch.stack([one.places(0)[4], one.places(1)[7], one.places(1)[8]])
    joined = torch.randn(1, 3, (heads + 2 * key_heads) * size).to(dtype)
    angles = torch.randn(3, size).to(dtype), torch.randn(3, size).to(dtype)
    pages = one.pages(request, seen, places)
    together = native.attend_joined(joined, angles, (one.keys, one.values), pages, (0.25, 0))
    query, key, value = joined.view(1, 3, -1, size).transpose(1, 2).split([heads, key_heads, key_heads], 1)
    memory = other.keys, other.values
    native.write(memory, native.rotate(key, *angles)[0].transpose(0, 1), value[0].transpose(0, 1), places)
    out = torch.empty((3, heads, size), dtype=dtype)
    native.attend(out, native.rotate(query, *angles), memory, other.pages(request, seen), 0.25, 0)
    assert torch.equal(together[0].view_as(out), out)
    assert torch.equal(one.keys, other.keys)
    assert torch.equal(one.values, other.values)

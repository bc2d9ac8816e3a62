"""Triton kernels of paged attention: write keys and values to pages, attend over pages, merge splits.

One kernel serves prefill and decode of a ragged batch. A program attends with a block of tokens of one request, for
the query heads that share a key head, to the positions of the request, tile by tile with an online softmax
(FlashAttention). In decode a long request is split over several programs (Flash-Decoding), whose results are merged.

Pages are [slots, heads, size]; slot = page * page size + offset. A page table has a row per request of the batch. Each
token has its number of visible positions, so that causal and bidirectional reads are the same. Positions outside the
sliding window are not read: their pages can have been released.

A kernel is compiled again for each value of its constants, and for arguments that are 1 or divisible by 16. Those that
differ between steps are excluded from this: a compilation takes seconds, and a request would wait for it.

Importing this module imports triton. With TRITON_INTERPRET=1 in the environment, set before triton is imported, the
kernels are interpreted on CPU tensors.
"""

# pyright: reportOperatorIssue=false
# Type checkers see the functions that a kernel is compiled from.

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def to_cache_dtype(x, memory):
    """Values in the dtype of a KV cache. Those beyond the range of fp8 become its largest one."""
    if memory.dtype.element_ty == tl.float8e4nv:
        x = x.to(tl.float32)
        x = tl.where(x > 448.0, 448.0, tl.where(x < -448.0, -448.0, x))
    return x.to(memory.dtype.element_ty)


@triton.jit(do_not_specialize=["tokens"], do_not_specialize_on_alignment=["places"])
def write_pages(
    keys,
    values,
    key,
    value,
    places,
    tokens,
    key_token_stride,
    key_head_stride,
    value_token_stride,
    value_head_stride,
    HEADS: tl.constexpr,
    KEY_SIZE: tl.constexpr,
    KEY_BLOCK: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """Write the keys and values of TOKENS tokens and one head to their slots."""
    token = (tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)).to(tl.int64)
    head = tl.program_id(1)
    is_token = token < tokens
    slot = tl.load(places + token, mask=is_token, other=0) * HEADS + head

    column = tl.arange(0, KEY_BLOCK)
    mask = is_token[:, None] & (column < KEY_SIZE)[None, :]
    source = token[:, None] * key_token_stride + head * key_head_stride + column[None, :]
    new = to_cache_dtype(tl.load(key + source, mask=mask), keys)
    tl.store(keys + slot[:, None] * KEY_SIZE + column[None, :], new, mask=mask)

    column = tl.arange(0, VALUE_BLOCK)
    mask = is_token[:, None] & (column < VALUE_SIZE)[None, :]
    source = token[:, None] * value_token_stride + head * value_head_stride + column[None, :]
    new = to_cache_dtype(tl.load(value + source, mask=mask), values)
    tl.store(values + slot[:, None] * VALUE_SIZE + column[None, :], new, mask=mask)


@triton.jit(
    do_not_specialize=["tokens", "table_width"], do_not_specialize_on_alignment=["page_table", "seen", "blocks"]
)
def attend(
    out,
    logsumexps,
    query,
    keys,
    values,
    sinks,
    page_table,
    seen,
    blocks,
    tokens,
    table_width,
    query_token_stride,
    query_head_stride,
    scaling,
    softcap,
    window,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    MEMBERS: tl.constexpr,
    ROWS: tl.constexpr,
    KEY_SIZE: tl.constexpr,
    KEY_BLOCK: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    POSITIONS: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    """Attend with one block of tokens and at most MEMBERS of the GROUP query heads of one of HEADS key heads.

    A row is a token and a query head. If requests are split, `out` and `logsumexps` have a part per split, in float32.
    """
    PARTS: tl.constexpr = (GROUP + MEMBERS - 1) // MEMBERS
    head = tl.program_id(1) // PARTS
    request = tl.load(blocks + tl.program_id(0) * 3)
    first_token = tl.load(blocks + tl.program_id(0) * 3 + 1)
    count = tl.load(blocks + tl.program_id(0) * 3 + 2)

    row = tl.arange(0, ROWS)
    member = tl.program_id(1) % PARTS * MEMBERS + row % MEMBERS
    is_row = (row // MEMBERS < count) & (member < GROUP)
    token = first_token + row // MEMBERS
    query_head = head * GROUP + member

    # Each row sees the positions [begin, end), the block those of all its rows.
    end = tl.load(seen + token, mask=is_row, other=0)
    begin = tl.where(window > 0, tl.maximum(end - window, 0), 0)
    last = tl.max(end, 0)
    first = tl.min(tl.where(is_row, begin, last), 0)
    aligned = first // POSITIONS * POSITIONS
    tiles = tl.cdiv(tl.cdiv(last - aligned, POSITIONS), tl.num_programs(2))
    low = aligned + tl.program_id(2) * tiles * POSITIONS
    high = tl.minimum(last, low + tiles * POSITIONS)

    key_column = tl.arange(0, KEY_BLOCK)
    value_column = tl.arange(0, VALUE_BLOCK)
    offset = token[:, None] * query_token_stride + query_head[:, None] * query_head_stride + key_column[None, :]
    queries = tl.load(query + offset, mask=is_row[:, None] & (key_column < KEY_SIZE)[None, :], other=0.0)

    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, VALUE_BLOCK], tl.float32)
    if HAS_SINKS:  # a score without a value, which the first split counts
        sink = tl.load(sinks + query_head, mask=is_row, other=0.0).to(tl.float32)
        largest = tl.where(tl.program_id(2) == 0, sink, largest)
        total = tl.where(tl.program_id(2) == 0, total + 1.0, total)

    for base in range(low, high, POSITIONS):
        position = base + tl.arange(0, POSITIONS)
        is_read = (position >= first) & (position < high)
        page = tl.load(page_table + request * table_width + position // PAGE_SIZE, mask=is_read, other=0)
        slot = (page * PAGE_SIZE + position % PAGE_SIZE) * HEADS + head
        key = tl.load(
            keys + slot[None, :] * KEY_SIZE + key_column[:, None],
            mask=is_read[None, :] & (key_column < KEY_SIZE)[:, None],
            other=0.0,
        ).to(queries.dtype)
        # In float32 as the CPU computes it, and not in tf32.
        scores = tl.dot(queries, key, input_precision="ieee") * scaling
        if HAS_SOFTCAP:
            scores = softcap * (1.0 - 2.0 / (tl.exp(scores * (2.0 / softcap)) + 1.0))  # tanh
        is_seen = (position[None, :] >= begin[:, None]) & (position[None, :] < end[:, None]) & is_read[None, :]
        scores = tl.where(is_seen, scores, float("-inf"))

        larger = tl.maximum(largest, tl.max(scores, 1))
        shift = tl.where(larger > float("-inf"), larger, 0.0)  # a row that sees nothing yet
        weights = tl.exp(scores - shift[:, None])
        factor = tl.exp(largest - shift)
        total = total * factor + tl.sum(weights, 1)
        value = tl.load(
            values + slot[:, None] * VALUE_SIZE + value_column[None, :],
            mask=is_read[:, None] & (value_column < VALUE_SIZE)[None, :],
            other=0.0,
        ).to(queries.dtype)
        sums = sums * factor[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        largest = larger

    has_seen = total > 0
    result = sums / tl.where(has_seen, total, 1.0)[:, None]
    target = token * (HEADS * GROUP) + query_head
    if IS_SPLIT:
        target += tl.program_id(2).to(tl.int64) * tokens * (HEADS * GROUP)
        logsumexp = tl.where(has_seen, largest + tl.log(tl.where(has_seen, total, 1.0)), float("-inf"))
        tl.store(logsumexps + target, logsumexp, mask=is_row)
    mask = is_row[:, None] & (value_column < VALUE_SIZE)[None, :]
    tl.store(out + target[:, None] * VALUE_SIZE + value_column[None, :], result.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["rows", "splits"])
def merge_splits(
    out,
    parts,
    logsumexps,
    rows,
    splits,
    MAX_SPLITS: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
):
    """Merge the results of the splits of one token and query head, weighted by the sums of their exponentials."""
    row = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, MAX_SPLITS).to(tl.int64)
    column = tl.arange(0, VALUE_BLOCK)
    logsumexp = tl.load(logsumexps + split * rows + row, mask=split < splits, other=float("-inf"))
    weights = tl.exp(logsumexp - tl.max(logsumexp, 0))
    part = tl.load(
        parts + (split * rows + row)[:, None] * VALUE_SIZE + column[None, :],
        mask=(split < splits)[:, None] & (column < VALUE_SIZE)[None, :],
        other=0.0,
    )
    result = tl.sum(part * weights[:, None], 0) / tl.sum(weights, 0)
    tl.store(out + row * VALUE_SIZE + column, result.to(out.dtype.element_ty), mask=column < VALUE_SIZE)

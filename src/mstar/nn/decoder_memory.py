"""Memory of a decoder on a device: how much its forwards and its graphs need, from which its pages are sized."""

from __future__ import annotations

import functools

import torch

from mstar.nn.device_memory import DeviceMemory, MemoryProfile
from mstar.nn.kv.kv_cache import KVStore
from mstar.nn.kv.page_pool import PagePool
from mstar.nn.lm.decoder import Decoder, allocate_pages, new_steps, run_tokens, temporary_store


def request_pages(decoder: Decoder, memory: DeviceMemory, name: str, pages: int | None) -> None:
    """Request pages for the decoder of a component, the number that its author fixed, or as many as fit.

    The profile run has three equal chunks of a prompt, each as large as a batch can be and with the most sampled rows,
    in a temporary KV cache. From the second to the third, the activations grow with the context. Graphs of decode steps
    have memory of their own, which is measured by capturing some with the same cache.
    """
    page_size, tokens = decoder.store.pool.page_size, memory.max_batched_tokens
    store = temporary_store(decoder, decoder.store.backend, PagePool(-(-3 * tokens // page_size), page_size))
    cache, rows = decoder._trial_cache(store), min(tokens, memory.max_batch_size)
    size = run_tokens(decoder, cache, tokens).shape[1]  # allocates the temporary cache
    run_chunk = functools.partial(run_tokens, decoder, cache, tokens, rows)
    second, third = memory.measure_peak(run_chunk), memory.measure_peak(run_chunk)
    growth = max(0, third - second) * page_size // tokens
    cache.free()
    limits = {"max_rows": memory.max_batch_size, "max_buffer_bytes": memory.graph_buffer_bytes}
    graph_bytes, graph_growth = _measure_graphs(decoder, memory, store, size, **limits)
    profile = MemoryProfile(
        page_bytes=store.position_bytes * page_size,
        page_size=page_size,
        activation_bytes=max(second, third),
        context_bytes=growth + graph_growth,
        graph_bytes=graph_bytes,
    )
    memory.add(name, profile, pages, functools.partial(allocate_pages, decoder, **limits))


@torch.inference_mode()
def _measure_graphs(
    decoder: Decoder, memory: DeviceMemory, store: KVStore, size: int, **limits: int
) -> tuple[int, int]:
    """Bytes of the graphs of decode steps, and by how much they grow with each page of the KV cache.

    All graphs share memory for what they compute, so that of the largest counts, and all their buffers. It is measured
    for two numbers of pages, because attention that gathers pages needs more for more of them.
    """
    sizes, rows = [], 1
    for pages in (4, 8):
        steps = new_steps(decoder, store, size, **limits)
        if steps is None:
            return 0, 0
        sizes.append(memory.measure_peak(functools.partial(steps.capture_largest, pages)))
        steps.free()
        rows = steps.max_rows
        del steps  # its graphs keep their memory
    growth = max(0, sizes[1] - sizes[0]) // 4
    return sizes[0] - 4 * growth + memory.graph_buffer_bytes, -(-growth // rows)

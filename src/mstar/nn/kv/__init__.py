"""Paged KV cache: page pool, page tables, prefix cache, paged attention, cross-attention."""

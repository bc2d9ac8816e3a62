"""The KV cache: page pool, page tables, paged attention, cross-attention."""

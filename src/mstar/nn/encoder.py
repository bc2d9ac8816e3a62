"""Encoder: a library's encoder of pictures, sound or text as a component, and the cache of what it gave.

Equal inputs are encoded once: results are kept by the content they were made from, and shared inside one tenant only.
Inputs of unequal length are filled up to a few sizes where the author gives some. It does not crop, tokenize or pool,
and gives the last hidden states as the library does. The network is loaded where an op first runs.
"""

from __future__ import annotations

import functools
import hashlib
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from mstar.walk.batching import ONE_ROW, Layout, ragged, rows, stacked
from mstar.walk.component import Component, op
from mstar.walk.states import State
from mstar.walk.types import Float, Int64, Tensor


class ContentCache:
    """Tensors by the content they were made from, at most `limit_bytes` of them; the least recently used goes first."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.size_bytes = 0
        self._entries: OrderedDict[bytes, Tensor] = OrderedDict()

    def get(self, key: bytes) -> Tensor | None:
        """What is kept under a key; it is then the most recently used."""
        if key in self._entries:
            self._entries.move_to_end(key)
        return self._entries.get(key)

    def put(self, key: bytes, value: Tensor) -> None:
        """Keep a tensor under a new key, unless it is larger than the cache."""
        if value.nbytes > self.limit_bytes:
            return
        self._entries[key] = value
        self.size_bytes += value.nbytes
        while self.size_bytes > self.limit_bytes:
            self.size_bytes -= self._entries.popitem(last=False)[1].nbytes


def content_key(value: Tensor, tenant: str) -> bytes:
    """A hash of a tensor's bytes, shape and dtype, and of whom it belongs to."""
    import torch

    about = repr((tenant, str(value.dtype), tuple(value.shape))).encode()
    digest = hashlib.blake2b(about)
    digest.update(value.contiguous().cpu().view(torch.uint8).numpy().data)
    return digest.digest()


def hash_embeddings(embeddings: Tensor) -> Tensor:
    """A number for each row of embeddings, by its content and above those of all tokens: see `CausalLM.next_token_mixed`."""
    import numpy as np
    import torch

    rows = embeddings.contiguous().cpu().view(torch.uint8).numpy()
    digests = b"".join(hashlib.blake2b(row.data, digest_size=8).digest() for row in rows)
    return torch.from_numpy((np.frombuffer(digests, np.uint64) >> 2 | 1 << 61).astype(np.int64))


class TenantState(State):
    """Whose a request is, for an op that keeps what it gives and must not share it: its `tenant` says so."""


class Encoder(Component):
    """An encoder that `network` loads, with a cache of `cache_bytes` for its results.

    Sequences are filled up with zeros to the first of `buckets` that holds them, and masked. Those that fit in none run
    with others of their own length; so do all without buckets, which is right for every network. Results are shared,
    so nobody may change them.
    """

    def __init__(
        self, network: Callable[[], Any], *, buckets: Sequence[int] = (), cache_bytes: int = 256 * 1024 * 1024
    ) -> None:
        self._load = network
        self._buckets = sorted(buckets)
        self._is_checked = False
        self.cache = ContentCache(cache_bytes)

    @functools.cached_property
    def network(self) -> Any:
        """The library's model."""
        return self._load().eval().requires_grad_(requires_grad=False)

    def prepare(self) -> None:
        """Load the network."""
        _ = self.network

    @op(batch=stacked)
    def image(self, pixels: Float[Tensor, "C H W"], tenant: str = "") -> Float[Tensor, "P D"]:
        """The hidden states of a picture's patches."""
        return self._encode(pixels.unbind(), rows(tenant))

    @op(batch=stacked)
    def spectrum(self, features: Float[Tensor, "M F"], tenant: str = "") -> Float[Tensor, "P D"]:
        """The hidden states of a window of sound, for networks such as Whisper's that hear a fixed length of it."""
        return self._encode(features.unbind(), rows(tenant))

    @op(batch=ragged("S"))
    def audio(self, samples: Float[Tensor, "S"], tenant: str = "", layout: Layout = ONE_ROW) -> Float[Tensor, "P D"]:
        """The hidden states of a recording of any length."""
        return self._encode(samples.split(layout.lengths), rows(tenant))

    @op(batch=ragged("T"))
    def text(self, tokens: Int64[Tensor, "T"], tenant: str = "", layout: Layout = ONE_ROW) -> Float[Tensor, "T D"]:
        """The hidden states of tokens."""
        import torch

        return torch.cat(self._encode(tokens.split(layout.lengths), rows(tenant)))

    def _encode(self, inputs: Sequence[Tensor], tenants: Sequence[str]) -> Any:
        """What each input gives: from the cache, or by running the network once for each that is new."""
        keys = [content_key(value, tenant) for value, tenant in zip(inputs, tenants, strict=True)]
        results = {key: self.cache.get(key) for key in keys}
        groups: defaultdict[int, dict[bytes, Tensor]] = defaultdict(dict)
        for key, value in zip(keys, inputs, strict=True):
            if results[key] is None:
                groups[self._size(value)][key] = value
        for size, group in groups.items():
            for key, result in zip(group, self._run([*group.values()], size), strict=True):
                self.cache.put(key, result)
                results[key] = result
        return [results[key] for key in keys]

    def _size(self, value: Tensor) -> int:
        """The length at which an input runs. What is no sequence is never filled up."""
        length = value.shape[-1]
        return next((size for size in self._buckets if size >= length), length) if value.ndim == 1 else length

    def _run(self, inputs: list[Tensor], size: int) -> list[Tensor]:
        """The results of inputs that are alike but for their length, which is at most `size`."""
        import torch
        from torch.nn.functional import pad

        from mstar.nn.self_check import require_close

        lengths = [value.shape[-1] for value in inputs]
        with torch.inference_mode():
            batch = torch.stack([pad(value, (0, size - length)) for value, length in zip(inputs, lengths, strict=True)])
            if min(lengths) == size:
                return [hidden.clone() for hidden in self._hidden(batch)]
            mask = (torch.arange(size) < torch.tensor(lengths)[:, None]).long().to(batch.device)
            hidden = self._hidden(batch, attention_mask=mask)
            shorter = getattr(self.network, "_get_feat_extract_output_lengths", lambda length: length)
            results = [row[: int(shorter(length))].clone() for row, length in zip(hidden, lengths, strict=True)]
            if not self._is_checked:
                shortest = lengths.index(min(lengths))
                what = f"{type(self.network).__name__} gives other hidden states for an input that was filled up"
                fix = "give no buckets, so that only inputs of equal length share a forward"
                require_close(results[shortest], self._hidden(inputs[shortest][None])[0], what, fix)
                self._is_checked = True
        return results

    def _hidden(self, batch: Tensor, **mask: Tensor) -> Tensor:
        return self.network(**{self.network.main_input_name: batch}, **mask).last_hidden_state

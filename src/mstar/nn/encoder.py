"""Encoder: an image, audio or text encoder of transformers as a component, with an LRU cache of its results.

Equal inputs are encoded once: results are cached under a hash of the content and shared within one tenant only. Inputs
of different length are padded to bucket sizes, if the author sets some. The encoder does not crop, tokenize or pool; it
returns the last hidden states. The network is loaded by `prepare` or by the first op.
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
from mstar.walk.values import to_device


class ContentCache:
    """LRU cache of tensors by content key, with at most `limit_bytes` bytes."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.size_bytes = 0
        self._entries: OrderedDict[bytes, Tensor] = OrderedDict()

    def get(self, key: bytes) -> Tensor | None:
        """The tensor of a key, which becomes the most recently used; None on a miss."""
        if key in self._entries:
            self._entries.move_to_end(key)
        return self._entries.get(key)

    def put(self, key: bytes, value: Tensor) -> None:
        """Set the tensor of a key, which becomes the most recently used, unless it is larger than the cache."""
        if value.nbytes > self.limit_bytes:
            return
        if (replaced := self._entries.pop(key, None)) is not None:
            self.size_bytes -= replaced.nbytes
        self._entries[key] = value
        self.size_bytes += value.nbytes
        while self.size_bytes > self.limit_bytes:
            self.size_bytes -= self._entries.popitem(last=False)[1].nbytes


def content_key(value: Tensor, tenant: str) -> bytes:
    """Hash of a tensor's bytes, shape and dtype, and of its tenant."""
    import torch

    header = repr((tenant, str(value.dtype), tuple(value.shape))).encode()
    digest = hashlib.blake2b(header)
    digest.update(value.contiguous().cpu().view(torch.uint8).numpy().data)
    return digest.digest()


def hash_embeddings(embeddings: Tensor) -> Tensor:
    """Content id of each row of embeddings: a hash, larger than any token id. See `CausalLM.next_token_mixed`."""
    import numpy as np
    import torch

    rows = embeddings.contiguous().cpu().view(torch.uint8).numpy()
    digests = b"".join(hashlib.blake2b(row.data, digest_size=8).digest() for row in rows)
    return torch.from_numpy((np.frombuffer(digests, np.uint64) >> 2 | 1 << 61).astype(np.int64))


def place_embeddings(
    tokens: Tensor, embeddings: Tensor, is_content: Tensor, contents: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Content ids and embeddings of a prompt in which other content, such as audio, stands at placeholder tokens.

    `embeddings` are those of `tokens`, and are changed in place. See `CausalLM.next_token_mixed`.
    """
    import torch

    ids = tokens.clone()
    if contents:
        joined = torch.cat([content.to(embeddings.device, embeddings.dtype) for content in contents])
        places = is_content.nonzero()[:, 0]
        ids[places], embeddings[places.to(embeddings.device)] = hash_embeddings(joined), joined
    return ids, embeddings


class TenantState(State):
    """State that tells an op the `tenant` of its request, for caches that must not be shared between tenants."""


class Encoder(Component):
    """Encoder that `network` loads, with a result cache of `cache_bytes` bytes.

    Sequences are padded with zeros to the smallest of `buckets` that fits, and masked. Sequences that fit no bucket,
    and all without buckets, are batched only with others of equal length, which is correct for every network. Results
    are shared and must not be changed in place. `has_row_products` makes the linear layers independent of the batch on
    a CPU, for subclasses whose ops batch there; those of this class do not.
    """

    def __init__(
        self,
        network: Callable[[], Any],
        *,
        buckets: Sequence[int] = (),
        cache_bytes: int = 256 * 1024 * 1024,
        has_row_products: bool = False,
    ) -> None:
        self._load = network
        self._has_row_products = has_row_products
        self._buckets = sorted(buckets)
        self._is_checked = False
        self.cache = ContentCache(cache_bytes)

    @functools.cached_property
    def network(self) -> Any:
        """The loaded model, on the device of the component."""
        network = self.on_device(self._load())
        if self._has_row_products and self.is_on_cpu:
            from mstar.nn.native.row_linear import replace_linears

            replace_linears(network)
        return network

    def prepare(self) -> None:
        """Load the network."""
        _ = self.network

    @op(batch=stacked, rowwise_on_cpu=True)
    def image(self, pixels: Float[Tensor, "C H W"], tenant: str = "") -> Float[Tensor, "P D"]:
        """Hidden states of the patches of an image."""
        return self._encode(pixels.unbind(), rows(tenant))

    @op(batch=stacked, rowwise_on_cpu=True)
    def spectrum(self, features: Float[Tensor, "M F"], tenant: str = "") -> Float[Tensor, "P D"]:
        """Hidden states of an audio window, for networks with inputs of fixed length such as Whisper."""
        return self._encode(features.unbind(), rows(tenant))

    @op(batch=ragged("S"), rowwise_on_cpu=True)
    def audio(self, samples: Float[Tensor, "S"], tenant: str = "", layout: Layout = ONE_ROW) -> Float[Tensor, "P D"]:
        """Hidden states of audio of any length."""
        return self._encode(samples.split(layout.lengths), rows(tenant))

    @op(batch=ragged("T"), rowwise_on_cpu=True)
    def text(self, tokens: Int64[Tensor, "T"], tenant: str = "", layout: Layout = ONE_ROW) -> Float[Tensor, "T D"]:
        """Hidden states of tokens."""
        import torch

        return torch.cat(self._encode(tokens.split(layout.lengths), rows(tenant)))

    def _encode(self, inputs: Sequence[Tensor], tenants: Sequence[str]) -> Any:
        """Result of each input: from the cache, or from one run of the network per distinct input."""
        keys = self._keys(inputs, tenants)
        results = {key: self.cache.get(key) for key in keys}
        groups: defaultdict[tuple[int, bool], dict[bytes, Tensor]] = defaultdict(dict)
        for key, value in zip(keys, inputs, strict=True):
            if results[key] is None:  # a mask changes last bits, so only inputs that need one get one
                size = self._size(value)
                groups[size, value.shape[-1] < size][key] = value
        for (size, _), group in groups.items():
            for key, result in zip(group, self._run([*group.values()], size), strict=True):
                self.cache.put(key, result)
                results[key] = result
        return [results[key] for key in keys]

    def _keys(self, inputs: Sequence[Tensor], tenants: Sequence[str]) -> list[bytes]:
        if not self.cache.limit_bytes and self.device is not None:  # hashing would wait for a copy to the host
            return [index.to_bytes(4) for index in range(len(inputs))]
        return [content_key(value, tenant) for value, tenant in zip(inputs, tenants, strict=True)]

    def _size(self, value: Tensor) -> int:
        """Padded length of an input. Only sequences are padded."""
        length = value.shape[-1]
        return next((size for size in self._buckets if size >= length), length) if value.ndim == 1 else length

    def _run(self, inputs: list[Tensor], size: int) -> list[Tensor]:
        """Results of inputs that differ only in their length, which is at most `size`."""
        import torch
        from torch.nn.functional import pad

        from mstar.nn.self_check import require_close

        lengths = [value.shape[-1] for value in inputs]
        with torch.inference_mode():
            batch = torch.stack([pad(value, (0, size - length)) for value, length in zip(inputs, lengths, strict=True)])
            if self.device is not None:
                batch = to_device(batch, self.device)  # tokens are on the host
            if min(lengths) == size:
                return [hidden.clone() for hidden in self._hidden(batch)]
            mask = to_device((torch.arange(size) < torch.tensor(lengths)[:, None]).long(), batch.device)
            hidden = self._hidden(batch, attention_mask=mask)
            shorter = getattr(self.network, "_get_feat_extract_output_lengths", lambda length: length)
            results = [row[: int(shorter(length))].clone() for row, length in zip(hidden, lengths, strict=True)]
            if not self._is_checked:
                shortest = lengths.index(min(lengths))
                what = f"padding changes the hidden states of {type(self.network).__name__}"
                fix = "set no buckets, so that only inputs of equal length are batched"
                alone = self._hidden(batch[shortest : shortest + 1, : lengths[shortest]])[0]
                require_close(results[shortest], alone, what, fix)
                self._is_checked = True
        return results

    def _hidden(self, batch: Tensor, **mask: Tensor) -> Tensor:
        return self.network(**{self.network.main_input_name: batch}, **mask).last_hidden_state

"""NetworkLoader: loads the network of a language model, from the graph cache if its weights have a checksum."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mstar.nn.ranks import Rank

WeightsChecksum = str | Callable[[], str | None] | None
"""Checksum of the weights, or a function that returns it. None: the graph cache is not used."""


class NetworkLoader:
    """Loads a decoder. `load` returns the transformers model."""

    def __init__(self, load: Callable[[], Any], checksum: WeightsChecksum, *, is_int8: bool = False) -> None:
        self.load_uncached = load
        self._checksum_source = checksum
        self.is_int8 = is_int8

    @functools.cached_property
    def _checksum(self) -> str | None:
        return self._checksum_source() if callable(self._checksum_source) else self._checksum_source

    def load(self) -> Any:
        """The captured network from the graph cache, or the network of the weights."""
        return self.load_uncached() if self._checksum is None else self._load_cached(self._checksum)

    def load_shard(self, rank: Rank) -> Any:
        """The shard of a rank (tensor parallelism)."""
        from mstar.nn.lm.tensor_parallel import TensorParallel

        return TensorParallel(rank).load(self.load_uncached)

    def preload(self) -> None:
        """Map the entry of the graph cache, if there is one, for a later `load` in this process."""
        if self._checksum is not None:
            self._preload_cached(self._checksum)

    def with_settings(self, settings: Mapping[str, str]) -> NetworkLoader:
        """Loader of the same network with its parameters in another dtype, or its weights in int8."""
        dtype, is_int8 = settings.get("dtype"), self.is_int8 or settings.get("quantization") == "int8"

        def load() -> Any:
            network = self.load_uncached()
            return network if dtype is None else _cast_parameters(network, dtype)

        def checksum() -> str | None:
            return self._checksum if self._checksum is None or dtype is None else f"{self._checksum} {dtype}"

        return NetworkLoader(load, checksum, is_int8=is_int8)

    def _load_cached(self, checksum: str) -> Any:
        from mstar.nn.compile.graph_cache import load_or_capture

        return load_or_capture(checksum, self.load_uncached, is_int8=self.is_int8)

    def _preload_cached(self, checksum: str) -> None:
        from mstar.nn.compile.graph_cache import preload_entry

        preload_entry(checksum, is_int8=self.is_int8)


def _cast_parameters(network: Any, dtype: str) -> Any:
    """Cast the parameters of a network in place. Buffers keep their dtype, as transformers does it: rotary angles need
    float32.
    """
    import torch

    target = getattr(torch, dtype)
    for parameter in network.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(target)
    network.config.dtype = target
    return network


class Seq2SeqLoader(NetworkLoader):
    """Loads an encoder-decoder, whose self-attention has a sliding window of `window` tokens."""

    def __init__(self, load: Callable[[], Any], checksum: WeightsChecksum, window: int | None) -> None:
        super().__init__(load, checksum)
        self._window = window

    def _load_cached(self, checksum: str) -> Any:
        from mstar.nn.compile.seq2seq_cache import load_or_capture_seq2seq

        return load_or_capture_seq2seq(checksum, self.load_uncached, self._window)

    def _preload_cached(self, checksum: str) -> None:
        from mstar.nn.compile.seq2seq_cache import preload_seq2seq

        preload_seq2seq(checksum, self._window)

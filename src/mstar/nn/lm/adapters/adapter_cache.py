"""AdapterCache: the LoRA adapters that are loaded for a network, each loaded when a request first needs it.

A request has the folder and the checksum of its adapter, so no worker must be told about adapters before: a new replica
and a replayed request load it in the same way. An adapter stays loaded while a state uses it. Others stay until they
exceed MAX_IDLE_BYTES; then the least recently used are freed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from weakref import WeakValueDictionary

from torch import Tensor

from mstar.errors import LoadError, RowsFailed, Unsupported
from mstar.nn.kv.kv_cache import KVStore, PagedKV
from mstar.nn.lm.adapters.adapter_reader import read_adapter
from mstar.nn.lm.adapters.low_rank import Linear, LoadedAdapter
from mstar.nn.lm.adapters.peft_folder import MERGE_FIX, open_adapter
from mstar.requests import Adapter, Sampling

MAX_IDLE_BYTES = 256 << 20
"""Maximum bytes of loaded adapters that no request uses."""


class AdapterCache:
    """Loaded adapters of one network."""

    def __init__(self, linears: Sequence[Linear], family: str, embedding: Tensor, store: KVStore) -> None:
        """`linears` are empty for a network that was not captured. `embedding` has its dtype and its device."""
        store.load_adapter = self.get
        self._linears = linears
        self._dtype = embedding.dtype
        self._problem = ""
        """Why the network cannot have adapters, if it cannot."""
        if not linears:
            self._problem = f"{family} has no captured linear layers, which adapters change"
        elif store.rank is not None or embedding.device.type != "cpu":
            self._problem = "adapters are computed on CPUs only, by one process"
        self._loaded: WeakValueDictionary[Adapter, LoadedAdapter] = WeakValueDictionary()
        self._recent: OrderedDict[Adapter, LoadedAdapter] = OrderedDict()
        """Adapters that are kept without a request, least recently used first."""

    def __len__(self) -> int:
        return len(self._loaded)

    def preload(self, folders: Mapping[str, str]) -> None:
        """Load the adapters of a placement, given as folders by name. Raises LoadError."""
        for name, folder in folders.items():
            self._load(open_adapter(name, folder))

    def get(self, adapter: Adapter) -> LoadedAdapter:
        """An adapter, loaded if necessary. Raises Unsupported, whose text the client gets."""
        try:
            return self._load(adapter)
        except LoadError as error:
            raise Unsupported(str(error)) from error

    def _load(self, adapter: Adapter) -> LoadedAdapter:
        loaded = self._loaded.get(adapter)
        if loaded is None:
            if self._problem:
                raise LoadError(f"{self._problem}\n  fix: {MERGE_FIX}")
            loaded = read_adapter(adapter, self._linears, self._dtype)
            self._loaded[adapter] = loaded
        self._recent[adapter] = loaded
        self._recent.move_to_end(adapter)
        while sum(one.nbytes for one in self._recent.values()) > MAX_IDLE_BYTES:
            self._recent.popitem(last=False)
        return loaded

    def bind(self, caches: Sequence[PagedKV], params: Sequence[Sampling]) -> None:
        """Give new caches the adapters of their requests. Raises RowsFailed."""
        errors: dict[int, Exception] = {}
        for row, (cache, own) in enumerate(zip(caches, params, strict=True)):
            if own.adapter == (None if cache.adapter is None else cache.adapter.adapter):
                continue
            try:
                if cache.table.length or own.adapter is None:
                    problem = "a request cannot change its adapter: the KV cache has the results of another one"
                    raise Unsupported(f"{problem}\n  fix: use one adapter from the first token to the last one")
                cache.adapter = self.get(own.adapter)
            except Unsupported as error:
                errors[row] = error
        if errors:
            raise RowsFailed(errors)

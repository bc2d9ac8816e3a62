"""Graph cache: captured networks with their packed weights on disk, so that a restart takes seconds.

An entry is one file (`mstar.nn.compile.graph_file`): the operations of a `FlatGraph`, and its constants in the layout
that the kernels read. They are memory-mapped, so workers share them and none has a second copy. The key of an entry has
the checksum of the weights, the versions of torch, transformers, gguf and the capture code, and a digest of the native
kernels for this CPU. Encoder-decoders are in `mstar.nn.compile.seq2seq_cache`.

Before an entry is used, a trial run must give the recorded result bit for bit. The recorded result was compared with
the network's own code when the entry was written; a network whose captured graph differs is refused. An entry that
fails is removed and written again. If the directory is full, read-only or not accessible, there is one log line and no
cache. An entry gets its name when it is complete (rename), and the oldest entries are removed above MAX_CACHE_BYTES.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import Embedding

from mstar.nn import native
from mstar.nn.compile.batch_dependence import batch_dependence
from mstar.nn.compile.flat_graph import NotEncodable
from mstar.nn.compile.graph_file import SUFFIX, GraphsToStore, StoredGraphs, log, read_graphs, write_graphs
from mstar.nn.kv.kv_cache import KVStore, PagedKV
from mstar.nn.kv.page_pool import PagePool
from mstar.nn.kv.paged_attention import PAGED_ATTENTION, extend_caches, running
from mstar.nn.lm.adapters.low_rank import Linear
from mstar.nn.lm.decoder_check import check_decoder
from mstar.nn.lm.sampler_state import SamplerState
from mstar.nn.one_thread import one_thread

_TRIAL_LENGTHS = (7, 1)
"""Tokens of the two forwards of a trial run: a prompt, and one decode step."""
_CODE = Path(__file__).parents[1]
_CODE_FILES = (
    *("compile/*.py", "kv/*attention*.py", "weights/*.py", "native/__init__.py", "kernel_library.py"),
    *("lm/eager_seq2seq.py", "lm/decoder_check.py", "self_check.py"),
)
"""Code that loads, captures or checks a network."""

Forward = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
Network = TypeVar("Network")


@dataclass(frozen=True, slots=True)
class FlatNetwork:
    """A captured decoder with its weights, in place of a transformers model."""

    forward: Forward
    embedding: Embedding
    layers: int
    window: int | None
    """The largest sliding window, if every layer has one."""
    linears: tuple[Linear, ...] = ()
    """Products that adapters can change."""
    batch_dependence: str = ""
    """Why results can depend on the batch; empty if they cannot."""


def load_or_capture(checksum: str, load: Callable[[], Any], *, is_int8: bool) -> Any:
    """The network of these weights: a FlatNetwork from the cache, or else the captured one of `load`, which is saved.

    Returns the transformers model if it cannot be captured.
    """
    path = entry_path(checksum, f"int8={is_int8}")
    if path is None:
        return load()
    if (cached := read_existing(path, read_entry)) is not None:
        return cached
    from mstar.nn.compile.graph_capture import capture, eager_forward
    from mstar.nn.kv.recurrent_layers import has_recurrent_layers

    network = load().eval().requires_grad_(requires_grad=False)
    embedding = network.get_input_embeddings()
    if type(embedding) is not Embedding or embedding.weight.device.type != "cpu" or has_recurrent_layers(network):
        return network
    network.config._attn_implementation = PAGED_ATTENTION
    layers = network.config.get_text_config().num_hidden_layers
    try:
        flat, tensor = capture(network, is_int8=is_int8)
    except Exception:  # noqa: BLE001 - the decoder reports it and runs the network eagerly
        return network
    _check(eager_forward(network), type(network).__name__, embedding, layers)
    expected = None if is_int8 else trial_run(eager_forward(network), embedding, layers)  # int8 differs by more
    content = GraphsToStore([(flat, tensor)], [embedding.weight], {"layers": layers, "window": flat.window})
    try:
        return _to_network(write_graphs(path, content, _trial_run_of, expected))
    except (OSError, NotEncodable) as error:
        log.warning("the captured graph is not cached, so every start captures it: %s", error)
        reason = batch_dependence(flat.graph)
        return FlatNetwork(flat.bind(tensor), embedding, layers, flat.window, flat.linears, reason)


@torch.inference_mode()
def _check(forward: Forward, family: str, embedding: Embedding, layers: int) -> None:
    """Reject a network that chunked prefill or batching would change."""
    store = KVStore(PagePool(16, 4), layers, swap_bytes=0)

    def run(parts: Sequence[Tensor], caches: Sequence[PagedKV]) -> Sequence[Tensor]:
        counts = [len(part) for part in parts]
        batch = extend_caches(store, caches, counts)
        with running(batch):
            embeddings = embedding(torch.cat(list(parts)))
            return forward(embeddings[None], batch.positions[None], torch.tensor([0]))[1].split(counts)

    check_decoder(family, embedding.weight, run, lambda: PagedKV(store, SamplerState()))


def preload_entry(checksum: str, *, is_int8: bool) -> None:
    """Map the entry of these weights, if there is one, for a later `load_or_capture` in this process."""
    path = entry_path(checksum, f"int8={is_int8}")
    if path is not None:
        read_existing(path, read_entry)


def entry_path(checksum: str, options: str) -> Path | None:
    """Path of the entry of these weights, captured with these options. None if no entry can be read or written."""
    try:
        path = native.cache_directory() / f"{_key(checksum, options)}{SUFFIX}"
        path.exists()
    except (OSError, RuntimeError) as error:  # a home directory without permission, or none
        log.warning("there is no graph cache, so every start captures the network: %s", error)
        return None
    return path


def read_existing(path: Path, read: functools._lru_cache_wrapper[Network | None]) -> Network | None:
    """The network of an entry if there is one. An entry that cannot be used is read again when it is replaced."""
    if not path.exists():
        return None
    network = read(path)
    if network is None:
        read.cache_clear()
    return network


@functools.lru_cache(maxsize=8)
def read_entry(path: Path) -> FlatNetwork | None:
    """The network of an entry; None if there is none. An entry that fails its trial run is removed.

    The result is cached, because a standby reads entries before it becomes a worker.
    """
    stored = read_graphs(path, _trial_run_of)
    return None if stored is None else _to_network(stored)


def _to_network(stored: StoredGraphs) -> FlatNetwork:
    (forward,), (weight,) = stored.functions, stored.tensors
    layers, window = stored.numbers["layers"] or 0, stored.numbers["window"]
    embedding, (reason,) = Embedding.from_pretrained(weight), stored.batch_dependences
    return FlatNetwork(forward, embedding, layers, window, stored.linears[0], reason)


def _trial_run_of(stored: StoredGraphs) -> list[Tensor]:
    network = _to_network(stored)
    return trial_run(network.forward, network.embedding, network.layers)


def trial_run(forward: Forward, embedding: Embedding, layers: int) -> list[Tensor]:
    """Logits and hidden states of a prompt and a decode step, on one thread: equal weights give equal bits."""
    store = KVStore(PagePool(1, sum(_TRIAL_LENGTHS)), layers, swap_bytes=0)
    cache = PagedKV(store, SamplerState(None))
    tokens = torch.arange(sum(_TRIAL_LENGTHS)) % len(embedding.weight)
    results: list[Tensor] = []
    with one_thread(), torch.inference_mode():
        for part in tokens.split(list(_TRIAL_LENGTHS)):
            batch = extend_caches(store, [cache], [len(part)])
            with running(batch):
                results += forward(embedding(part)[None], batch.positions[None], torch.tensor([len(part) - 1]))
    return results


def _key(checksum: str, options: str) -> str:
    """Digest of everything that determines an entry."""
    digest = hashlib.blake2b(digest_size=16)
    versions = (torch.__version__, metadata.version("transformers"), _gguf_version(), native.version())
    for part in (checksum, options, *versions, str(native.supports_bf16_matmul())):
        digest.update(part.encode() + b"\0")
    for file in sorted(file for pattern in _CODE_FILES for file in _CODE.glob(pattern)):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _gguf_version() -> str:
    """Version of the package that dequantizes GGUF files; empty if it is not installed."""
    try:
        return metadata.version("gguf")
    except metadata.PackageNotFoundError:
        return ""

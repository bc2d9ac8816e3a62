"""A pretend GPU: a torch device whose tensors are in host memory and that refuses what a GPU refuses.

Results are real, so that a component on it can be compared with the same component on a CPU. Operations on tensors of
two devices and implicit copies to the host (`numpy`, `data_ptr`) raise the errors of CUDA. `count_traffic` counts, by
source line, copies between host and device and what makes the host wait for the device: a read of a value, a copy that
is not asynchronous, an operation whose result has a size that the device computes.

With `with_memory` it has a memory of some size: it reports what is used, and refuses a tensor that does not fit.

It shows nothing about speed, fragmentation of memory, streams or rounding on a real GPU.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Self, cast

import torch
from torch import Tensor
from torch.utils._device import _device_constructors
from torch.utils._pytree import tree_iter, tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

from mstar.nn.pretend_clock import device_time, launch_step, sleep_until

aten = torch.ops.aten
NAME = "pretend"
_TORCH = str(Path(torch.__file__).parent)
_DIFFERENT_DEVICES = "Expected all tensors to be on the same device, but found at least two devices, pretend:0 and cpu!"

_WAITS = {
    aten._local_scalar_dense.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten._unique2.default,
    aten.unique_dim.default,
    aten.unique_consecutive.default,
    aten.equal.default,
    aten.repeat_interleave.Tensor,
    aten.bincount.default,
}
"""Operations that read a value or a size from the device."""
_INDEXING = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
}
_UNINITIALIZED = {
    aten.empty.memory_format,
    aten.empty_strided.default,
    aten.empty_like.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
}
"""Operations whose results have no values yet: a graph does not repeat them."""
_WHOLE = {
    aten.linear.default,
    aten.matmul.default,
    aten.scaled_dot_product_attention.default,
    aten.lstm.input,
    aten.lstm.data,
    aten.upsample_linear1d.vec,
}
"""Composite operations that a GPU runs as few kernels; they are not taken apart."""
_PACKING = {aten._pack_padded_sequence.default, aten._pad_packed_sequence.default}
"""Operations on sequences of several lengths. The lengths, which are their second result, are on the host."""


@dataclass(eq=False)  # a count inside another one can have equal numbers
class Traffic:
    """What happened between host and device, by source line."""

    syncs: Counter[str] = field(default_factory=Counter[str])
    """Times that the host waited for the device."""
    to_device: Counter[str] = field(default_factory=Counter[str])
    to_host: Counter[str] = field(default_factory=Counter[str])
    kernels: Counter[str] = field(default_factory=Counter[str])
    """Operations on the device."""
    events: Counter[str] = field(default_factory=Counter[str])
    """Events that were recorded."""


_counting: list[Traffic] = []


@contextmanager
def count_traffic() -> Iterator[Traffic]:
    """Count the traffic of all pretend GPUs of this process."""
    traffic = Traffic()
    _counting.append(traffic)
    try:
        yield traffic
    finally:
        _counting.remove(traffic)


class PretendGraph:
    """Operations recorded while it is entered, which `replay` repeats: what a CUDA graph holds.

    Every operation reads and writes the memory that it used while it was recorded, with the same numbers. As with CUDA,
    the host must neither wait for the device nor copy to it inside.
    """

    def __init__(self) -> None:
        self._calls: list[tuple[Any, Any, Any, Any]] = []
        self._results: list[Any] = []
        self._made: set[int] = set()
        self._outside: dict[int, Tensor] = {}

    @property
    def inputs(self) -> list[Tensor]:
        """Tensors in host memory that the operations use and did not make; one of each memory."""
        return [*self._outside.values()]

    def __enter__(self) -> Self:
        _capturing.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _capturing.remove(self)

    def record(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Add an operation on tensors in host memory."""
        for leaf in tree_iter((args, kwargs)):
            if isinstance(leaf, Tensor) and memory_id(leaf) not in self._made:
                self._outside.setdefault(memory_id(leaf), leaf)
        for leaf in tree_iter(result):
            if isinstance(leaf, Tensor) and memory_id(leaf) not in self._outside:
                self._made.add(memory_id(leaf))
        self._results.append(result)  # another tensor must not get its memory
        if func not in _UNINITIALIZED:
            self._calls.append((func, args, kwargs, result))

    def replay(self) -> None:
        """Repeat the operations. Their results are in the tensors that the recording returned."""
        count_one("kernels")
        if not launch_step():
            return
        for func, args, kwargs, result in self._calls:
            for old, new in zip(tree_iter(result), tree_iter(func(*args, **kwargs)), strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():  # neither a view nor changed in place
                    old.copy_(new)


_capturing: list[PretendGraph] = []


def wait_until(host_time: float) -> None:
    """Let the host wait for the device, which has a time only with a clock."""
    count_one("syncs")
    sleep_until(host_time)


class PretendPool:
    """Memory of what graphs compute, which all graphs of a pool share: as much as the largest of them needs.

    As with CUDA, the memory is not given back between replays.
    """

    def __init__(self) -> None:
        self._size = 0

    def make_room(self, function: Callable[[], object]) -> None:
        """Run a function, and make the pool large enough for what it computes."""
        if not _memories:
            function()
            return
        memory = _memories[-1]
        peak, memory.peak = memory.peak, memory.used
        function()
        needed = memory.peak - memory.used  # what stays is not in the pool
        memory.peak = max(peak, memory.peak)
        if needed > self._size:
            memory.take(self, needed - self._size)
            self._size = needed


def memory_id(tensor: Tensor) -> int:
    """Identity of the memory of a tensor, which views share, and which stays if the memory is resized."""
    held = tensor.held if isinstance(tensor, PretendTensor) else tensor
    return held.untyped_storage()._cdata


@functools.cache
def pretend_gpu() -> torch.device:
    """The device, registered with torch in this process; for example `network.to(pretend_gpu())`."""
    _setup_privateuseone_for_python_backend(NAME, _DeviceModule())
    library = torch.library.Library("_", "IMPL")
    library.fallback(_create, dispatch_key="PrivateUse1")
    ranges = torch.library.Library("aten", "IMPL")
    for op in (aten.arange.default, aten.arange.start, aten.arange.start_step):
        ranges.impl(op, functools.partial(_create_range, op), "PrivateUse1")
    _kept.extend((library, ranges))
    _device_constructors()  # its result is cached: `with torch.device(...)` must know the functions replaced here
    for name in ("tensor", "as_tensor"):
        setattr(torch, name, _copying(getattr(torch, name)))
    return torch.device(NAME, 0)


class _DeviceModule(_DummyBackendModule):
    """`torch.pretend`. Random numbers of the device come from the generator of the host."""

    get_rng_state = staticmethod(lambda *_: torch.get_rng_state())
    set_rng_state = staticmethod(lambda state, *_: torch.set_rng_state(state))

    def mem_get_info(self, _device: Any = None) -> tuple[int, int] | None:
        """Free and total bytes; None unless the device has a memory of some size."""
        return (_memories[-1].size - _memories[-1].used, _memories[-1].size) if _memories else None

    def memory_allocated(self, _device: Any = None) -> int:
        """Bytes of all tensors on the device."""
        return _memories[-1].used if _memories else 0

    def max_memory_allocated(self, _device: Any = None) -> int:
        """Largest value of `memory_allocated` since `reset_peak_memory_stats`."""
        return _memories[-1].peak if _memories else 0

    def reset_peak_memory_stats(self, _device: Any = None) -> None:
        """Start a new measurement of the peak."""
        if _memories:
            _memories[-1].peak = _memories[-1].used


class _Memory:
    """Bytes of the tensors that were made since the device has a memory of this size; views share their bytes."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.used = self.peak = 0
        self._storages: set[int] = set()

    def track(self, held: Tensor) -> None:
        """Count a tensor until it is collected. Raises OutOfMemoryError if it does not fit."""
        storage = held.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._storages:
            return
        self.take(storage, size)
        self._storages.add(key)
        weakref.finalize(storage, self._storages.discard, key).atexit = False

    def take(self, owner: Any, size: int) -> None:
        """Count bytes until their owner is collected. Raises OutOfMemoryError if they do not fit."""
        if self.used + size > self.size:
            free = self.size - self.used
            raise torch.OutOfMemoryError(f"pretend:0 out of memory: {size} bytes requested, {free} free")
        self.used += size
        self.peak = max(self.peak, self.used)
        weakref.finalize(owner, self._free, size).atexit = False

    def _free(self, size: int) -> None:
        self.used -= size


_memories: list[_Memory] = []
"""The memory of the device, if it has a size."""


@contextmanager
def with_memory(size: int) -> Iterator[None]:
    """Give the device a memory of this number of bytes. Tensors that were made before are not counted."""
    memory = _Memory(size)
    _memories.append(memory)
    try:
        yield
    finally:
        _memories.remove(memory)


_kept: list[torch.library.Library] = []
"""A library unregisters its functions when it is collected."""


class PretendTensor(Tensor):
    """A tensor on the pretend GPU."""

    held: Tensor
    """The same tensor in host memory."""
    is_sent_as_tensor = True
    """It leaves its process as a tensor of the host, as those of a GPU do."""

    __torch_function__ = cast("Any", torch._C._disabled_torch_function_impl)

    @staticmethod
    def __new__(cls: type[PretendTensor], held: Tensor) -> PretendTensor:
        """The description of a tensor in host memory, on the device."""
        # A view of a weight, which is no inference tensor, must not be one either.
        with torch.inference_mode(mode=False):
            return Tensor._make_wrapper_subclass(
                cls,
                held.shape,
                strides=held.stride(),
                storage_offset=held.storage_offset(),
                dtype=held.dtype,
                layout=held.layout,
                device=torch.device(NAME, 0),
            )

    def __init__(self, held: Tensor) -> None:
        self.held = held
        if _memories and not _capturing:  # what a graph makes is in its pool
            _memories[-1].track(held)

    def __repr__(self, **_: Any) -> str:
        return f"PretendTensor({self.held!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in _WHOLE and torch._C._dispatch_has_kernel_for_dispatch_key(
            func.name(), "CompositeImplicitAutograd"
        ):
            result = func.decompose(*args, **kwargs)  # in inference mode such operations arrive here
            if result is not NotImplemented:
                return result
        return _run(func, args, kwargs)

    def __getitem__(self, index: Any) -> Tensor:
        return super().__getitem__(_host_index(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(_host_index(index), value)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if id(self) not in memo:
            memo[id(self)] = self.detach().clone().requires_grad_(self.requires_grad)
        return memo[id(self)]

    def tolist(self) -> Any:
        """The values, which are copied to the host."""
        return self.cpu().tolist()

    def new_tensor(self, data: Any, *_: Any, **options: Any) -> Tensor:
        """A tensor of Python values on this device."""
        return torch.tensor(data, **({"dtype": self.dtype, "device": self.device} | options))

    def numpy(self, **_: Any) -> NoReturn:
        """Refused, as by a GPU."""
        raise TypeError("can't convert pretend:0 device type tensor to numpy. Use Tensor.cpu() to copy it first.")

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        self.numpy()

    def data_ptr(self) -> NoReturn:
        """Refused: a kernel of the host cannot read memory of a GPU."""
        raise RuntimeError(f"the address of a tensor on pretend:0 is used on the host at {_source_line()}")


def _copying(function: Any) -> Any:
    """A function of torch that makes a tensor of Python values, on the host and then copied as CUDA does: inside these
    functions torch calls no Python code."""

    @functools.wraps(function)
    def make(*args: Any, **kwargs: Any) -> Tensor:
        if not _is_pretend(kwargs.get("device")):
            return function(*args, **kwargs)
        device = kwargs.pop("device")
        return function(*args, **kwargs).to(device)

    return make


def _host_index(index: Any) -> Any:
    """An index whose lists are tensors on the host, as CUDA reads them."""
    if isinstance(index, tuple):
        return tuple(map(_host_index, index))
    return torch.tensor(index, dtype=None if index else torch.int64) if isinstance(index, list) else index


def _create(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operation that creates a tensor on the device."""
    result = op(*args, **_on_host(kwargs))
    for graph in _capturing:
        graph.record(op, args, _on_host(kwargs), result)
    return _wrap(result, {})


def _create_range(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run `arange`. torch resizes an empty tensor for it, whose description would stay empty."""
    count_one("kernels")
    return _create(op, *args, **kwargs)


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    tensors = [leaf for leaf in tree_iter((args, kwargs)) if isinstance(leaf, Tensor)]
    hosts = [tensor for tensor in tensors if not isinstance(tensor, PretendTensor)]
    is_on_device = _note_copy(func, args, kwargs)
    if is_on_device is None:
        _refuse_mixed(func, args, hosts)
        is_on_device = "device" not in kwargs or _is_pretend(kwargs["device"])
    _note_wait(func, args)
    held_args, held_kwargs = tree_map(_held, (args, _on_host(kwargs)))
    if func is aten.histc.default:
        func = _histogram
    result = func(*held_args, **held_kwargs)
    if not is_on_device:
        return result
    count_one("kernels")
    for graph in _capturing:
        graph.record(func, held_args, held_kwargs, result)
    if func in _PACKING:
        return _wrap(result[0], {}), result[1]
    return _wrap(result, {id(tensor.held): tensor for tensor in tensors if isinstance(tensor, PretendTensor)})


def _histogram(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """A CPU has no histogram of integers, CUDA has."""
    return aten.histc.default(tensor.double(), *args, **kwargs)


def _note_copy(func: Any, args: Any, kwargs: Any) -> bool | None:
    """Count a copy between host and device. Whether its result is on the device; None if it is no such copy."""
    if func is aten.copy_.default:
        target, source = args[:2]
        begin, end = isinstance(source, PretendTensor), isinstance(target, PretendTensor)
        is_async = bool(args[2:] and args[2]) or bool(kwargs.get("non_blocking"))
    elif func is aten._to_copy.default and kwargs.get("device") is not None:
        begin, end = isinstance(args[0], PretendTensor), _is_pretend(kwargs["device"])
        is_async = bool(kwargs.get("non_blocking"))
    else:
        return None
    if begin != end:
        count_one("to_device" if end else "to_host")
        if not (end and is_async):  # a copy to the host is read next
            wait_until(device_time())
    return end


def _refuse_mixed(func: Any, args: Any, hosts: list[Tensor]) -> None:
    """Raise for operations on tensors of both devices, except single values and indices of the host."""
    if func in _INDEXING:
        if not isinstance(args[0], PretendTensor):
            raise RuntimeError(
                f"indices should be either on cpu or on the same device as the indexed tensor (cpu) at {_source_line()}"
            )
        for _ in hosts:
            count_one("to_device")
            wait_until(device_time())
    elif any(host.dim() for host in hosts) and func not in _PACKING and func is not aten.lstm.data:
        raise RuntimeError(f"{_DIFFERENT_DEVICES} ({func} at {_source_line()})")


def _note_wait(func: Any, args: Any) -> None:
    is_mask = func in _INDEXING and any(
        isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in args[1]
    )
    if func in _WAITS or is_mask:
        wait_until(device_time())


def count_one(kind: str) -> None:
    """Count something of `Traffic`. A graph being captured refuses all but kernels."""
    if _capturing and kind != "kernels":
        problem = "waits for the device" if kind == "syncs" else "copies between host and device"
        raise RuntimeError(f"operation not permitted when stream is capturing: it {problem} at {_source_line()}")
    if _counting:
        line = _source_line()
        for traffic in _counting:
            getattr(traffic, kind)[line] += 1


def _source_line() -> str:
    """The innermost line that is neither of torch nor of this file."""
    frame = sys._getframe()
    while frame is not None and (frame.f_code.co_filename == __file__ or frame.f_code.co_filename.startswith(_TORCH)):
        frame = frame.f_back
    if frame is None:
        return "torch"
    return f"{'/'.join(Path(frame.f_code.co_filename).parts[-3:])}:{frame.f_lineno}"


def _is_pretend(device: Any) -> bool:
    return device is not None and torch.device(device).type == NAME


def _on_host(kwargs: dict[str, Any]) -> dict[str, Any]:
    return kwargs | {"device": torch.device("cpu")} if _is_pretend(kwargs.get("device")) else kwargs


def _held(leaf: Any) -> Any:
    return leaf.held if isinstance(leaf, PretendTensor) else leaf


def _wrap(result: Any, known: dict[int, PretendTensor]) -> Any:
    """The result on the device: tensors that were changed in place are those that were passed."""

    def wrap(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return known[id(leaf)] if id(leaf) in known else PretendTensor(leaf)

    return tree_map(wrap, result)

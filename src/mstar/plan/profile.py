"""Profile of a model: requests that it served, the op calls that they made, and what each call costs by device.

`mstar profile` writes it, `mstar plan-capacity` and the twin read it. It is one JSON file, read and written here
without torch and numpy. A profile has three parts:

1. **Requests** (`RecordedRequest`): the request itself, its calls in order of completion with their outputs, and what
   its client received. Outputs are packed by `transfer.values`; the contents of arrays of 16 KB and more are left out
   (`PackedValue.large`), so an output has its shape and dtype, and the contents are zeros.
2. **Costs** (`DeviceCosts`), one per kind of device: seconds of each recorded call alone, and of batches relative to
   their calls alone (`OpCosts.batches`). `source` is `measured` or `estimate`; nothing hides an estimate.
3. **Identity**: the model, a fingerprint of its walks, the machine, the versions.

The cost of a batch is `DeviceCosts.batch_s`: the mean of its calls alone, times the ratio of its size. Costs have an
error: the cheapest and the most expensive round of measurement, relative to the mean (`OpCosts.low`, `high`).

How calls are found again. In a replay, a request makes the calls of its recorded request, in an order that depends on
the schedule. A call is identified by `call_key`: its op, its scalar arguments, the shapes of its other arguments, and
the history of its states; among calls with equal keys, by order. So a replay needs no contents of arrays.

How a twin uses it: it serves unknown requests too. For a call that was recorded, `RecordedRequest.calls` has outputs
and cost. For any other, `OpCosts.seconds_alone` is interpolated by length from all recorded calls of the op, and the
outputs are those of the recorded call of the op with the nearest length (`ModelProfile.nearest_call`).
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from mstar.errors import LoadError, format_names
from mstar.graph import ir
from mstar.graph.text import fingerprint

PROFILE_VERSION = 1
"""Version of the file format. A reader refuses another one."""
MEASURED, ESTIMATE = "measured", "estimate"
"""Sources of costs: a real run, or published figures of a device."""


class PackedValue(msgspec.Struct, frozen=True, array_like=True):
    """A value as packed by `transfer.values`, without the contents of its large arrays."""

    data: bytes
    large: tuple[int, ...] = ()
    """Bytes of each large array, in the order of their numbers."""


class RecordedCall(msgspec.Struct, frozen=True, array_like=True):
    """One op call of a recorded request."""

    op: int
    """Index in `ModelProfile.ops`."""
    key: str
    """See `call_key`."""
    length: int
    """Positions along the batch dimension; 1 if the op has none."""
    depth: int
    """Positions that earlier calls wrote to its states, such as the length of a KV cache."""
    outputs: PackedValue
    """Tuple of its outputs."""


class RecordedOutput(msgspec.Struct, frozen=True, array_like=True):
    """One output that the client of a recorded request received."""

    kind: str
    """Kind of emission: Text, Audio, Image, ..."""
    amount: float
    """Seconds of playback for audio, video and actions, else 1 per item."""


class RecordedRequest(msgspec.Struct, frozen=True):
    """One request, its calls, and its outputs."""

    kind: str
    """Kind of traffic that it stands for, as in `mstar bench serve`: chat, speech, transcriptions, ..."""
    request: PackedValue
    calls: list[RecordedCall]
    outputs: list[RecordedOutput]

    def amount(self, kind: str) -> float:
        """Total amount of its outputs of a kind."""
        return sum(output.amount for output in self.outputs if output.kind == kind)


class BatchCost(msgspec.Struct, frozen=True, array_like=True):
    """Mean cost of the batches of one size."""

    size: int
    ratio: float
    """Seconds of a batch relative to the mean of its calls alone: 1 if a batch costs no more than one call, `size` if
    batching gains nothing."""
    count: int
    """Number of measured batches; 0 for an estimate."""


class OpCosts(msgspec.Struct):
    """Costs of one op on one device."""

    op: str
    """"component.op", with its static arguments."""
    mean_s: float
    """Mean seconds of a call alone."""
    low: float
    """Mean of the cheapest round of measurement, relative to the mean of all."""
    high: float
    """Mean of the most expensive round, relative to the mean of all. For an estimate: its stated error."""
    count: int
    """Number of measured calls; 0 for an estimate."""
    batches: list[BatchCost] = []
    """By size, from 1."""
    by_length: list[tuple[int, float]] = []
    """Mean seconds of a call alone by length, in order of length."""

    def batch_ratio(self, size: int) -> float:
        """Seconds of a batch relative to the mean of its calls alone, interpolated between measured sizes.

        Beyond the largest one it grows like the size: no gain is assumed that was not measured.
        """
        sizes = [batch.size for batch in self.batches]
        if not sizes:
            return float(size)
        position = bisect_left(sizes, size)
        if position == len(sizes):
            return self.batches[-1].ratio * size / sizes[-1]
        above = self.batches[position]
        if above.size == size or not position:
            return above.ratio
        below = self.batches[position - 1]
        return below.ratio + (above.ratio - below.ratio) * (size - below.size) / (above.size - below.size)

    def seconds_alone(self, length: int) -> float:
        """Seconds of a call of this length alone, interpolated; beyond the measured lengths that of the nearest one."""
        lengths = [each for each, _ in self.by_length]
        if not lengths:
            return self.mean_s
        position = bisect_left(lengths, length)
        if position == len(lengths):
            return self.by_length[-1][1]
        if lengths[position] == length or not position:
            return self.by_length[position][1]
        (shorter, low_s), (longer, high_s) = self.by_length[position - 1 : position + 1]
        return low_s + (high_s - low_s) * (length - shorter) / (longer - shorter)


class DeviceCosts(msgspec.Struct):
    """Costs of all ops on one kind of device."""

    device: str
    """Name that prices and placements use: "cpu", "A100-80GB", ..."""
    source: str
    """`MEASURED` or `ESTIMATE`."""
    machine: str
    """Processor and host of a measurement; data sheet of an estimate."""
    torch_device: str = ""
    """Device of its workers in a placement file; empty for the CPU."""
    ops: list[OpCosts] = []
    """In the order of `ModelProfile.ops`. An op that never runs on this device has `count` 0 and `mean_s` 0."""
    calls_s: list[list[float]] = []
    """Seconds of each recorded call alone, by request and call."""
    note: str = ""
    """What the reader must know: the assumptions of an estimate."""
    shared: list[float] = []
    """Cost of a batch while n workers compute on the same host, relative to one that computes alone; by n, from 1.
    Empty: each worker has a device of its own."""

    @property
    def is_estimate(self) -> bool:
        """Whether nothing was measured."""
        return self.source == ESTIMATE

    def shared_ratio(self, busy: int) -> float:
        """Relative cost of a batch while `busy` workers compute on the host, with its own.

        Beyond the measured number of workers the host is full: each gets an equal part of it.
        """
        if not self.shared:
            return 1.0
        count = min(busy, len(self.shared))
        return self.shared[count - 1] * busy / count

    def batch_s(self, op: int, calls_s: Sequence[float], factor: float = 0.0) -> float:
        """Seconds of a batch of calls that take `calls_s` alone.

        `factor` is the cost within its error: -1 for the lowest, 0 for the mean, 1 for the highest.
        """
        costs = self.ops[op]
        error = 1 + factor * (1 - costs.low if factor < 0 else costs.high - 1)
        return sum(calls_s) / len(calls_s) * costs.batch_ratio(len(calls_s)) * error


class ModelProfile(msgspec.Struct, kw_only=True):
    """A whole profile."""

    version: int = PROFILE_VERSION
    model: str
    """Target of `load_model`."""
    walks: str
    """Fingerprint of its walks: see `fingerprint_walks`."""
    mstar: str
    """Version of mstar that recorded it."""
    recorded_at: str
    """UTC."""
    ops: list[str]
    """"component.op" of every op, with static arguments."""
    requests: list[RecordedRequest]
    devices: list[DeviceCosts]
    settings: dict[str, dict[str, str]] = {}
    """Component settings of the placement under which it was measured."""
    hop_s: float = 0.0005
    """Seconds of a message between two processes, with what both do for it; measured on a real deployment on CPUs."""
    threads: int | None = None
    """Compute threads per worker; None for the default of the library."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of traffic with a recorded request."""
        return tuple(dict.fromkeys(request.kind for request in self.requests))

    def device(self, name: str) -> DeviceCosts:
        """Costs on a device. Raises LoadError for an unknown one."""
        for costs in self.devices:
            if costs.device == name:
                return costs
        names = format_names(costs.device for costs in self.devices)
        raise LoadError(f"the profile of {self.model} has no device `{name}`\n  fix: use {names}, or profile it")

    def calls_of(self, op: int) -> Iterator[tuple[int, int, RecordedCall]]:
        """All recorded calls of an op, with the indexes of their request and of the call in it."""
        for number, request in enumerate(self.requests):
            for index, call in enumerate(request.calls):
                if call.op == op:
                    yield number, index, call

    def nearest_call(self, op: int, length: int) -> RecordedCall | None:
        """The recorded call of an op whose length is nearest; None if the op was never called."""
        calls = [call for _, _, call in self.calls_of(op)]
        return min(calls, key=lambda call: abs(call.length - length), default=None)

    def save(self, path: Path) -> None:
        """Write the file. Raises LoadError."""
        try:
            path.write_bytes(msgspec.json.encode(self))
        except OSError as error:
            problem = f"{path}: cannot be written: {error.strerror}"
            raise LoadError(f"{problem}\n  fix: choose another path") from error

    @classmethod
    def load(cls, path: Path) -> ModelProfile:
        """Read a file. Raises LoadError."""
        fix = "write one with `mstar profile MODEL -o FILE`"
        try:
            profile = msgspec.json.decode(path.read_bytes(), type=cls)
        except OSError as error:
            raise LoadError(f"{path}: cannot be read: {error.strerror}\n  fix: {fix}") from error
        except msgspec.MsgspecError as error:
            raise LoadError(f"{path} is not a profile: {error}\n  fix: {fix}") from error
        if profile.version != PROFILE_VERSION:
            problem = f"{path} has version {profile.version} of the format, this mstar reads {PROFILE_VERSION}"
            raise LoadError(f"{problem}\n  fix: {fix}")
        return profile


def fingerprint_walks(graphs: Mapping[str, ir.Walk]) -> str:
    """Fingerprint of all walks of a model: equal for equal walks, whatever their placement."""
    text = "\n".join(f"{name} {fingerprint(graph)}" for name, graph in sorted(graphs.items()))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def op_name(key: str) -> str:
    """Name of an op, "component.op", without its static arguments."""
    return key.partition("[")[0]


# ---------------------------------------------------------------- identity of calls
_COLLECTIONS = frozenset({"list", "tuple", "dict", "set", "bytes"})
"""Types whose length is a part of the key of a call."""


def call_key(op: str, arguments: Mapping[str, Any], histories: Sequence[str]) -> str:
    """Key of a call: op, scalar arguments, shapes of the other arguments without states, histories of its states."""
    parts = [op, *(f"{name}={_describe(value)}" for name, value in arguments.items()), *histories]
    return _hash("\n".join(parts))


def new_history(component: str, kind: str) -> str:
    """History of a new state."""
    return _hash(f"{component} {kind}")


def extended_history(history: str, key: str) -> str:
    """History of a state after a call with this key has written to it."""
    return _hash(f"{history} {key}")


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).hexdigest()


def _describe(value: Any) -> str:
    """A scalar as it is, of anything else its type and shape."""
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if (shape := getattr(value, "shape", None)) is not None:
        return f"array{tuple(shape)}"
    name: str = value.__class__.__name__
    return f"{name}[{len(value)}]" if name in _COLLECTIONS else name

"""Recurrent states (of convolutions and state space layers) of all requests of a component, in slots beside the pages.

A slot holds the states of all recurrent layers after some position of a request. It is written once: a forward reads
the slots of its requests and writes new ones. So a fork shares its slot, a snapshot keeps it, and a rollback returns to
it, all without a copy. A slot is free when nothing refers to it.

`mstar.nn.kv.recurrent_layers` runs the layers.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mstar.errors import OutOfPages
from mstar.nn.staging import to_host


class Slot:
    """Place of the recurrent states of one request. It is released when it is collected."""

    def __init__(self, index: int, free: list[int]) -> None:
        self.index = index
        weakref.finalize(self, free.append, index)


class RecurrentGroup:
    """Requests of a forward that a recurrent layer runs together."""

    def __init__(self, tokens: Tensor, before: Sequence[Slot | None], after: Sequence[Slot]) -> None:
        known = [slot.index for slot in before if slot is not None]
        self.has_states = bool(known)
        """Whether they have states; else they begin."""
        self.arrays: tuple[Tensor, ...] = (
            tokens,
            torch.tensor(known, dtype=torch.int64),
            torch.tensor([slot.index for slot in after]),
        )
        """Token indices of each request, [requests, new]; its slot before the forward, and after it, [requests]."""


class RecurrentStates:
    """The states of all requests: for each layer and each of its states one tensor, [slots, ...]."""

    def __init__(self, layers: Mapping[int, Any], slots: int) -> None:
        self.layers = layers
        """The recurrent layers by their number."""
        self.count = slots
        self._free = list(range(slots - 1, -1, -1))
        self._memory: dict[tuple[int, str, int], Tensor] = {}

    @property
    def device(self) -> torch.device:
        """Device of the states."""
        return next((memory.device for memory in self._memory.values()), torch.device("cpu"))

    @property
    def free_slots(self) -> int:
        """Number of slots that no request, fork or snapshot uses."""
        return len(self._free)

    def allocate(self, count: int) -> list[Slot]:
        """Allocate slots for a forward. Raises OutOfPages, changing nothing."""
        if count > len(self._free):
            raise OutOfPages(
                f"out of slots for recurrent states: {count} slots needed, {len(self._free)} of {self.count} free\n"
                f"  fix: give the component more slots, or admit fewer requests at a time"
            )
        return [Slot(self._free.pop(), self._free) for _ in range(count)]

    def read(self, layer: int, slots: Tensor) -> dict[tuple[str, int], Tensor]:
        """A copy of the states of a layer in slots with these indices, [requests, ...], by their kind and number."""
        return {key[1:]: memory[slots] for key, memory in self._memory.items() if key[0] == layer}

    def write(self, layer: int, slots: Tensor, states: Mapping[tuple[str, int], Tensor]) -> None:
        """Write the states of a layer, [requests, ...]. The first ones determine the shapes."""
        for (kind, number), state in states.items():
            key = layer, kind, number
            if key not in self._memory:
                self._memory[key] = state.new_zeros((self.count, *state.shape[1:]))
            self._memory[key][slots] = state

    @torch.inference_mode()
    def gather(self, slot: Slot) -> Tensor:
        """All states in a slot, as one byte tensor on the host."""
        parts = [memory[slot.index].contiguous().view(torch.uint8).flatten() for memory in self._memory.values()]
        return to_host(torch.cat(parts))

    @torch.inference_mode()
    def scatter(self, slot: Slot, data: Tensor) -> None:
        """Write the result of `gather` to a slot."""
        data, first = data.to(self.device, non_blocking=True), 0
        for memory in self._memory.values():
            state = memory[slot.index]
            size = state.numel() * state.element_size()
            memory[slot.index] = data[first : first + size].clone().view(memory.dtype).view(state.shape)
            first += size

    @property
    def slot_bytes(self) -> int:
        """Bytes of the states in one slot."""
        return sum(memory[0].numel() * memory.element_size() for memory in self._memory.values())

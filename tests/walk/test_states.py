"""States go back to a mark, whatever was done to them, and a mark shares nothing with its state."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from mstar import KV, Component, State


@dataclass
class Past(State):
    frames: list[int] = field(default_factory=list)
    memory: dict[str, object] = field(default_factory=dict)
    count: int = 0


def test_a_state_rolls_back_to_its_snapshot():
    past = Past([1, 2], {"a": np.ones(3), "b": torch.ones(2)}, 4)
    mark = past.snapshot()
    past.frames.append(3)
    past.memory["a"][:] = 7
    past.memory["b"].mul_(5)
    past.memory["c"] = 1
    past.count = 9
    past.more = "new"
    past.rollback(mark)
    assert (past.frames, past.count, set(past.memory)) == ([1, 2], 4, {"a", "b"})
    assert past.memory["a"].tolist() == [1, 1, 1]
    assert past.memory["b"].tolist() == [1, 1]
    assert not hasattr(past, "more")


def test_what_was_taken_away_comes_back():
    past = Past([1])
    mark = past.snapshot()
    del past.frames
    past.rollback(mark)
    assert past.frames == [1]


def test_a_plain_state_is_always_resident():
    assert KV().is_resident
    assert not KV().is_evictable
    assert Component().restore([KV()]) is None

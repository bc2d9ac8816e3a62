"""Prompt lookup: draft tokens that followed the last tokens of a request when they occurred before."""

from __future__ import annotations

from array import array

_MATCHED = (4, 3, 2)
"""Numbers of last tokens that are looked up, in this order."""
_MAX_HISTORY = 8192
"""Maximum number of last tokens in which they are looked up."""


def look_up(history: array[int], count: int) -> list[int]:
    """Up to `count` tokens that followed the latest earlier occurrence of the last tokens; empty if there is none."""
    recent = history[-_MAX_HISTORY:]
    searched, size = recent.tobytes(), recent.itemsize
    for matched in _MATCHED:
        if matched >= len(recent):
            continue
        pattern = searched[-matched * size :]
        at = searched.rfind(pattern, 0, len(searched) - size)
        while at > 0 and at % size:  # not at the start of a token
            at = searched.rfind(pattern, 0, at + len(pattern) - 1)
        if at >= 0:
            first = at // size + matched
            return recent[first : first + count].tolist()
    return []

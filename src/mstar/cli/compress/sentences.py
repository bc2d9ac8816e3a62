"""Plain English sentences to be spoken: recordings that need no corpus."""

from __future__ import annotations

import random
from collections.abc import Iterator

_SUBJECTS = """The teacher, An old sailor, My younger sister, The new doctor, Our neighbour, A tall stranger, The baker,
Every student, The mayor of the town, A quiet farmer, His grandmother, The last visitor"""
_VERBS = """opened, painted, forgot, carried home, repaired, described, sold, found, measured, borrowed, cleaned, hid"""
_OBJECTS = """the wooden door, a box of letters, the broken clock, seven green bottles, the map of the island,
an empty suitcase, the kitchen table, a basket of apples, the silver key, two heavy books, the garden wall,
a photograph of the lake"""
_TIMES = """before the rain began, late in the evening, while the children slept, on a cold morning in March,
without saying a word, after the train had left, because no other guest wanted to, and then went home,
as if it were nothing, in less than an hour, during the long winter, with the help of a friend"""
_PARTS = [[one.strip() for one in part.split(",")] for part in (_SUBJECTS, _VERBS, _OBJECTS, _TIMES)]


def sentences(seed: int) -> Iterator[str]:
    """Sentences that this seed selects, without end."""
    chosen = random.Random(seed)
    while True:
        yield " ".join(map(chosen.choice, _PARTS)) + "."

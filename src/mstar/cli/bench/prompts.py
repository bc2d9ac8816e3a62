"""Random prompts of three lengths, composed of built-in sentences. Shared by all request kinds."""

from __future__ import annotations

from random import Random

SENTENCES = (
    "The ferry leaves at seven.",
    "Please call me back when you can.",
    "Two of the apples were green.",
    "It rained all night, and the path is under water.",
    "The baker did not know that the mill would be closed.",
    "She keeps the letters of her grandfather in a tin box.",
    "The train to the coast stops here for nine minutes.",
    "Turn left at the fountain, then follow the wall until you see the gate.",
    "Our neighbour repairs old radios, and sometimes one of them plays again.",
    "A kettle that whistles wakes the whole house.",
    "When the lights went out, everyone in the hall began to laugh.",
    "The second half of the map was missing, so they asked a shepherd.",
    "Is there a cheaper ticket if I come back on the same day?",
    "Copper turns green in the rain, and iron turns red.",
    "He counted the steps, lost his place at ninety, and began again.",
    "On Thursdays the library stays open until the last reader goes home.",
)
SENTENCE_COUNTS = ((1, 1), (2, 4), (6, 10))
"""Minimum and maximum number of sentences of a short, a medium and a long prompt."""
SIZE_WEIGHTS = (5, 3, 2)
"""Relative frequency of each length."""


def sample_size(rng: Random) -> int:
    """Draw a length: 0 short, 1 medium, 2 long."""
    return rng.choices(range(len(SENTENCE_COUNTS)), SIZE_WEIGHTS)[0]


def sample_prompt(rng: Random) -> str:
    """Draw a prompt of random length."""
    return " ".join(rng.choices(SENTENCES, k=rng.randint(*SENTENCE_COUNTS[sample_size(rng)])))

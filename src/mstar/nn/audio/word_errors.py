"""Word errors of a transcript: missing, added and changed words."""

from __future__ import annotations

import re


def normalize_words(text: str) -> list[str]:
    """The words of a text in lower case, without punctuation."""
    return re.sub(r"[^\w\s']", " ", text.lower()).split()


def count_word_errors(reference: str, hypothesis: str) -> tuple[int, int]:
    """The smallest number of missing, added and changed words, and the number of words of the reference."""
    expected, actual = normalize_words(reference), normalize_words(hypothesis)
    changes = list(range(len(actual) + 1))
    for number, word in enumerate(expected, 1):
        before, changes[0] = changes[0], number
        for at, other in enumerate(actual, 1):
            before, changes[at] = changes[at], min(changes[at] + 1, changes[at - 1] + 1, before + (word != other))
    return changes[-1], len(expected)


def word_error_rate(reference: str, hypothesis: str) -> float:
    """Word errors relative to the number of words of the reference."""
    errors, words = count_word_errors(reference, hypothesis)
    return errors / words

"""Draft tokens are what followed the last tokens before."""

import random
from array import array

import pytest

from mstar.nn.lm.speculation.prompt_lookup import look_up


def find(history, *, count):
    return look_up(array("q", history), count)


def test_the_tokens_after_the_latest_occurrence_are_the_draft():
    assert find([1, 2, 3, 10, 11, 12, 1, 2, 3, 20, 21, 22, 1, 2, 3], count=2) == [20, 21]


def test_the_longest_match_wins():
    """The last two tokens occurred later than the last four."""
    assert find([1, 2, 3, 4, 10, 9, 3, 4, 20, 1, 2, 3, 4], count=1) == [10]


def test_a_repetition_goes_on():
    assert find([7, 7, 7, 7], count=3) == [7]
    assert find([1, 2] * 4, count=8) == [1, 2]


@pytest.mark.parametrize("history", [[], [1], [1, 2], [1, 2, 3, 4, 5], [5, 1, 2, 3, 5]])
def test_tokens_that_did_not_occur_together_have_no_draft(history):
    assert find(history, count=4) == []


def test_bytes_within_tokens_do_not_match():
    """The bytes of the last two tokens occur before, but not where a token begins."""
    shifted = int.from_bytes(bytes([0, 1, 0, 0, 0, 0, 0, 0]), "little")
    assert find([shifted, shifted, 0, 9, 1, 1], count=2) == []


def test_it_equals_a_search_token_by_token():
    draws = random.Random(1)
    for _ in range(300):
        history = [draws.randrange(4) for _ in range(draws.randrange(30))]
        assert find(history, count=5) == search(history, 5)


def search(history, count):
    for matched in (4, 3, 2):
        for end in range(len(history) - 1, matched - 1, -1):
            if matched < len(history) and history[end - matched : end] == history[-matched:]:
                return history[end : end + count]
    return []

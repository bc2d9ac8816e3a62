"""Text as tokens come: nothing is shown that changes later, nothing is lost, nothing follows a stop."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mstar.server.openai.detokenizer import IncrementalDetokenizer, to_token_ids


def decode_bytes(tokens):
    return bytes(tokens).decode(errors="replace")


def decode_words(tokens):
    """As vocabularies do whose words begin with a space, except at the beginning of a text."""
    return "".join(f" {token}" for token in tokens).removeprefix(" ")


def detokenize_all(spelling, values):
    pieces = [spelling.add(value) for value in values]
    return [*pieces, spelling.finish()]


@given(st.text(max_size=40), st.integers(1, 5))
def test_bytes_in_any_pieces_give_the_text(text, size):
    tokens = list(text.encode())
    pieces = detokenize_all(
        IncrementalDetokenizer(decode_bytes), [tokens[i : i + size] for i in range(0, len(tokens), size)]
    )
    assert "".join(pieces) == text
    assert "".join(pieces[:-1]) == text  # what is complete is not held back


@given(st.lists(st.integers(0, 255), max_size=6))
def test_what_is_no_text_is_shown_at_the_end(tokens):
    assert "".join(detokenize_all(IncrementalDetokenizer(decode_bytes), tokens)) == decode_bytes(tokens)


def test_broken_text_does_not_hold_the_rest_back():
    pieces = detokenize_all(IncrementalDetokenizer(decode_bytes), [0xFF] * 20)
    assert "".join(pieces) == decode_bytes([0xFF] * 20)
    assert "".join(pieces[:10])


@given(st.lists(st.integers(0, 99), max_size=20))
def test_words_keep_the_spaces_between_them(tokens):
    assert "".join(detokenize_all(IncrementalDetokenizer(decode_words), tokens)) == decode_words(tokens)


@given(st.text("abc", max_size=30), st.lists(st.text("abc", min_size=1, max_size=4), max_size=3))
def test_nothing_follows_the_first_stop(text, stops):
    spelling = IncrementalDetokenizer(decode_bytes, stops)
    shown = ""
    for letter in text.encode():
        shown += spelling.add(letter)
        if spelling.is_stopped:
            break
    shown += spelling.finish()
    # The first stop that is complete, as it is seen letter by letter.
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    first = min(ends)[0] if ends else len(text)
    begins = [begin for end, begin in ends if end == first]
    assert spelling.is_stopped == bool(ends)
    assert shown == text[: min(begins, default=len(text))]


def test_strings_are_taken_as_they_are():
    assert detokenize_all(IncrementalDetokenizer(decode_bytes, ["lo w"]), ["hel", "lo ", "world"]) == [
        "he",
        "l",
        "",
        "",
    ]


@pytest.mark.parametrize("value", [7, [7], (7,), np.array([7]), np.int64(7)])
def test_tokens_come_in_many_forms(value):
    assert to_token_ids(value) == [7]

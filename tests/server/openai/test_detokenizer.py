"""Tests of the incremental detokenizer: released text is final, complete, and ends at a stop string."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mstar.server.openai.detokenizer import IncrementalDetokenizer, to_token_ids


def decode_bytes(tokens):
    return bytes(tokens).decode(errors="replace")


def decode_words(tokens):
    """Like a SentencePiece vocabulary: a word starts with a space, except at the start of the text."""
    return "".join(f" {token}" for token in tokens).removeprefix(" ")


def detokenize_all(detokenizer, values):
    pieces = [detokenizer.add(value) for value in values]
    return [*pieces, detokenizer.finish()]


@given(st.text(max_size=40), st.integers(1, 5))
def test_any_split_of_the_bytes_gives_the_text(text, size):
    tokens = list(text.encode())
    pieces = detokenize_all(
        IncrementalDetokenizer(decode_bytes), [tokens[i : i + size] for i in range(0, len(tokens), size)]
    )
    assert "".join(pieces) == text
    assert "".join(pieces[:-1]) == text  # complete characters are not held back


@given(st.lists(st.integers(0, 255), max_size=6))
def test_invalid_utf8_is_released_at_the_end(tokens):
    assert "".join(detokenize_all(IncrementalDetokenizer(decode_bytes), tokens)) == decode_bytes(tokens)


def test_invalid_utf8_does_not_block_later_text():
    pieces = detokenize_all(IncrementalDetokenizer(decode_bytes), [0xFF] * 20)
    assert "".join(pieces) == decode_bytes([0xFF] * 20)
    assert "".join(pieces[:10])


@given(st.lists(st.integers(0, 99), max_size=20))
def test_words_keep_the_spaces_between_them(tokens):
    assert "".join(detokenize_all(IncrementalDetokenizer(decode_words), tokens)) == decode_words(tokens)


@given(st.text("abc", max_size=30), st.lists(st.text("abc", min_size=1, max_size=4), max_size=3))
def test_no_text_follows_the_first_stop_string(text, stops):
    detokenizer = IncrementalDetokenizer(decode_bytes, stops)
    released = ""
    for byte in text.encode():
        released += detokenizer.add(byte)
        if detokenizer.is_stopped:
            break
    released += detokenizer.finish()
    # The first stop string that is complete when the text arrives byte by byte.
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    first = min(ends)[0] if ends else len(text)
    starts = [start for end, start in ends if end == first]
    assert detokenizer.is_stopped == bool(ends)
    assert released == text[: min(starts, default=len(text))]


def test_the_begun_stop_string_of_a_model_that_stops_itself_is_not_released():
    detokenizer = IncrementalDetokenizer(decode_bytes, ["end", "no"])
    assert "".join(detokenizer.add(byte) for byte in b"then e") == "then "
    assert detokenizer.finish("end") == ""
    detokenizer = IncrementalDetokenizer(decode_bytes, ["end", "no"])
    assert "".join(detokenizer.add(byte) for byte in b"then e") + detokenizer.finish() == "then e"


def test_strings_pass_through_with_stop_strings():
    assert detokenize_all(IncrementalDetokenizer(decode_bytes, ["lo w"]), ["hel", "lo ", "world"]) == [
        "he",
        "l",
        "",
        "",
    ]


@pytest.mark.parametrize("value", [7, [7], (7,), np.array([7]), np.int64(7)])
def test_token_ids_of_ints_lists_and_arrays(value):
    assert to_token_ids(value) == [7]

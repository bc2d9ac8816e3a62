"""Failures: the location and traceback of exceptions that the code of a model author raises."""

import json

import pytest

from mstar.engine.tracebacks import strip_traceback
from mstar.wire import failure
from mstar.wire.failure import Failure, error_text, find_location


def raised(function):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - any exception
        function()
    return caught.value


def author_code():
    return json.loads("no JSON")  # raises in the standard library


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no")


@pytest.mark.parametrize("is_stripped", [False, True])
def test_the_location_is_the_innermost_line_of_the_author(is_stripped):
    error = raised(author_code)
    described = Failure.from_exception(strip_traceback(error) if is_stripped else error, walk="say", op="lm.decode")
    name, _, line = described.location.rpartition(":")
    assert name == __file__
    assert int(line) == author_code.__code__.co_firstlineno + 1
    assert "in author_code" in described.traceback
    assert "JSONDecodeError: Expecting value" in described.traceback
    assert described.summary("JSONDecodeError") == f"JSONDecodeError at test_failure.py:{line}"
    assert (described.walk, described.op) == ("say", "lm.decode")


def test_a_model_of_the_package_counts_as_author_and_the_runtime_does_not():
    models, runtime = (f'  File "{failure._PACKAGE}/{name}", line {line}, in f' for name, line in PARTS)
    assert find_location(f"{models}\n{runtime}\n") == f"{failure._PACKAGE}/models/parrot.py:7"
    assert find_location(runtime) == f"{failure._PACKAGE}/walk/op.py:9"
    assert find_location("ValueError: no frame") == ""


PARTS = (("models/parrot.py", 7), ("walk/op.py", 9))


def test_an_exception_without_a_readable_message_is_described():
    error = raised(lambda: (_ for _ in ()).throw(Unprintable()))
    assert error_text(error) == "(the exception has no readable message)"
    assert "Unprintable" in Failure.from_exception(error).traceback


def test_a_traceback_is_bounded():
    error = ValueError("x" * (2 * failure.MAX_TRACEBACK_CHARS))
    assert len(Failure.from_exception(error).traceback) == failure.MAX_TRACEBACK_CHARS

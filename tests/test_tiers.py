"""Which cases of a test are marked for the nightly tier."""

import pytest

from tests.tiers import ci_cases


def is_nightly(case):
    return [mark.name for mark in getattr(case, "marks", ())] == ["nightly"]


def test_cases_that_are_not_named_are_nightly():
    assert [is_nightly(case) for case in ci_cases({"a": 1, "b": 2, "c": 3}, "b")] == [True, False, True]


def test_a_tuple_is_several_arguments():
    first, second = ci_cases([("a", 1), ("b", 2)], ("a", 1))
    assert (first, second.values) == (("a", 1), ("b", 2))


def test_a_case_that_does_not_exist_is_refused():
    with pytest.raises(AssertionError, match=r"no such cases: \['d'\]"):
        ci_cases(["a"], "d")

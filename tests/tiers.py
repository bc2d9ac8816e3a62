"""Which cases of a slow test run in CI and which in the nightly tier."""

from collections.abc import Iterable
from typing import Any

import pytest


def ci_cases(cases: Iterable[Any], *in_ci: Any) -> list[Any]:
    """The cases of a slow test. Those named run in CI, the others in the nightly tier. A tuple is several arguments."""
    cases = [*cases]
    unknown = [case for case in in_ci if case not in cases]
    assert not unknown, f"no such cases: {unknown}"
    return [case if case in in_ci else pytest.param(*_arguments(case), marks=pytest.mark.nightly) for case in cases]


def _arguments(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)

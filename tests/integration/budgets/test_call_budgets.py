"""Function calls per token and per chat stay within their budgets, in the front end, the conductor and the worker."""

import sys
import tomllib

import pytest

from tests.integration.budgets.call_counter import BUDGETS, MAX_GROWTH, exceeded_budgets, measure

FIX = """fix: make it cheaper; or, if the cost is justified, run
  python -m tests.integration.budgets.call_counter --update
and give the reason in the commit"""
BUDGET = tomllib.loads(BUDGETS.read_text("utf-8"))


@pytest.mark.skipif(
    f"{sys.version_info.major}.{sys.version_info.minor}" != BUDGET["python"],
    reason="versions of Python make different calls",
)
def test_a_token_and_a_chat_cost_as_many_calls_as_budgeted():
    exceeded = exceeded_budgets(measure(), BUDGET)
    assert not exceeded, "\n".join((*exceeded, FIX))


def test_every_line_above_its_budget_is_named():
    budgets = {"token": {"frontend": 100.0, "worker": 50.0}, "chat": {"frontend": 2000.0}}
    counts = {"token": {"frontend": 100.0 * MAX_GROWTH, "worker": 60.0}, "chat": {"frontend": 2400.0}}
    assert exceeded_budgets(counts, budgets) == [
        "token, worker: 60.0 calls are 20% more than 50.0",
        "chat, frontend: 2400.0 calls are 20% more than 2000.0",
    ]

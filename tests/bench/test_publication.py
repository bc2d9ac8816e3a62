"""Which runs make a claim: five of one clean commit that is in the repository, on one processor."""

from dataclasses import replace

import pytest

from bench.publication import publish_all
from tests.bench.toy_history import TOY


def publication(checkout, bench=TOY):
    return publish_all({"toy": bench}, checkout.root)["toy"]


def reasons(checkout, bench=TOY) -> list[str]:
    return [reason for _, reason in publication(checkout, bench).others]


def test_five_runs_of_one_clean_commit_make_a_claim(checkout):
    checkout.add_runs(1.0, 5.0, 2.0, 2.5, 1.5)
    result = publication(checkout)
    assert result.is_published
    assert (result.median, result.spread, result.met, len(result.runs)) == (2.0, (1.0, 5.0), 4, 5)
    assert result.median_run.claim.value == 2.0
    assert result.verdict == "met"


def test_four_runs_do_not(checkout):
    checkout.add_runs(1.0, 1.0, 1.0, 1.0)
    result = publication(checkout)
    assert not result.is_published
    assert len(result.runs) == 4
    assert result.verdict == "not enough runs"


def test_no_run_is_no_claim(checkout):
    assert publication(checkout).verdict == "not enough runs"
    assert not publication(checkout).others


def test_all_runs_of_the_commit_count_and_not_the_best_five(checkout):
    checkout.add_runs(9.0, 9.0, 9.0, 9.0, 9.0, 9.0)
    checkout.add_runs(1.0, 1.0, 1.0, 1.0, 1.0)
    result = publication(checkout)
    assert (result.met, len(result.runs), result.verdict) == (5, 11, "missed")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"is_clean": False}, "dirty tree"),
        ({"is_clean": None}, "unknown whether the tree was clean"),
        ({"commit": "0" * 40}, "commit not in the repository"),
        ({"commit": "unknown"}, "commit not in the repository"),
        ({"is_busy": True}, "the machine was busy"),
        ({"is_busy": None}, "the machine was busy"),
        ({"claim": None, "error": "ValueError"}, "ended with ValueError"),
        ({"series": 2}, "series 2, the current one is 1"),
    ],
)
def test_a_run_that_does_not_count_has_a_reason(checkout, changes, reason):
    checkout.add_runs(1.0, 1.0, 1.0, 1.0)
    checkout.add_runs(1.0, **changes)
    result = publication(checkout)
    assert (len(result.runs), result.is_published) == (4, False)
    assert reasons(checkout) == [reason]


def test_a_count_does_not_depend_on_a_busy_machine(checkout):
    checkout.add_runs(1.0, 1.0, 1.0, 1.0, 1.0, is_busy=True)
    assert publication(checkout, replace(TOY, is_speed=False)).is_published


def test_runs_of_two_commits_are_not_mixed(checkout):
    checkout.add_runs(1.0, 1.0, 1.0)
    old, checkout.commit = checkout.commit, checkout.make_commit()
    checkout.add_runs(2.0, 2.0)
    result = publication(checkout)
    assert [run.claim.value for run in result.runs] == [2.0, 2.0]
    assert [record.commit for record, _ in result.others] == [old] * 3


def test_runs_of_two_processors_are_not_mixed(checkout):
    checkout.add_runs(1.0, 1.0, 1.0)
    checkout.add_runs(2.0, 2.0, cpu="another processor")
    assert len(publication(checkout).runs) == 2


def test_a_claim_stays_until_a_newer_commit_has_enough_runs(checkout):
    checkout.add_runs(1.0, 1.0, 1.0, 1.0, 1.0)
    checkout.commit = checkout.make_commit()
    checkout.add_runs(2.0, 2.0, 2.0, 2.0)
    assert publication(checkout).median == 1.0
    checkout.add_runs(2.0)
    assert publication(checkout).median == 2.0
    assert reasons(checkout) == ["another commit or CPU"] * 5


def test_the_newest_run_decides_between_two_commits(checkout):
    checkout.add_runs(1.0, 1.0, 1.0, 1.0, 1.0)
    old, checkout.commit = checkout.commit, checkout.make_commit()
    checkout.add_runs(2.0, 2.0, 2.0, 2.0, 2.0)
    checkout.add_runs(1.0, commit=old)
    assert publication(checkout).median == 1.0
    assert len(publication(checkout).runs) == 6


def test_a_new_series_starts_without_runs(checkout):
    checkout.add_runs(1.0, 1.0, 1.0, 1.0, 1.0)
    renewed = replace(TOY, series=2)
    assert publication(checkout, renewed).verdict == "not enough runs"
    assert reasons(checkout, renewed) == ["series 1, the current one is 2"] * 5
    checkout.add_runs(2.0, 2.0, 2.0, 2.0, 2.0, series=2)
    assert publication(checkout, renewed).median == 2.0


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ((1, 1, 2, 9, 9), "met"),
        ((1, 1, 9, 9, 9), "missed"),
        ((1, 1, 1, 9, 9, 9), "missed"),  # of the two in the middle one missed it
        ((1, 1, 1, 1, 9, 9), "met"),
    ],
)
def test_the_median_run_decides(checkout, values, verdict):
    checkout.add_runs(*values)
    assert publication(checkout).verdict == verdict


def test_a_condition_beside_the_value_counts_too(checkout):
    checkout.add_runs(1.0, 1.1, 1.3, 1.4, is_met=False)
    checkout.add_runs(1.2)
    result = publication(checkout)
    assert result.median_run.claim.is_met
    assert (result.met, result.verdict) == (1, "missed")


def test_of_two_runs_in_the_middle_both_must_meet_the_target(checkout):
    checkout.add_runs(1.0, 1.1, 1.3, 1.4, 1.5)
    checkout.add_runs(1.2, is_met=False)
    result = publication(checkout)
    assert (result.met, result.median, result.verdict) == (5, 1.25, "missed")

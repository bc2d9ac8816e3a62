"""The judge: promises quote the documentation, are kept by a good run, and are broken by each kind of defect."""

import re
from dataclasses import replace

import pytest

from bench.game_day.observations import CUT, DECLARED, PENDING, UNANSWERED, WRONG
from bench.game_day.promises import PROMISES, RUNTIME, judge
from bench.repository import ROOT
from tests.bench.game_day.toy_observations import (
    failed,
    fault,
    make_observations,
    probe,
    request,
    sample,
    with_request,
    with_shutdown,
    without_recovery,
)

COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


def broken(seen):
    """Names of the promises that were checked and broken."""
    judgment = judge(seen)
    return {*judgment.checked} - {*judgment.kept}


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.name)
def test_a_promise_quotes_its_page(promise):
    page = " ".join(COMMENT.sub("", (ROOT / promise.page).read_text("utf-8")).split())
    assert promise.quote in page


def test_every_guarantee_of_the_runtime_page_has_a_promise():
    section = (ROOT / RUNTIME).read_text("utf-8").partition("## What is guaranteed")[2].partition("\n## ")[0]
    rows = [row for row in re.findall(r"^\| (.+) \|$", COMMENT.sub("", section), re.MULTILINE) if "event |" not in row]
    quotes = [promise.quote for promise in PROMISES if promise.page == RUNTIME]
    assert len(rows) >= 12
    assert [row for row in rows if not any(quote in row for quote in quotes)] == []


def test_a_good_run_keeps_all_promises_that_it_checks():
    judgment = judge(make_observations())
    assert judgment.kept == judgment.checked
    assert judgment.share == 1.0
    assert {"worker", "hung-worker", "no-false-kill", "tenants", "shutdown", "memory"} <= {*judgment.checked}


def test_a_fault_that_was_skipped_checks_nothing():
    assert "disk" not in judge(make_observations()).checked


def test_the_share_counts_promises_and_not_observations():
    judgment = judge(with_request(make_observations(), outcome=WRONG))
    assert judgment.share == pytest.approx(1 - 1 / len(judgment.checked))


DURING_KILL, DURING_FREEZE, DURING_ABUSE = 10.05, 21.0, 41.0
DEFECTS = {
    "wrong text": (lambda seen: with_request(seen, outcome=WRONG), {"partial"}),
    "cut connection": (lambda seen: with_request(seen, outcome=CUT), {"partial"}),
    "no answer": (lambda seen: with_request(seen, outcome=UNANSWERED, begun=45.0, ended=58.0), {"deadline"}),
    "error during a kill": (
        lambda seen: with_request(seen, begun=DURING_KILL, outcome=DECLARED, code="model_error", ended=11.0),
        {"worker"},
    ),
    "error during abuse": (
        lambda seen: with_request(
            seen, begun=DURING_ABUSE, outcome=DECLARED, code="overloaded", ended=41.5, retry_after_s=1
        ),
        {"tenants"},
    ),
    "long pause during abuse": (
        lambda seen: with_request(seen, begun=DURING_ABUSE, ended=54.0, pauses=((41.5, 53.5),)),
        {"tenants"},
    ),
    "unavailable at once": (
        lambda seen: with_request(seen, begun=50.0, outcome=DECLARED, code="unavailable", ended=51.0),
        {"unavailable", "crash-loop"},
    ),
    "mixed outputs": (lambda seen: with_request(seen, kind="changing", outcome=WRONG), {"diverged", "partial"}),
    "poison not recognized": (
        lambda seen: with_request(seen, kind="poisoned", outcome=DECLARED, code="model_error"),
        {"poison"},
    ),
    "a trap that succeeds": (lambda seen: with_request(seen, kind="raising"), {"raises"}),
    "a repeated move": (
        lambda seen: with_request(seen, kind="not repeatable", outcome=DECLARED, code="model_error"),
        {"not-retryable"},
    ),
    "429 without a time": (
        lambda seen: with_request(seen, kind="unread stream", outcome=DECLARED, status=429, code="overloaded"),
        {"overload"},
    ),
    "rejected after an output": (
        lambda seen: with_request(
            seen, kind="abuse", outcome=DECLARED, code="overloaded", retry_after_s=1.0, has_output=True
        ),
        {"overload"},
    ),
    "timeout ignored": (
        lambda seen: with_request(seen, kind="endless", outcome=DECLARED, code="deadline_exceeded", ended=50.0),
        {"deadline"},
    ),
    "too long prompt accepted": (lambda seen: with_request(seen, kind="too long"), {"never-fits"}),
    "bad request accepted": (lambda seen: with_request(seen, kind="bad json"), {"invalid"}),
    "slow reader fails": (
        lambda seen: with_request(seen, kind="slow reader", outcome=CUT),
        {"backpressure", "partial"},
    ),
    "large value fails": (
        lambda seen: with_request(seen, kind="large value", outcome=DECLARED, status=500, code="model_error"),
        {"arena"},
    ),
    "model stays away": (lambda seen: without_recovery(seen, "toy", 22.0), {"recovery"}),
    "files are left": (lambda seen: with_shutdown(seen, left_files=["mstar-run-x"]), {"nothing-left"}),
    "processes are left": (lambda seen: with_shutdown(seen, left_processes=["t1"]), {"nothing-left"}),
    "bad exit": (lambda seen: with_shutdown(seen, exit_code=None), {"nothing-left"}),
    "running request is cut": (lambda seen: with_shutdown(seen, running=[request(outcome=CUT)]), {"shutdown", "cut"}),
    "accepted after the signal": (lambda seen: with_shutdown(seen, new_request=request()), {"shutdown"}),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_breaks_its_promise_and_no_other(defect):
    change, names = DEFECTS[defect]
    assert broken(change(make_observations())) == names


def test_a_request_that_still_waits_long_after_a_fault_breaks_the_recovery():
    seen = with_request(make_observations(), begun=20.0, ended=60.0, outcome=PENDING)
    assert broken(seen) == {"recovery"}


def test_a_recovery_is_not_judged_if_the_load_ends_before_its_limit():
    seen = make_observations()
    checked = judge(seen).verdicts["recovery"].checked
    seen = without_recovery(seen, "toy", 43.0)
    assert broken(seen) == set()
    assert judge(seen).verdicts["recovery"].checked == checked - 1


def test_a_long_outage_allows_unavailable():
    seen = with_request(make_observations(), begun=9.0, ended=39.5, outcome=DECLARED, code="unavailable")
    assert broken(seen) == set()
    assert "unavailable" in judge(seen).checked


def test_a_timeout_is_allowed_only_while_published_weights_are_loaded():
    fields = {"begun": 9.0, "ended": 29.5, "outcome": DECLARED, "code": "deadline_exceeded"}
    assert "worker" not in broken(with_request(make_observations(), kind="chat", model="chat", **fields))
    assert "worker" in broken(with_request(make_observations(), **fields))


def test_a_request_may_lose_its_weights_only_in_a_rolling_update():
    fields = {"begun": DURING_KILL, "ended": 11.0, "outcome": DECLARED, "code": "not_retryable"}
    seen = with_request(make_observations(), **fields)
    assert broken(seen) == {"worker"}
    seen.rollouts = [(9.0, float("inf"))]
    assert broken(seen) == set()


def test_a_large_value_may_be_refused_with_a_retry_time():
    seen = make_observations()
    seen.requests.append(failed("large value", "overloaded", 429, model="pair", retry_after_s=0.5))
    seen.faults.append(fault("fill-arena", 52.0, 53.0))
    assert broken(seen) == set()


def test_a_worker_that_is_replaced_after_a_freeze_was_killed_without_cause():
    seen = make_observations()
    seen.samples = [sample(one.at, p1=one.pids["p1"], t1=30 if one.at > 22.5 else 3) for one in seen.samples]
    assert broken(seen) == {"no-false-kill"}
    seen.rollouts = [(15.0, 23.0)]
    assert "no-false-kill" not in judge(seen).checked


def test_resources_after_the_load_break_the_promise_about_disconnects():
    seen = make_observations()
    seen.leftovers = {'mstar_states{process="t1"}': 1.0}
    assert broken(seen) == {"disconnect"}


def test_memory_that_grows_breaks_its_promise():
    seen = make_observations()
    seen.samples[-1] = replace(seen.samples[-1], rss_mb={**seen.samples[-1].rss_mb, "conductor": 900.0})
    assert broken(seen) == {"memory"}


def test_a_standby_that_maps_weights_breaks_no_promise():
    seen = make_observations()
    seen.samples[-1] = replace(seen.samples[-1], rss_mb=seen.samples[-1].rss_mb | {"standby": 900.0})
    assert "memory" not in broken(seen)


def test_a_process_that_replaced_another_one_counts_from_its_own_start():
    seen = make_observations()
    is_new = [one.at >= 30.0 for one in seen.samples]
    seen.samples = [
        replace(one, pids=one.pids | {"t1": 33 if new else 3}, rss_mb=one.rss_mb | {"t1": 900.0 if new else 100.0})
        for one, new in zip(seen.samples, is_new, strict=True)
    ]
    assert "memory" not in broken(seen)
    seen.samples[-1] = replace(seen.samples[-1], rss_mb=seen.samples[-1].rss_mb | {"t1": 1300.0})
    assert "memory" in broken(seen)


def test_health_may_fail_only_while_everything_is_frozen():
    seen = make_observations()
    seen.probes.append(probe(DURING_FREEZE, health=0, ready=0, phase=""))
    assert broken(seen) == set()
    seen.probes.append(probe(45.0, health=0, ready=0, phase=""))
    assert broken(seen) == {"health"}


def test_ready_must_not_be_200_while_the_server_starts_or_drains():
    for phase in ("starting", "draining"):
        seen = make_observations()
        seen.probes.append(probe(-1.0, 200, phase))
        assert broken(seen) == {"ready"}


def test_ready_must_be_200_after_the_last_fault():
    seen = make_observations()
    seen.probes.append(probe(59.9, 503, "degraded"))
    assert broken(seen) == {"ready"}


def test_a_pause_before_the_abuse_has_another_cause():
    assert broken(with_request(make_observations(), begun=25.0, ended=41.5, pauses=((25.5, 40.5),))) == set()
    seen = with_request(make_observations(), begun=25.0, ended=53.0, pauses=((25.5, 52.5),))
    assert broken(seen) == {"tenants"}, "it goes on for more than ten seconds after the start of the abuse"


def test_a_pause_of_all_processes_is_no_pause_by_another_tenant():
    seen = with_request(make_observations(), begun=41.0, ended=53.5, pauses=((41.5, 53.0),))
    assert broken(seen) == {"tenants"}
    seen.faults.append(fault("pause-container", 46.0, 49.0))
    assert broken(seen) == set()


def test_an_endless_request_can_lose_its_weights_in_a_rolling_update():
    seen = with_request(
        make_observations(), kind="endless", outcome=DECLARED, code="not_retryable", begun=2.0, ended=5.0
    )
    assert broken(seen) == {"deadline"}
    seen.rollouts = [(1.0, 9.0)]
    assert broken(seen) == set()

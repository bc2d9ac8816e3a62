"""Claims of the deadline benches: every rejection counts, and a ratio to a rule that sustains nothing is a minimum."""

from types import SimpleNamespace

import pytest

from bench.deadlines.capacity_sim import scaled_trace
from bench.deadlines.slo_admission import rejection_figures, slo_arrivals
from bench.deadlines.speech import curve_claim, deadlines_claim, sustained_load
from bench.deadlines.traffic import TTFT_S, StreamResult
from mstar.sim.call_trace import CallTrace


def test_arrivals_of_the_admission_bench_have_a_ttft_slo():
    arrivals = slo_arrivals(SimpleNamespace(each=0.5), 2.0)
    assert len(arrivals) > 20
    assert {one.slo.ttft_s for one in arrivals} == {TTFT_S}


def test_rejections_after_a_time_in_the_queue_are_counted():
    rejected = [StreamResult(1.0, ended_at=1.001, status="429")] * 98 + [
        StreamResult(1.0, ended_at=1.4, status="429")
    ] * 2
    figures = rejection_figures(rejected)
    assert figures["rejections"] == 100
    assert figures["rejections_after_250_ms"] == 2
    assert figures["rejection_p50_ms"] == pytest.approx(1.0)
    assert figures["rejection_p99_ms"] == pytest.approx(400.0)


REAL = {"ours, load 0.9": 1.0, "VoxServe's, load 0.9": 1.0, "FCFS, load 0.6": 0.89}


def simulated(ours, vox):
    return {"ours": ours, "FCFS": 0.85, "VoxServe's": vox}


def test_the_deadlines_claim_says_that_real_runs_do_not_differ_from_voxserve():
    claim = deadlines_claim(REAL, {0.95: simulated(0.996, 0.977), 1.0: simulated(0.99, 0.97)}, {})
    assert claim.is_met
    assert not claim.details["above_voxserve_in_real_runs"]
    assert "ours 100.0%, VoxServe's rule 100.0%, FCFS 89.0%" in claim.claim


def test_the_deadlines_claim_is_missed_if_one_simulated_load_is_below_voxserve():
    claim = deadlines_claim(REAL, {0.95: simulated(0.996, 0.977), 1.0: simulated(0.92, 0.96)}, {})
    assert not claim.is_met
    assert claim.details["above_both_when_simulated"] == {"0.95": True, "1.0": False}


@pytest.mark.parametrize(
    ("shares", "load"),
    [
        ({0.3: 1.0, 0.5: 0.995, 0.7: 0.98, 0.9: 1.0}, 0.5),
        ({0.3: 0.9, 0.5: 1.0}, 0.0),
        ({0.2: 0.5, 0.1: 0.99}, 0.1),
    ],
)
def test_a_rule_sustains_the_loads_below_its_first_miss(shares, load):
    assert sustained_load(shares) == load


def test_the_ratio_to_a_rule_that_sustains_no_load_is_a_minimum_and_says_so():
    claim = curve_claim({"ours": 0.9, "FCFS": 0.0, "VoxServe's": 0.8}, 0.1, {})
    assert claim.value == 9.0
    assert "ours sustains 0.9 of capacity, VoxServe's rule 0.8, FCFS sustains no load down to 0.1" in claim.claim


def test_the_ratio_to_a_rule_that_sustains_a_load_is_the_measured_one():
    claim = curve_claim({"ours": 0.7, "FCFS": 0.5, "VoxServe's": 0.7}, 0.3, {})
    assert claim.value == 1.4
    assert not claim.is_met
    assert claim.claim.endswith("FCFS sustains 0.5")


def test_a_trace_is_scaled_call_by_call():
    trace = CallTrace({}, lambda *_: None, call_seconds={"one": 1.0, "two": 2.0})
    assert scaled_trace(trace, 1.5).call_seconds == {"one": 1.5, "two": 3.0}
